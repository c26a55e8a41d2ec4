"""The page of `kvsize fit`: the verdict first, then where the memory goes, then what would help."""

from __future__ import annotations

from typing import Any

from kvsize.report import BudgetDoc, FitDoc, RangeDoc
from kvsize.tables.page import INDENT, Grid, Line, Style, View, beside, headline, labelled, paragraph
from kvsize.tables.units import Unit, amount, unit_for

WORDS: dict[str, tuple[str, Style]] = {
    "fits": ("FITS", "answer"),
    "tight": ("TIGHT", "warn"),
    "does_not_fit": ("DOES NOT FIT", "warn"),
    "unknown": ("UNKNOWN", "warn"),
}
BAR = 44
MARKS = {"weights": "█", "cache": "▓", "other": "▒"}


def page(document: FitDoc, view: View, extra: Any = None) -> list[Line]:  # noqa: ARG001 - every page takes one
    """The verdict, the budget, the room, and advice."""
    lines = [*_verdict(document, view), *_what(document, view), []]
    if document.budget is not None:
        lines += _budget(document, document.budget, view)
    lines += _ranks(document, view)
    lines += _room(document, view)
    lines += _advice(document, view)
    for note in document.notes:
        lines += labelled("note", note, view)
    return lines


def _verdict(document: FitDoc, view: View) -> list[Line]:
    word, style = WORDS[document.verdict]
    text = _sentence(document, view)
    head: Line = [(INDENT, ""), (word, style)]
    return beside(head, text, view, style="")


def _sentence(document: FitDoc, view: View) -> str:
    each = " on each GPU" if document.gpu.count > 1 else ""
    if document.verdict == "unknown" or document.headroom_bytes is None or document.budget is None:
        return document.reason or "the weights are unknown"
    if document.verdict == "fits":
        return f"with {_span(document.headroom_bytes, view)} to spare{each}"
    if document.verdict == "tight":
        return f"only at the kind end of the estimates: {_span(document.headroom_bytes, view)} to spare{each}"
    if document.budget.room.high <= 0:
        usable = amount(document.budget.usable_bytes.high, exact=view.exact)
        return f"weights and overheads alone exceed the {usable} that the engine may use{each}"
    if document.headroom_bytes.high >= 0:
        return f"{document.engine.name} does not serve that many of these requests, whatever the memory"
    short = RangeDoc(-document.headroom_bytes.high, -document.headroom_bytes.low)
    return f"{_span(short, view)} are missing{each}"


def _span(value: RangeDoc, view: View, unit: Unit | None = None) -> str:
    unit = unit or unit_for((value.low, value.high), exact=view.exact)
    if unit.number(value.low) == unit.number(value.high):
        return unit.text(value.low)
    return f"{unit.number(value.low)} to {unit.text(value.high)}"


def _what(document: FitDoc, view: View) -> list[Line]:
    p = document.parallel
    ranks = (("tp", p.tensor), ("pp", p.pipeline), ("dp", p.data), ("ep", p.expert))
    spread = [f"{name} {count}" for name, count in ranks if count > 1 or name == "tp"]
    if p.tensor * p.pipeline * p.data < document.gpu.count:
        spread = ["layers spread"]
    gpus = f"{document.gpu.count} x {document.gpu.name}"
    w = document.workload
    asked = f"{w.batch:,} x {w.ctx:,} tokens"
    engine = f"{document.engine.name} {document.engine.version}"
    right = " · ".join((gpus, *(spread if document.gpu.count > 1 else ())))
    below = f"{engine} · {asked} · {document.kv_dtype.k} cache"
    return [*headline(document.model.id, right, view), *paragraph(below, view, "dim")]


def _budget(document: FitDoc, budget: BudgetDoc, view: View) -> list[Line]:
    rows = [(part.name, RangeDoc(part.low, part.high), part.evidence, part.why) for part in budget.parts]
    cache = RangeDoc(budget.cache_bytes, budget.cache_bytes)
    rows.insert(1, ("cache", cache, _cache_evidence(document), _asked(document, budget)))
    unit = unit_for([budget.usable_bytes.high], exact=view.exact)
    each = "per GPU, " if document.gpu.count > 1 else ""
    title = f"{each}{unit.name}: {unit.number(budget.usable_bytes.low)} usable of {unit.number(budget.total_bytes.low)}"
    lines: list[Line] = [[(INDENT, ""), (title, ""), (f"   {budget.usable_why}", "dim")], _bar(budget), []]
    width = max(len(_figures(value, unit)) for _, value, _, _ in rows)
    for name, value, evidence, why in rows:
        cells = f"{name.replace('_', '-'):<12}  {_figures(value, unit):>{width}}   "
        line: Line = [(INDENT, ""), (cells, ""), (f"{evidence:<8}", "dim")]
        lines += beside(line, why, view, gap=2)
    return [*lines, []]


def _cache_evidence(document: FitDoc) -> str:
    """The engine's, but for layers on several GPUs: where each lies was read in its source."""
    spread = document.parallel.tensor * document.parallel.pipeline * document.parallel.data < document.gpu.count
    return "derived" if spread and document.engine.evidence == "exact" else document.engine.evidence


def _ranks(document: FitDoc, view: View) -> list[Line]:
    """A line for each stage or GPU, where they differ."""
    if not document.ranks:
        return []
    unit = unit_for([max(rank.weights.high for rank in document.ranks)], exact=view.exact)
    lines: list[Line] = []
    for rank in document.ranks:
        layers = f"layers {rank.layers[0]} to {rank.layers[1]}" if rank.layers else "no layers"
        text = f"weights {_figures(rank.weights, unit)} · cache of them {unit.number(rank.cache_bytes)} {unit.name}"
        lines += labelled(rank.name, f"{layers} · {text}", view)
    return [*lines, []]


def _figures(value: RangeDoc, unit: Unit) -> str:
    low, high = unit.number(value.low), unit.number(value.high)
    return low if low == high else f"{low} … {high}"


def _asked(document: FitDoc, budget: BudgetDoc) -> str:
    per = budget.cache_bytes // max(document.workload.batch, 1)
    if document.parallel.data > 1:
        return "one replica's share"
    shares = document.parallel.pipeline == 1 and budget.cache_bytes > document.cache.total_bytes * 1.02
    return f"{document.workload.batch:,} x {amount(per)}" + ", in pools of fixed shares" * shares


def _bar(budget: BudgetDoc) -> Line:
    """Weights, cache, everything else and what is free, in proportion, at the unkind end."""
    total = max(budget.total_bytes.low, 1)
    other = sum(part.high for part in budget.parts if part.name != "weights")
    line: Line = [(INDENT, "")]
    used = 0
    for name, value in (("weights", budget.weights.high), ("cache", budget.cache_bytes), ("other", other)):
        cells = min(BAR * value // total, BAR - used)
        used += cells
        line.append((MARKS[name] * cells, "bar"))
    legend = f"  {MARKS['weights']} weights {MARKS['cache']} cache {MARKS['other']} other"
    return [*line, ("·" * (BAR - used), "dim"), (legend, "dim")]


def _room(document: FitDoc, view: View) -> list[Line]:
    if document.max_ctx is None or document.max_batch is None:
        return []
    if not document.max_ctx and not document.max_batch:
        return labelled("room for", "not one token", view)
    ctx, batch = document.workload.ctx, document.workload.batch
    longest = f"{document.max_ctx:,} tokens for {batch:,} sequence{'s' * (batch > 1)}" if document.max_ctx else ""
    count = document.max_batch
    most = f"{count:,} sequence{'s' * (count > 1)} of {ctx:,} token{'s' * (ctx > 1)}" if count else ""
    lines = labelled("room for", ", or ".join(text for text in (longest, most) if text), view)
    for name, value in (document.solved or {}).items():
        lines += labelled("solved", f"{name}: {value}", view)
    return lines


def _advice(document: FitDoc, view: View) -> list[Line]:
    if not document.advice:
        return []
    lines: list[Line] = [[], [(INDENT, ""), ("would fit", "")]]
    for entry in document.advice:
        left: Line = [(INDENT * 2, ""), (f"{entry.what:<36}", "")]
        lines += beside(left, f"{_span(entry.headroom_bytes, view)} to spare · {entry.cost}", view, gap=1)
        lines.append([(INDENT * 3, ""), (entry.flags, "dim")])
    return [*lines, []]


def grid(document: FitDoc) -> Grid:
    """One row: the verdict and its figures."""
    budget, head = document.budget, document.headroom_bytes
    header = (
        *("model", "engine", "gpu", "gpus", "ctx", "batch", "verdict", "weights_bytes", "cache_bytes"),
        *("headroom_low_bytes", "headroom_high_bytes", "max_ctx", "max_batch"),
    )
    row = (
        document.model.id,
        f"{document.engine.name} {document.engine.version}",
        document.gpu.name,
        document.gpu.count,
        document.workload.ctx,
        document.workload.batch,
        document.verdict,
        budget and budget.weights.high,
        budget and budget.cache_bytes,
        head and head.low,
        head and head.high,
        document.max_ctx,
        document.max_batch,
    )
    return Grid(header, (row,))
