"""The page of `kvsize layers`: runs of equal layers, and the config keys that decided them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kvsize.documents import LayerRunDoc, LayersDoc, StoreDoc
from kvsize.geometry import index_ranges
from kvsize.tables.page import INDENT, Grid, Line, Style, View, flow, headline, labelled, paragraph, wrap

SHOWN_RANGES = 3


def page(document: LayersDoc, view: View, _extra: object) -> list[Line]:
    """Model, then one entry for each kind of layer, then where the facts come from."""
    model = document.model
    lines = headline(model.id, model.attention, view)
    words = f"{model.num_layers} layers · {model.model_type}"
    lines += [*paragraph(words, view, "dim"), []]
    names = [_places(run) for run in document.layers]
    width = min(max(map(len, names), default=0), view.columns // 3)
    for name, run in zip(names, document.layers, strict=True):
        lines += _run(name, run, width, view)
    lines += [[], *paragraph("from these keys of the config", view, "dim")]
    for read in document.reads:
        lines += paragraph(read, view)
    for note in document.notes:
        lines += labelled("note", note, view)
    return lines


def _places(run: LayerRunDoc) -> str:
    plural = "layer" if len(run.indices) == 1 else "layers"
    return f"{plural} {index_words(run.indices)}"


def _run(name: str, run: LayerRunDoc, width: int, view: View) -> list[Line]:
    """Where the layers are on the left, what they keep on the right."""
    left = wrap(name, width)
    room = view.columns - len(INDENT) - width - 3
    texts = [f"{len(run.indices)} x {run.label}"]
    for kept in _kept(run):
        texts += flow(kept.split(" · "), room)
    rows = max(len(left), len(texts))
    left += [""] * (rows - len(left))
    texts += [""] * (rows - len(texts))
    lines: list[Line] = []
    for at, text in zip(left, texts, strict=True):
        style: Style = "" if lines else "title"
        lines.append([(f"{INDENT}{at.ljust(width)}   ", ""), (text, style)])
    return lines


def _kept(run: LayerRunDoc) -> list[str]:
    if run.shares is not None:
        return [f"reads the cache of layer {run.shares}, keeps nothing of its own"]
    if not run.stores:
        return ["keeps nothing"]
    return [store_words(store) for store in run.stores]


def store_words(store: StoreDoc) -> str:
    """`16 KV heads x 128 · all tokens · 4,096 elements a token`."""
    unit = "a token" if store.per_token else "a sequence"
    fixed = f" · always {store.format}" if store.format else ""
    return f"{store.holds} · {store.keeps} · {store.elements:,} elements {unit}{fixed}"


def index_words(indices: Sequence[int]) -> str:
    """Indices as short as they can be said: `0-31`, `5, 11, 17 … 59`, `0-4, 6-10, 12-16 … 60-61`."""
    steps = {after - before for before, after in pairwise(indices)}
    if len(indices) > SHOWN_RANGES + 1 and len(steps) == 1 and steps != {1}:
        parts = [str(index) for index in indices]
    else:
        parts = index_ranges(tuple(indices)).split(", ")
    if len(parts) <= SHOWN_RANGES + 1:
        return ", ".join(parts)
    return f"{', '.join(parts[:SHOWN_RANGES])} … {parts[-1]}"


def grid(document: LayersDoc) -> Grid:
    """One row for each run of equal layers."""
    header = ("model", "layers", "count", "kind", "label", "holds", "keeps", "elements", "shares")
    rows = []
    for run in document.layers:
        holds = " + ".join(store.holds for store in run.stores)
        keeps = " + ".join(store.keeps for store in run.stores)
        elements = sum(store.elements for store in run.stores)
        ranges = index_ranges(tuple(run.indices))
        rows.append(
            (document.model.id, ranges, len(run.indices), run.kind, run.label, holds, keeps, elements, run.shares)
        )
    title = f"{document.model.id}: {document.model.attention}"
    return Grid(header, tuple(rows), shared=1, title=title)
