"""Opening what a user named: regular files only, without hanging on what is none, each fault named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvsize.errors import SourceError


@contextmanager
def opened(path: Path, *, buffering: int = -1, hint: str | None = None) -> Iterator[IO[bytes]]:
    """The file, for reading bytes; `hint` is for a path that is no regular file.

    Raises:
        SourceError: "broken" if it cannot be read, or is a folder, a FIFO or a device.
    """
    # O_NONBLOCK: a FIFO without a writer opens at once and is then refused, instead of hanging in open(2).
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(path, "rb", buffering=buffering, opener=lambda name, _: os.open(name, flags)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError("not a regular file", reason="broken", where=str(path), hint=hint)
            yield file
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def at(file: IO[bytes], start: int, count: int) -> bytes:
    """`count` bytes from `start` on, fewer at the end of the file."""
    file.seek(start)
    return file.read(count)


def unreadable(path: Path, error: OSError | ValueError) -> SourceError:
    """Say why a file or stream could not be read."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    hint = "Check who may read it." if isinstance(error, PermissionError) else None
    return SourceError(f"cannot be read: {why}", reason="broken", where=str(path), hint=hint)
