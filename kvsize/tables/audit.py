"""The page of `kvsize audit`: published formulas, and how far each is off for a model or over many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsize.report import AuditDoc, AuditedDoc, PublishedDoc, SaysDoc, TallyDoc
from kvsize.tables.page import (
    INDENT,
    Grid,
    Line,
    Style,
    View,
    beside,
    columns,
    flow,
    headline,
    labelled,
    paragraph,
    wrap,
)
from kvsize.tables.units import amount, times, unit_for

MOST_MODELS = 8  # shown one by one; more are counted


def page(document: AuditDoc, view: View, _extra: object) -> list[Line]:
    """A block for each model, or for many models a line for each formula."""
    if len(document.models) > MOST_MODELS:
        return _over_many(document, view)
    lines: list[Line] = []
    for audited in document.models:
        lines += [*([[]] if lines else []), *_one(audited, document, view)]
    return lines


# -- one model ---------------------------------------------------------------------------------------------------------


def _one(audited: AuditedDoc, document: AuditDoc, view: View) -> list[Line]:
    figure = amount(audited.true_bytes, exact=view.exact)
    exact = "" if view.exact or audited.true_bytes < 1024 else f" ({audited.true_bytes:,} bytes)"
    lines = headline(audited.model.id, audited.model.attention, view)
    first, *more = wrap(f"{figure}{exact} for {_asked(document)}", view.columns - len(INDENT))
    lines.append([(INDENT, ""), (figure, "answer"), (first.removeprefix(figure), "")])
    lines += [[(INDENT + text, "")] for text in more]
    lines += [[(INDENT, ""), (text, "dim")] for text in flow(_facts(document), view.columns - len(INDENT))]
    return [*lines, [], *_says(audited, document, view), *_silent(audited, document, view)]


def _asked(document: AuditDoc) -> str:
    asked = document.workload
    sequences = "1 sequence" if asked.batch == 1 else f"{asked.batch:,} sequences"
    return f"{sequences} of {asked.ctx:,} token{'' if asked.ctx == 1 else 's'}"


def _facts(document: AuditDoc) -> list[str]:
    engine = document.engine
    return [f"{engine.name} {engine.version} {engine.cache}, {engine.evidence}", document.kv_dtype.k]


def _says(audited: AuditedDoc, document: AuditDoc, view: View) -> list[Line]:
    """One line for each figure, the nearest first, with the formulas that say so."""
    named = {formula.id: formula.name for formula in document.formulas}
    figures: dict[int, list[SaysDoc]] = {}
    for said in sorted(audited.says, key=_distance):
        if said.bytes is not None:
            figures.setdefault(said.bytes, []).append(said)
    unit = unit_for(figures, exact=view.exact)
    rows = [(unit.text(value), _verdict(those[0], audited.true_bytes)) for value, those in figures.items()]
    lines: list[Line] = []
    for text, those in zip(columns(rows, gap=2, left=(1,)) if rows else [], figures.values(), strict=True):
        style: Style = "" if those[0].verdict == "right" else "warn"
        names = ", ".join(named[said.formula] for said in those)
        lines += beside([(INDENT + text, style)], names, view, gap=2, style="")
    return lines


def _distance(said: SaysDoc) -> float:
    ratio = said.ratio or 0.0
    return max(ratio, 1 / ratio) if ratio else float("inf")


def _verdict(said: SaysDoc, true: int) -> str:
    bytes_ = said.bytes or 0
    if said.verdict == "right":
        return "right" if bytes_ == true else "right within 2 %"
    if not true or not bytes_:
        return "wrong"
    return f"{times(bytes_, true)}x too high" if said.verdict == "high" else f"{times(true, bytes_)}x too low"


def _silent(audited: AuditedDoc, document: AuditDoc, view: View) -> list[Line]:
    """Formulas without a figure, by their reason."""
    named = {formula.id: formula.name for formula in document.formulas}
    reasons: dict[str, list[str]] = {}
    for said in audited.says:
        if said.reason is not None:
            reasons.setdefault(said.reason, []).append(named[said.formula])
    texts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [[], *labelled("no figure", "; ".join(texts), view)] if texts else []


# -- many models -------------------------------------------------------------------------------------------------------


def _over_many(document: AuditDoc, view: View) -> list[Line]:
    named = {formula.id: formula for formula in document.formulas}
    lines = paragraph(f"{len(document.models)} models, {_asked(document)} each, 2 bytes an element", view, "title")
    lines += [[(INDENT, ""), ("against " + " · ".join(_facts(document)), "dim")], []]
    shown = HEADS if view.columns >= ROOMY else tuple(name for name in HEADS if name != "none")
    rows = [_row(tally, named[tally.formula], shown) for tally in ranked(document.tallies)]
    texts = columns([("formula", *shown), *rows], gap=2 if view.columns >= ROOMY else 1, left=(0,))
    lines += [[(INDENT + text.rstrip(), "" if index else "dim")] for index, text in enumerate(texts)]
    lines.append([])
    lines += labelled("right", "within 2 % of the truth; high, low: models for which it is further off", view)
    lines += labelled("least", "what the formula says / the truth, over the models for which it says anything", view)
    lines += labelled("none", "needs what the model lacks: a latent, a parameter count, hidden_size", view)
    for note in document.notes:
        lines += labelled("note", note, view)
    told = "--json holds every figure, and where each formula was published; kvsize audit MODEL is about one model"
    return [*lines, *labelled("more", told, view)]


ROOMY = 72  # columns that hold every column of the table
HEADS = ("right", "high", "low", "none", "least", "median", "most")


def ranked(tallies: Sequence[TallyDoc]) -> list[TallyDoc]:
    """The formulas that are right most often first."""
    return sorted(tallies, key=lambda tally: (-tally.right, tally.none))


def _row(tally: TallyDoc, formula: PublishedDoc, shown: Sequence[str]) -> tuple[str, ...]:
    values = (getattr(tally, name) for name in shown)
    return (formula.name, *(f"{value}" if isinstance(value, int) else ratio_text(value) for value in values))


def ratio_text(value: float | None) -> str:
    """A ratio in three or four figures: 0.0045, 0.77, 8.00, 71.1, 3,086."""
    if value is None:
        return ""
    decimals = 4 if value < 0.01 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


# -- spreadsheets ------------------------------------------------------------------------------------------------------


def grid(document: AuditDoc) -> Grid:
    """One row for each model and formula; over many models, one for each formula."""
    asked = document.workload
    about = f"{asked.batch} x {asked.ctx:,} tokens, {document.engine.name} {document.engine.version}"
    named = {formula.id: formula for formula in document.formulas}
    if len(document.models) > MOST_MODELS:
        return Grid(TALLIED, _tallied(document, named), title=f"{len(document.models)} models, {about}")
    rows = tuple(
        (
            *(audited.model.id, asked.ctx, asked.batch, audited.true_bytes, named[said.formula].name),
            *(said.bytes, said.ratio, said.verdict, said.reason, named[said.formula].url),
        )
        for audited in document.models
        for said in audited.says
    )
    return Grid(SAID, rows, title=about)


SAID = ("model", "ctx", "batch", "true_bytes", "formula", "says_bytes", "ratio", "verdict", "reason", "url")
TALLIED = ("formula", "published", "models", *HEADS, "least_model", "most_model", "url")


def _tallied(document: AuditDoc, named: Mapping[str, PublishedDoc]) -> tuple[tuple[Any, ...], ...]:
    count = len(document.models)
    found = ((named[tally.formula], tally) for tally in ranked(document.tallies))
    return tuple((f.name, f.published, count, *_counts(t), t.least_model, t.most_model, f.url) for f, t in found)


def _counts(tally: TallyDoc) -> tuple[int | float | None, ...]:
    return (tally.right, tally.high, tally.low, tally.none, tally.least, tally.median, tally.most)
