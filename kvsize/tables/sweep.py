"""A list of context lengths: one row each, one unit a column."""

from __future__ import annotations

from collections.abc import Callable

from kvsize.documents import CacheDoc, SizeDoc
from kvsize.tables.page import INDENT, Line, View, bar, columns, width_of
from kvsize.tables.units import unit_for

Column = tuple[str, str, Callable[[CacheDoc], int]]

COLUMNS: tuple[Column, ...] = (
    ("while", "decoding", lambda cache: cache.total_bytes),
    ("after", "prefill", lambda cache: cache.after_prefill_bytes),
    ("", "peak", lambda cache: cache.peak_bytes),
    ("further", "token", lambda cache: cache.marginal_bytes_per_token),
    ("", "fixed", lambda cache: cache.fixed_bytes),
)


def lines(document: SizeDoc, view: View) -> list[Line]:
    """The table; columns that repeat what decoding takes, or are all 0, are left out."""
    caches = [row.cache for row in document.rows]
    totals = [cache.total_bytes for cache in caches]
    shown = [column for index, column in enumerate(COLUMNS) if not index or _says_more(column, caches, totals)]
    cells = [["", "ctx", "", *(f"{row.ctx:,}" for row in document.rows)]]
    for over, name, value in shown:
        values = [value(cache) for cache in caches]
        unit = unit_for(values, exact=view.exact)
        cells.append([over, name, unit.name, *(unit.number(number) for number in values)])
    texts = columns(list(zip(*cells, strict=True)), gap=3 if view.columns >= 72 else 2)
    head: list[Line] = [[(INDENT + text, "dim")] for text in texts[:3]]
    return [*head, *_with_bars(texts[3:], totals, view)]


def _says_more(column: Column, caches: list[CacheDoc], totals: list[int]) -> bool:
    values = [column[2](cache) for cache in caches]
    return any(values) and values != totals


def _with_bars(texts: list[str], totals: list[int], view: View) -> list[Line]:
    rows: list[Line] = []
    for text, total in zip(texts, totals, strict=True):
        line: Line = [(INDENT + text, "")]
        room = min(view.columns - width_of(line) - 3, 30)
        if room >= 8:
            line.append(("   " + bar(total, max(totals), room), "bar"))
        rows.append(line)
    return rows
