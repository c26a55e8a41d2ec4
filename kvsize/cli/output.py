"""Where answers go: standard output, in colour only on a terminal that wants it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from kvsize.errors import UsageError
from kvsize.render import page, render
from kvsize.tables.page import Line, View

# What a page is drawn with, for terminals and pipes that cannot encode it.
ASCII = str.maketrans({"·": "-", "…": "...", "█": "#", "×": "x", "—": "-", **dict.fromkeys("▏▎▍▌▋▊▉", "#")})
COLOURS = {"title": "bold", "answer": "bold green", "dim": "dim", "bar": "cyan", "warn": "yellow"}


def emit(document: Any, output: str, *, extra: Any = None, exact: bool = False) -> None:
    """Print a document in the asked format."""
    view = View(terminal_width(), exact)
    if output == "table" and wants_colour():
        paint(page(document, view, extra))
    else:
        write(render(document, output, view, extra))


def write(text: str) -> None:
    """Print plain text, drawn in ASCII where the stream's encoding is too small for it.

    Raises:
        UsageError: standard output is closed, or what it leads to is full.
    """
    if sys.stdout is None:  # closed before the start: kvsize … >&-
        raise UsageError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence()
        raise UsageError(f"standard output cannot be written to: {error.strerror}") from None


def silence() -> None:
    """Send what is still buffered nowhere: its reader has left, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wants_colour() -> bool:
    """Whether standard output is a terminal that wants colour: https://no-color.org, TERM=dumb, FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Columns: COLUMNS, else the terminal's, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):  # no terminal, no file descriptor, no standard output at all
        return 80


def paint(lines: Sequence[Line]) -> None:
    """Print styled lines through rich, which is imported only here."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, force_terminal=True, soft_wrap=True)
    for line in lines:
        text = Text()
        for part, style in line:
            text.append(part, COLOURS.get(style, ""))
        text.rstrip()
        console.print(text)
