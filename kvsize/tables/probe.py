"""The page of `kvsize probe`: each run of layers, as the rule says and as the real cache weighed."""

from __future__ import annotations

from kvsize.geometry import index_ranges
from kvsize.report import ProbeDoc, ProbeRunDoc
from kvsize.tables.layers import index_words
from kvsize.tables.page import INDENT, Grid, Line, View, columns, headline, labelled, paragraph


def page(document: ProbeDoc, view: View, _extra: object) -> list[Line]:
    """The verdict, then one line for each run of layers and token count."""
    model = document.model
    lines = headline(model.id, model.attention, view)
    words = f"{document.model_class} of transformers {document.transformers}, meta device, {document.dtype}"
    lines += [*paragraph(words, view, "dim"), [], *paragraph(verdict(document), view, "answer"), []]
    rows: list[tuple[str, ...]] = [("layers", "tokens", "rule, bytes", "measured, bytes", "")]
    for run in document.layers:
        rows += _rows(document, run)
    lines += [[(INDENT + row, "")] for row in columns(rows, left=(0, 4))]
    for note in document.notes:
        lines += labelled("note", note, view)
    return lines


def verdict(document: ProbeDoc) -> str:
    """The answer in a sentence."""
    if document.agrees is None:
        return "There is no rule to compare with."
    if document.agrees:
        return "The rule and the real cache agree in every layer."
    return "The rule and the real cache differ. Please report this model."


def _rows(document: ProbeDoc, run: ProbeRunDoc) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for position, tokens in enumerate(document.tokens):
        measured = run.measured_bytes[position]
        predicted = run.predicted_bytes[position] if run.predicted_bytes is not None else None
        mark = "differs" if predicted not in (None, measured) else ""
        name = index_words(run.indices) if not position else ""
        rule = "-" if predicted is None else f"{predicted:,}"
        rows.append((name, f"{tokens:,}", rule, f"{measured:,}", mark))
    return rows


def grid(document: ProbeDoc) -> Grid:
    """One row for each run of layers and token count."""
    header = ("model", "transformers", "layers", "count", "kind", "tokens", "predicted_bytes", "measured_bytes")
    rows = []
    for run in document.layers:
        for position, tokens in enumerate(document.tokens):
            predicted = run.predicted_bytes[position] if run.predicted_bytes is not None else None
            where = (document.model.id, document.transformers, index_ranges(tuple(run.indices)), len(run.indices))
            rows.append((*where, run.kind, tokens, predicted, run.measured_bytes[position]))
    return Grid(header, tuple(rows), shared=2, title=f"{document.model.id}: {verdict(document)}")
