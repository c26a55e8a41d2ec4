"""The command line without a process of its own: the same parsing, printing and exit codes, some 5 ms a call."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from kvsize.cli import run


@dataclass(frozen=True, slots=True)
class Done:
    """What one call left behind."""

    code: int
    out: str
    err: str


def kvsize(arguments: Sequence[str], data: bytes = b"") -> Done:
    """Run one command line with `data` on standard input; all streams are strict UTF-8."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data), "utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(arguments)
    finally:
        sys.stdin = before
    return Done(code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
