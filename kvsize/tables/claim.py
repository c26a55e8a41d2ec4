"""The page of `kvsize audit --claim`: whether a figure is right, and what else gives it."""

from __future__ import annotations

from kvsize.report import ClaimDoc, ExplanationDoc
from kvsize.tables.page import INDENT, Grid, Line, Style, View, flow, headline, labelled, wrap
from kvsize.tables.units import amount, times
from kvsize.words import ENGINE_NAMES

SIZES = {
    f"{letter}{middle}B": base**power
    for power, letter in enumerate("KMGTP", start=1)
    for middle, base in (("", 1000), ("i", 1024))
}


def page(document: ClaimDoc, view: View, _extra: object) -> list[Line]:
    """The verdict first, then the truth, then one paragraph for each explanation."""
    lines = headline(document.model.id, document.model.attention, view)
    lines += [*_verdict(document, view), *_truth(document, view)]
    if document.verdict == "explained":
        lines += [[], [(INDENT + f"{document.claim.text} is", "dim")]]
        for explanation in document.explanations:
            lines += _explanation(explanation, view)
    if document.formulas or document.notes:
        lines.append([])
    if document.formulas:
        verb = "says" if len(document.formulas) == 1 else "say"
        lines += labelled("published", f"{', '.join(document.formulas)} {verb} the same", view)
    for note in document.notes:
        lines += labelled("note", note, view)
    return lines


def _verdict(document: ClaimDoc, view: View) -> list[Line]:
    words, style = _words(document)
    first, *more = wrap(words, view.columns - len(INDENT))
    word = first.split(" ")[0]
    rest: list[Line] = [[(INDENT + text, "")] for text in more]
    return [[(INDENT, ""), (word, style), (first.removeprefix(word), "")], *rest]


def _words(document: ClaimDoc) -> tuple[str, Style]:
    claimed, true = document.claim, document.true_bytes
    if document.verdict == "right":
        told = "; ".join(step.words for each in document.explanations for step in each.deviations)
        return f"RIGHT {claimed.text}{f', {told},' if told else ''} is what {_asked(document)} takes", "answer"
    why = "" if document.verdict == "explained" else f": none of {document.tried:,} combinations of mistakes gives it"
    return f"WRONG {claimed.text} is {_off(claimed.bytes, true)} {_asked(document)}{why}", "warn"


def _off(said: int, true: int) -> str:
    part, whole = max(said, true), min(said, true)
    if not whole or part * 100 < whole * 105:
        return "not, at its own precision, what is held for"
    return f"{times(part, whole)}x too {'high' if said > true else 'low'} for"


def _asked(document: ClaimDoc) -> str:
    asked = document.workload
    sequences = "1 sequence" if asked.batch == 1 else f"{asked.batch:,} sequences"
    return f"{sequences} of {asked.ctx:,} token{'' if asked.ctx == 1 else 's'}"


def _truth(document: ClaimDoc, view: View) -> list[Line]:
    true, engine = document.true_bytes, document.engine
    name = ENGINE_NAMES.get(engine.name, engine.name)
    figures = [amount(true), in_unit(true, _decimal(true)), f"{true:,} B"]
    facts = [
        " = ".join(dict.fromkeys(figures)),
        " ".join((name, engine.version, engine.cache)).strip() + f", {engine.evidence}",
        document.kv_dtype.k,
    ]
    return [[(INDENT, ""), (text, "dim")] for text in flow(facts, view.columns - len(INDENT))]


def _decimal(value: int) -> str:
    """The decimal unit in which a figure is at least 1."""
    return next((name for name in ("TB", "GB", "MB", "KB") if value >= SIZES[name]), "B")


def in_unit(value: int, unit: str) -> str:
    """A figure in a decimal or binary unit, with two decimals: 343.60 GB."""
    size = SIZES.get(unit, 1)
    if size == 1:
        return f"{value:,} B"
    hundredths = (value * 200 + size) // (2 * size)
    return f"{hundredths // 100:,}.{hundredths % 100:02} {unit}"


def _explanation(explanation: ExplanationDoc, view: View) -> list[Line]:
    figure = in_unit(explanation.bytes, explanation.unit)
    steps = [step.words for step in explanation.deviations]
    width = max(len(figure), 12) + 2
    lines: list[Line] = []
    for index, step in enumerate(steps):
        left = figure.rjust(width - 2) + "  " if not index else "and ".rjust(width)
        lines += _hanging(left, step, view)
    return lines


def _hanging(left: str, text: str, view: View) -> list[Line]:
    start = len(INDENT) + len(left)
    first, *more = wrap(text, view.columns - start)
    rest: list[Line] = [[(" " * start + part, "")] for part in more]
    return [[(INDENT + left, ""), (first, "")], *rest]


def grid(document: ClaimDoc) -> Grid:
    """One row for each explanation; one without where there is none."""
    header = ("model", "ctx", "batch", "claim", "true_bytes", "verdict", "rank", "says_bytes", "unit", "explanation")
    asked = document.workload
    shared = (document.model.id, asked.ctx, asked.batch, document.claim.text, document.true_bytes, document.verdict)
    rows = [
        (*shared, rank, each.bytes, each.unit, "; ".join(step.words for step in each.deviations))
        for rank, each in enumerate(document.explanations, start=1)
    ]
    return Grid(
        header, tuple(rows or [(*shared, None, None, None, None)]), shared=len(shared), title=_words(document)[0]
    )
