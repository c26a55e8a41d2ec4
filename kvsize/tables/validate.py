"""The page of `kvsize validate`: what was predicted, what was measured, and whether it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvsize.report import MeasuredDoc, ValidateDoc
from kvsize.tables.page import INDENT, Grid, Line, Style, View, columns, labelled, paragraph

HEADER = ("cache", "", "tokens", "predicted, bytes", "measured, bytes", "")
# status -> words, style
WORDS: Mapping[str, tuple[str, Style]] = {
    "equal": ("equal", ""),
    "different": ("DIFFERS", "warn"),
    "refused": ("refused by kvsize", "dim"),
    "not_run": ("not run", "dim"),
    "out_of_memory": ("out of memory", "warn"),
}


def page(document: ValidateDoc, view: View, _extra: object) -> list[Line]:
    """The verdict, then each model's runs; why a run is missing stands below its model."""
    where = document.environment
    told = f"transformers {where.transformers}, torch {where.torch}, {where.device}; {document.settings['dtype']}"
    lines = [*paragraph(summary(document.rows), view, "answer"), *paragraph(told, view, "dim"), []]
    for name in dict.fromkeys(row.model for row in document.rows):
        lines += [*_model(name, [row for row in document.rows if row.model == name], view), []]
    for note in document.notes:
        lines += labelled("note", note, view)
    return lines if document.notes else lines[:-1]


def summary(rows: Sequence[MeasuredDoc]) -> str:
    """The answer in a sentence, with every count that is not zero."""
    counts = Counter(row.status for row in rows)
    compared = counts["equal"] + counts["different"]
    if not compared:
        return "No cache could be built and compared."
    text = f"{counts['equal']:,} of {compared:,} real caches hold exactly the predicted bytes"
    rest = [f"{counts[key]:,} {WORDS[key][0]}" for key in ("refused", "not_run", "out_of_memory") if counts[key]]
    return "; ".join((text, *rest))


def _model(name: str, rows: Sequence[MeasuredDoc], view: View) -> list[Line]:
    first = rows[0]
    where = f"{first.model_class} on {first.device}" if first.model_class else ""
    lines: list[Line] = [[(INDENT + name, "title"), (f"   {where}" if where else "", "dim")]]
    shown = [row for row in rows if row.predicted_bytes is not None]
    if shown:
        head, *texts = columns([HEADER, *map(_cells, shown)], left=(0, 1, 5))
        lines.append([(INDENT + head, "dim")])
        lines += [[(INDENT + text, WORDS[row.status][1])] for text, row in zip(texts, shown, strict=True)]
    for cache, reason in dict.fromkeys((row.cache or "all", row.reason) for row in rows if row.reason):
        lines += labelled(cache, str(reason), view, style="dim")
    return lines


def _cells(row: MeasuredDoc) -> tuple[str, ...]:
    copies = row.batch * row.num_beams
    tokens = f"{row.ctx:,}" if copies == 1 else f"{copies:,} x {row.ctx:,}"
    words = WORDS[row.status][0]
    measured, verdict = (words, "") if row.measured_bytes is None else (f"{row.measured_bytes:,}", words)
    return (row.cache, row.moment, tokens, f"{row.predicted_bytes:,}", measured, verdict)


def grid(document: ValidateDoc) -> Grid:
    """One row a cache."""
    header = tuple(MeasuredDoc.__dataclass_fields__)
    rows = tuple(tuple(getattr(row, name) for name in header) for row in document.rows)
    return Grid(header, rows)
