"""The pages of `kvsize models`: the catalogue, or the architectures."""

from __future__ import annotations

from collections.abc import Sequence

from kvsize.documents import ArchitectureDoc, EntryDoc, ModelsDoc
from kvsize.tables.page import INDENT, Grid, Line, View, beside, columns, paragraph
from kvsize.tables.units import UNITS

GIB = UNITS[1]


def page(document: ModelsDoc, view: View, _extra: object) -> list[Line]:
    """One line a model: its id, the bytes of its weights, and what its layers keep; or one line an architecture."""
    if document.architectures:
        return _architectures(document.architectures, view)
    if not document.models:
        return paragraph("Nothing in the catalogue matches; any id of the Hub can be asked for.", view)
    return _models(document.models, view)


def _models(models: Sequence[EntryDoc], view: View) -> list[Line]:
    rows = [(entry.id, "" if entry.weight_bytes is None else GIB.number(entry.weight_bytes)) for entry in models]
    texts = columns([("", "GiB"), *rows], gap=2, left=(0,))
    lines: list[Line] = [[(INDENT + texts[0], "dim")]]
    for text, entry in zip(texts[1:], models, strict=True):
        room = view.columns - len(INDENT + text) - 2
        words = entry.attention or f"{entry.model_type}: no rule yet"
        words = words if len(words) <= room else words.partition(" · ")[0]
        lines += beside([(INDENT + text, "")], words, view, gap=2, least=24)
    also = sum(len(entry.also) for entry in models)
    plural = "" if len(models) == 1 else "s"
    told = f"{len(models)} model{plural} with the GiB of their weights, and {also} more ids of the same shapes"
    return [*lines, [], *paragraph(told, view, "dim")]


def _architectures(architectures: Sequence[ArchitectureDoc], view: View) -> list[Line]:
    rows = [(each.model_type, each.evidence, f"{each.models or ''}") for each in architectures]
    texts = columns([("model_type", "evidence", "in the catalogue"), *rows], left=(0, 1))
    lines: list[Line] = [[(INDENT + text, "" if index else "dim")] for index, text in enumerate(texts)]
    exact = sum(each.evidence == "exact" for each in architectures)
    told = (
        f"{len(architectures)} architectures: {exact} checked against real caches (exact), "
        f"{len(architectures) - exact} read from their published code (derived)"
    )
    return [*lines, [], *paragraph(told, view, "dim")]


def grid(document: ModelsDoc) -> Grid:
    """One row for each model, or for each architecture."""
    if document.architectures:
        rows = tuple((each.model_type, each.evidence, each.models) for each in document.architectures)
        return Grid(("model_type", "evidence", "models"), rows)
    header = ("model", "model_type", "attention", "weight_bytes", "revision", "also")
    return Grid(
        header,
        tuple(
            (entry.id, entry.model_type, entry.attention, entry.weight_bytes, entry.revision, " ".join(entry.also))
            for entry in document.models
        ),
    )
