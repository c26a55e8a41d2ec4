"""A log as lines: unpacked, without colours, and told apart by the process that wrote them.

Containers, shells and launchers each put something before what an engine printed. It is taken off here, and what names
a server (a pod, a compose service, a journal's process) or a rank is kept.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from kvsize.errors import SourceError
from kvsize.regularfile import unreadable

MAX_BYTES = 4 << 30  # unpacked; start-up lines stand at the beginning, and a bomb has no end
MAX_LINE = 1 << 16  # an argument dump takes some 10 kB
_GZIP = b"\x1f\x8b"
_WRAPPED = '{"log":"'

Wanted: TypeAlias = Callable[[str], bool]

_ANSI = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|[@-Z\\^_])")
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"

# What stands before a line, outermost first; a group `server` names who wrote it.
_PREFIXES = tuple(
    re.compile(text)
    for text in (
        r"\[pod/(?P<server>[^/\]\s]{1,253}/[^\]\s]{1,63})\] ?",  # kubectl logs --prefix
        rf"{_TIME} (?:stdout|stderr) [FP] ",  # the kubelet's own files
        r"(?P<server>[A-Za-z0-9][\w.-]{0,100}[-_]\d{1,4}) {1,40}\| ?",  # docker compose logs
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} (?P<server>[\w./-]{1,64}\[\d{1,10}\]): ",  # journalctl
        rf"{_TIME}[ \t]",  # kubectl or docker logs --timestamps
    )
)
# Where engines name the process or rank that prints.
_RANK = re.compile(
    r"\((?P<vllm>(?:APIServer|EngineCore|VllmWorker|Worker|RayWorker|ApiServer)[\w.-]{0,40}(?: rank=\d{1,4})?)"
    r"(?:,? (?:pid|ip)=[^)]{1,80})?\)"
    r"|\[[-\d: ,.]{10,30} (?P<sglang>(?:[A-Z]{2,4}\d{1,4} ?){1,6})\]"
    r"|\[(?P<torchrun>(?:rank|RANK) ?\d{1,4})\]"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log. `server` names whose log it is ("" where nothing says), `rank` the process in it."""

    number: int
    server: str
    rank: str
    text: str


def read(name: str, wanted: Wanted | None = None) -> Iterator[Line]:
    """The lines of a log: a file, a gzip file, or "-" for standard input. Memory stays bounded.

    Lines that are not `wanted` are passed over before anything is done with them.

    Raises:
        SourceError: it cannot be read, is a damaged gzip file, or does not end within MAX_BYTES.
    """
    with _open(name) as stream:
        try:
            yield from lines(_unpacked(stream), name, wanted)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise SourceError(f"damaged gzip file: {error}", reason="broken", where=name) from None
        except OSError as error:
            raise unreadable(Path(name), error) from None


def lines(stream: IO[bytes], name: str = "-", wanted: Wanted | None = None) -> Iterator[Line]:
    """Every line of a stream; of one beyond MAX_LINE bytes, only its beginning."""
    number, size, within = 0, 0, False
    while part := stream.readline(MAX_LINE):
        size += len(part)
        if size > MAX_BYTES:
            what = f"a log of more than {MAX_BYTES:,} bytes"
            hint = "Start-up lines are enough: head -n 20000 LOG | kvsize reconcile -"
            raise SourceError(what, reason="too_large", where=name, hint=hint)
        if not within:
            number += 1
            for text in part.decode("utf-8", "replace").split("\r"):  # progress bars overwrite themselves
                if text.strip() and (wanted is None or "\x1b" in text or text.startswith(_WRAPPED) or wanted(text)):
                    yield clean(number, text)
        within = not part.endswith(b"\n")


def clean(number: int, text: str) -> Line:
    """A line without colours and prefixes, and who wrote it."""
    text = _unwrapped(_ANSI.sub("", text).strip() if "\x1b" in text else text.strip())
    server = ""
    for prefix in _PREFIXES:
        match = prefix.match(text)
        if match:
            text = text[match.end() :]
            server = match.groupdict().get("server") or server
    match = _RANK.search(text[:200])
    return Line(number, server, (match[match.lastgroup or 0].strip() if match else ""), text)


def _unwrapped(text: str) -> str:
    """What a container runtime's json-file driver wrapped."""
    if not text.startswith(_WRAPPED):
        return text
    try:
        value = json.loads(text)["log"]
    except (ValueError, KeyError, RecursionError):
        return text
    return value.strip() if isinstance(value, str) else text


def _open(name: str) -> IO[bytes]:
    if name == "-":
        if sys.stdin is None:
            raise SourceError("standard input is closed", reason="broken", where="-")
        return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    try:
        path = Path(name)
        # O_NONBLOCK: a FIFO without a writer opens at once and is then refused
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = "not_found" if isinstance(error, FileNotFoundError) else "broken"
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "LOG is a file, a .gz, or - for standard input."
        raise SourceError(f"cannot be read: {why}", reason=reason, where=name, hint=hint) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SourceError("not a regular file", reason="broken", where=name, hint="kvsize reconcile - < it")
    return os.fdopen(handle, "rb")


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    """What is in a gzip file, else the stream itself."""
    head = stream.read(2)
    joined = io.BufferedReader(_Joined(head, stream), MAX_LINE)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=joined) if head == _GZIP else joined)


class _Joined(io.RawIOBase):
    """A stream after the bytes that were read off it, for pipes cannot go back."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        """It is only ever read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The head first, then what follows it."""
        data, self._head = self._head or self._rest.read(len(buffer)), b""
        buffer[: len(data)] = data
        return len(data)
