"""Lines, columns and labels: how any page is laid out, without knowing what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Style: TypeAlias = Literal["", "title", "answer", "dim", "bar", "warn"]
Line: TypeAlias = list[tuple[str, Style]]

INDENT = "  "
NARROWEST = 60  # below this a page is not squeezed any further


@dataclass(frozen=True, slots=True)
class View:
    """How a page is drawn: columns of the terminal, and exact bytes instead of units."""

    width: int = 80
    exact: bool = False

    @property
    def columns(self) -> int:
        """Columns to fill."""
        return max(self.width, NARROWEST)


@dataclass(frozen=True, slots=True)
class Grid:
    """One table of raw values, for csv and markdown.

    The first `shared` columns say the same in every row; `title` says it in words.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    shared: int = 0
    title: str = ""


def plain(lines: Sequence[Line]) -> str:
    """Lines without their styles, each ending in a newline."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def width_of(line: Line) -> int:
    """Columns that a line takes."""
    return sum(len(text) for text, _ in line)


def wrap(text: str, width: int) -> list[str]:
    """Words on lines of at most `width`; a word that is longer is cut."""
    lines, line = [], ""
    for word in text.split():
        rest = word
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        while len(rest) > width:
            lines.append(rest[:width])
            rest = rest[width:]
        line = f"{line} {rest}" if line else rest
    return [*lines, line] if line else lines


def flow(parts: Sequence[str], width: int, separator: str = " · ") -> list[str]:
    """Parts with separators between, broken only at separators where that is possible."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(separator) + len(part) <= width:
            lines[-1] += separator + part
        else:
            lines += wrap(part, width)
    return lines


def paragraph(text: str, view: View, style: Style = "") -> list[Line]:
    """Indented, wrapped text."""
    return [[(INDENT, ""), (line, style)] for line in wrap(text, view.columns - len(INDENT))]


def labelled(label: str, text: str, view: View, *, style: Style = "", label_width: int = 11) -> list[Line]:
    """`  note       text`, continued under the text."""
    room = view.columns - len(INDENT) - label_width
    lines = wrap(text, room) or [""]
    return [
        [(INDENT + (label if not index else "").ljust(label_width), "dim"), (line, style)]
        for index, line in enumerate(lines)
    ]


def beside(line: Line, text: str, view: View, *, style: Style = "dim", least: int = 20, gap: int = 3) -> list[Line]:
    """A line with text to its right, continued below it; on lines of its own where there is no room."""
    if not text:
        return [line]
    at = width_of(line) + gap
    room = view.columns - at
    if room < min(least, len(text)):
        inner = len(INDENT) * 3
        return [line, *_indented(wrap(text, view.columns - inner), inner, style)]
    first, *more = [text] if len(text) <= room else wrap(text, room)
    return [[*line, (" " * gap, ""), (first, style)], *_indented(more, at, style)]


def _indented(texts: Sequence[str], by: int, style: Style) -> list[Line]:
    return [[(" " * by, ""), (text, style)] for text in texts]


def headline(left: str, right: str, view: View) -> list[Line]:
    """A title with a remark at the right edge, or below it where both do not fit."""
    room = view.columns - len(INDENT)
    if len(left) + 3 + len(right) <= room:
        return [[(INDENT, ""), (left, "title"), (right.rjust(room - len(left)), "")]]
    below = flow(right.split(" · "), room)
    return [*_indented(wrap(left, room), len(INDENT), "title"), *_indented(below, len(INDENT), "")]


def columns(rows: Sequence[Sequence[str]], *, gap: int = 3, left: Sequence[int] = ()) -> list[str]:
    """Cells as lines, right-aligned but for the columns in `left`."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (" " * gap).join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: int, whole: int, width: int) -> str:
    """A bar of at most `width` columns, in eighths of a column; anything above nothing shows."""
    eighths = max(value * width * 8 // whole, 1) if value and whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")
