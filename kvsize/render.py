"""Documents as text: JSON, csv, markdown, or a page for people; nothing here knows what a document says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvsize.documents import to_dict
from kvsize.tables.page import Grid, Line, View, plain


def render(document: Any, output: str, view: View | None = None, extra: Any = None) -> str:
    """A document in the asked format (`json`, `csv`, `markdown` or `table`), ending in a newline, without colour."""
    if output == "json":
        return json.dumps(to_dict(document), ensure_ascii=False) + "\n"
    from kvsize.tables import grid

    if output == "csv":
        return csv(grid(document))
    if output == "markdown":
        return markdown(grid(document), view or View())
    return plain(page(document, view or View(), extra))


def page(document: Any, view: View, extra: Any = None) -> list[Line]:
    """A document as styled lines for a terminal."""
    from kvsize.tables import page as page_of

    return page_of(document, view, extra)


def csv(grid: Grid) -> str:
    """A grid as RFC 4180 with plain line ends: raw integers, empty where unknown."""
    import csv as writer
    from io import StringIO

    out = StringIO()
    rows = writer.writer(out, lineterminator="\n")
    rows.writerow(grid.header)
    rows.writerows(grid.rows)
    return out.getvalue()


def markdown(grid: Grid, view: View) -> str:
    """A grid as a table for a README or an issue: bytes in one unit a column, columns that say nothing left out."""
    own = range(grid.shared, len(grid.header))
    kept = [index for index in own if any(row[index] not in (None, "", 0) for row in grid.rows)] or own
    cells = [_column(grid.header[index], [row[index] for row in grid.rows], view) for index in kept]
    lines = [f"| {' | '.join(row)} |" for row in zip(*(texts for texts, _ in cells), strict=True)]
    rule = f"|{'|'.join('---:' if right else '---' for _, right in cells)}|"
    above = [grid.title, ""] if grid.title else []
    return "\n".join([*above, *lines[:1], rule, *lines[1:]]) + "\n"


def _column(name: str, values: Sequence[Any], view: View) -> tuple[list[str], bool]:
    """Heading and cells, and whether they are figures."""
    from kvsize.tables.units import unit_for

    figures = [value for value in values if isinstance(value, int)]
    if not figures:
        return [name, *("" if value is None else str(value).replace("|", "\\|") for value in values)], False
    if "bytes" not in name:
        return [name, *("" if value is None else f"{value:,}" for value in values)], True
    unit = unit_for(figures, exact=view.exact)
    words = name.replace("_bytes", "").replace("_", " ")
    return [f"{words}, {unit.name}", *("" if value is None else unit.number(value) for value in values)], True
