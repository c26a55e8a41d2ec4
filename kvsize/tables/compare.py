"""The page of `kvsize compare`: one block a model, one line an engine."""

from __future__ import annotations

from typing import Any

from kvsize.report import ComparedDoc, CompareDoc
from kvsize.tables.page import INDENT, Grid, Line, View, beside, headline, paragraph
from kvsize.tables.units import Unit, unit_for


def page(document: CompareDoc, view: View, extra: Any = None) -> list[Line]:  # noqa: ARG001 - every page takes one
    """Each model with its engines; a refusal is a line too."""
    lines: list[Line] = []
    for model in dict.fromkeys(row.model for row in document.rows):
        rows = [row for row in document.rows if row.model == model]
        lines += [*_model(model, rows, document, view), []]
    return lines[:-1]


def _model(model: str, rows: list[ComparedDoc], document: CompareDoc, view: View) -> list[Line]:
    asked = f"{document.batch:,} x {document.ctx:,} tokens"
    lines = headline(model, asked, view)
    sizes = unit_for([row.request_bytes for row in rows if row.request_bytes], exact=view.exact)
    slopes = unit_for([row.bytes_per_token for row in rows if row.bytes_per_token], exact=view.exact)
    pooled = document.kv_memory_bytes is not None
    if pooled:
        memory = document.kv_memory_bytes or 0
        lines += paragraph(f"a budget of {unit_for([memory]).text(memory)} for the cache holds", view, "dim")
    cells = [_cells(row, sizes, slopes, pooled) for row in rows]
    heads = ("engine", f"{sizes.name}", f"{slopes.name}/token", *(("tokens", "requests") if pooled else ()))
    widths = [max(len(row[index]) for row in (heads, *cells)) for index in range(len(heads))]
    lines.append([(INDENT, ""), (_row(heads, widths), "dim")])
    for row, texts in zip(rows, cells, strict=True):
        line: Line = [(INDENT, ""), (_row(texts, widths), "" if row.refused is None else "dim")]
        lines += beside(line, row.refused or row.why, view, gap=2)
    return lines


def _cells(row: ComparedDoc, sizes: Unit, slopes: Unit, pooled: bool) -> tuple[str, ...]:
    name = f"{row.engine} {row.version}"
    figures = [
        "-" if row.request_bytes is None else sizes.number(row.request_bytes),
        "-" if row.bytes_per_token is None else slopes.number(row.bytes_per_token),
    ]
    if pooled:
        figures += [
            "-" if row.pool_tokens is None else f"{row.pool_tokens:,}",
            "-" if row.pool_requests is None else f"{row.pool_requests:,.2f}",
        ]
    return (name, *figures)


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])


def grid(document: CompareDoc) -> Grid:
    """One row a model and engine."""
    header = ("model", "engine", "version", "ctx", "batch", "request_bytes", "bytes_per_token")
    rows = tuple(
        (
            *(row.model, row.engine, row.version, document.ctx, document.batch),
            *(row.request_bytes, row.bytes_per_token, row.pool_tokens, row.pool_requests),
            row.refused or row.why,
        )
        for row in document.rows
    )
    return Grid((*header, "pool_tokens", "pool_requests", "why"), rows)
