"""Which mistake, or which meaning, a claimed figure comes from: a search through combinations, simplest first.

A claim is taken by its own precision ("340 GB" is 339.5 to 340.5, and as a rounded figure 335 to 345). The less a claim
says, the fewer deviations may be combined to explain it: a vague figure can be had in too many ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, floor

from kvsize.architectures import geometry as geometry_of
from kvsize.audit.folded import Folded, facts_of
from kvsize.audit.formulas import Case
from kvsize.audit.mistakes import MOST, Deviation, combined, mistakes
from kvsize.audit.published import Published
from kvsize.audit.readings import (
    Reading,
    Whole,
    formulas,
    missed_keys,
    other_engines,
    other_moments,
    published,
    readings,
    shares,
    weigher,
    widths,
    with_weights,
)
from kvsize.audit.tally import parameters
from kvsize.build import engine_settings, model_doc
from kvsize.engines import CacheSize, Workload, engine_options, load_engine
from kvsize.errors import UsageError
from kvsize.formats import FORMATS, format_of
from kvsize.geometry import Geometry
from kvsize.report import ClaimDoc, ClaimedDoc, EngineDoc, ExplanationDoc, FormatDoc, WorkloadDoc
from kvsize.source import ModelFiles

SHOWN = 5
WITHIN = 60  # an explanation that costs this much more than the best one of its sort is not told
ROUNDED = 30  # the price of taking a figure as rounded to its last digit that is not 0
AT_THE_EDGE = 60  # the price of a figure that is off by all that its precision allows
HIT = 1000  # off by less than this part of the figure costs nothing
# What an explanation may cost in all, by how precise the figure is: one part in so many.
MOST_PRICE = ((2000, 400), (200, 300), (0, 230))
BINARY_AS_DECIMAL, DECIMAL_AS_BINARY = 30, 50

_FIGURE = re.compile(
    r"(?P<about>~|≈|about\s)?\s*(?P<whole>\d{1,3}(?:,\d{3})+|\d{1,24})(?:\.(?P<decimals>\d{1,12}))?\s*"
    r"(?P<unit>bytes?|[kmgtp]?i?b)(?P<token>\s*(?:/|per\s|a\s)\s*token)?",
    re.IGNORECASE | re.ASCII,
)
_PREFIXES = " kmgtp"


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that a figure may be in. No deviation: the one it is written with."""

    name: str
    size: int
    deviation: Deviation | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A claimed figure: `half` a unit of its last digit, and of its last digit that is not 0."""

    text: str
    number: Fraction
    half: Fraction
    rounded: Fraction
    units: tuple[Unit, ...]
    per_token: bool

    @property
    def precision(self) -> Fraction:
        """How much of the figure its last digit may be off."""
        return self.half / self.number

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Bytes as written, and the least and the most that its precision allows."""
        size = self.units[0].size
        return (
            round(self.number * size),
            ceil((self.number - self.half) * size),
            floor((self.number + self.half) * size),
        )


def parse_figure(text: str) -> Figure:
    """A figure as people write it: 340 GB, 61.52 GiB, ~2.1GiB, 36,864 B.

    Raises:
        UsageError: it is none, or says nothing.
    """
    match = _FIGURE.fullmatch(text.strip())
    if match is None or not (digits := match["whole"].replace(",", "")).strip("0") + (match["decimals"] or "").strip(
        "0"
    ):
        raise UsageError("--claim takes a figure with a unit, such as 340 GB or 61.52 GiB", got=text[:40])
    decimals = match["decimals"] or ""
    number = Fraction(int(digits + decimals), 10 ** len(decimals))
    half = Fraction(1, 2 * 10 ** len(decimals))
    rounded = half if decimals else Fraction(10 ** _zeros(digits), 2)
    if match["about"]:
        rounded = max(rounded, number / 40)
    return Figure(text.strip(), number, half, rounded, _units(match["unit"]), match["token"] is not None)


def _zeros(digits: str) -> int:
    """Zeros at the end, but for those that leave fewer than two digits."""
    return min(len(digits) - len(digits.rstrip("0")), max(len(digits) - 2, 0))


def _units(written: str) -> tuple[Unit, ...]:
    lowered = written.lower()
    power = 0 if lowered.startswith("byte") else _PREFIXES.index(lowered[0]) if len(lowered) > 1 else 0
    if not power:
        return (Unit("B", 1),)
    letter = _PREFIXES[power].upper()
    decimal, binary = f"{letter}B", f"{letter}iB"
    if lowered.endswith("ib"):
        other = Deviation("unit", "unit", f"{decimal} written as {binary}", DECIMAL_AS_BINARY)
        return Unit(binary, 1024**power), Unit(decimal, 1000**power, other)
    other = Deviation("unit", "unit", f"{binary} written as {decimal}", BINARY_AS_DECIMAL)
    return Unit(decimal, 1000**power), Unit(binary, 1024**power, other)


# -- the search --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """Bytes that some deviations give."""

    deviations: tuple[Deviation, ...]
    bytes: Fraction


@dataclass(frozen=True, slots=True)
class Explanation:
    """A candidate that is the claimed figure, read in one unit."""

    deviations: tuple[Deviation, ...]
    bytes: Fraction
    unit: Unit
    price: int
    off: Fraction

    @property
    def told(self) -> tuple[Deviation, ...]:
        """Everything that it takes, the unit last."""
        return (*self.deviations, self.unit.deviation) if self.unit.deviation else self.deviations


@dataclass(frozen=True, slots=True)
class Question:
    """All that a claim is about: the model, the request, and the true answer under the meaning that was stated."""

    case: Case
    workload: Workload
    true: CacheSize

    @property
    def geometry(self) -> Geometry:
        """What the model stores."""
        return self.case.geometry


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a figure is right, what explains it (simplest first), and how much was looked at."""

    right: bool
    explanations: tuple[Explanation, ...]
    formulas: tuple[Published, ...]
    tried: int


def answer(figure: Figure, question: Question) -> Answer:
    """Hold a figure against the truth, and look for what else gives it."""
    true = min(
        fits(figure, Candidate((), Fraction(question.true.total_bytes))), key=lambda each: each.off, default=None
    )
    said = ((formula, Candidate((), Fraction(total))) for formula, total in formulas(question.case))
    named = tuple(formula for formula, candidate in said if any(fits(figure, candidate)))
    if true is not None:
        return Answer(True, (true,), named, 1)
    tried, found = 0, []
    for candidate in candidates(question):
        tried += 1
        found += [each for each in fits(figure, candidate) if believable(figure, each)]
    return Answer(False, tuple(simplest(found)), named, tried)


def fits(figure: Figure, candidate: Candidate) -> Iterator[Explanation]:
    """The ways to read a candidate as the figure."""
    for unit in figure.units:
        off = abs(candidate.bytes / unit.size - figure.number)
        if off <= max(figure.half, figure.rounded):
            price = sum(deviation.price for deviation in candidate.deviations)
            price += unit.deviation.price if unit.deviation else 0
            yield Explanation(
                candidate.deviations, candidate.bytes, unit, price + _price_of_being_off(figure, off), off
            )


def _price_of_being_off(figure: Figure, off: Fraction) -> int:
    if off * HIT <= figure.number:
        return 0
    return ROUNDED if off > figure.half else int(AT_THE_EDGE * off / figure.half)


def believable(figure: Figure, explanation: Explanation) -> bool:
    """Whether a figure this precise can tell so many deviations, and so unusual ones, from chance."""
    depth = len(explanation.deviations)
    if explanation.price > next(price for parts, price in MOST_PRICE if figure.precision * parts <= 1):
        return False
    if explanation.off > figure.half:
        return depth <= 1
    if explanation.off * HIT <= figure.number and depth <= 2:
        return True
    return depth <= (1 if figure.precision * 20 > 1 else 2 if figure.precision * 200 > 1 else MOST)


def simplest(found: Sequence[Explanation]) -> list[Explanation]:
    """The cheapest explanations of either sort, by mistakes and by other meanings; none that only adds to another."""
    kept: list[Explanation] = []
    best: dict[bool, int] = {}
    for each in sorted(found, key=lambda one: (one.price, one.off, len(one.deviations))):
        keys = {deviation.key for deviation in each.told}
        sort = any(deviation.kind == "mistake" for deviation in each.deviations)
        if any(keys >= {deviation.key for deviation in one.told} for one in kept):
            continue
        if each.price <= best.setdefault(sort, each.price) + WITHIN:
            kept.append(each)
    return _short(kept)


def _short(kept: list[Explanation]) -> list[Explanation]:
    """The first few, the best mistake among them."""
    mistaken = next((one for one in kept if any(step.kind == "mistake" for step in one.deviations)), None)
    if mistaken is None or mistaken in kept[:SHOWN]:
        return kept[:SHOWN]
    return [*kept[: SHOWN - 1], mistaken]


def candidates(question: Question) -> Iterator[Candidate]:
    """Every combination of up to MOST deviations, and every figure of another origin."""
    geometry, workload = question.geometry, question.workload
    for whole in _wholes(question):
        if whole.bytes and whole.bytes != question.true.total_bytes:
            yield _whole(whole)
    facts = facts_of(geometry, question.case.config)
    lengths = readings(workload.tokens, geometry.max_tokens)
    yield from _combinations(question, lengths, tuple(combined(mistakes(facts), facts.folded)))


def _whole(whole: Whole) -> Candidate:
    return Candidate((whole.deviation,), Fraction(whole.bytes))


def _wholes(question: Question) -> Iterator[Whole]:
    geometry, workload, case = question.geometry, question.workload, question.case
    yield from other_moments(geometry, workload)
    yield from other_engines(geometry, workload, question.true.engine)
    yield from with_weights(question.true.total_bytes, case.weight_bytes)
    yield from missed_keys(case.config, workload)
    yield from published(case)


def _combinations(
    question: Question, lengths: Sequence[Reading], changes: Sequence[tuple[tuple[Deviation, ...], Folded]]
) -> Iterator[Candidate]:
    geometry, workload = question.geometry, question.workload
    weigh = weigher(geometry, workload)
    asked = format_of(question.true.k_format if question.true.k_format in FORMATS else "bfloat16")
    formats = widths(asked, geometry.dtype, question.case.config)
    parts = shares(len(geometry.layers), workload.sequences)
    for (changed, folded), length in product(changes, lengths):
        first = (*changed, length.deviation) if length.deviation else changed
        if len(first) > MOST:
            continue
        weight = length.weight(weigh, folded)
        for width, part in product(formats, parts):
            more = tuple(each for each in (width.deviation, part.deviation) if each)
            if first + more and len(first + more) <= MOST:
                yield Candidate(first + more, weight.bytes(width.bytes) * part.factor)


# -- the document ------------------------------------------------------------------------------------------------------


def claim_doc(
    files: ModelFiles, figure: Figure, tokens: int, sequences: int, *, engine: str = "transformers", kv_dtype: str = ""
) -> ClaimDoc:
    """The document of `kvsize audit --claim`: the figure against what `engine` (NAME[@VERSION]) holds.

    Without `kv_dtype`, 16 bits an element are taken.

    Raises:
        UsageError, UnsupportedError: an engine or format that means nothing, or that refuses this model.
    """
    geometry = geometry_of(files.config)
    name, _, version = engine.partition("@")
    given = kv_dtype or ("bfloat16" if name == "transformers" else "auto")
    workload = Workload(tokens, sequences, given, given)
    options = engine_options(name, {"version": version or None})
    true = load_engine(name).size(geometry, workload, options)
    case = Case(files.id, geometry, tokens, sequences, files.config, parameters(files), files.weight_bytes)
    found = answer(figure, Question(case, workload, true))
    middle, least, most = figure.bounds
    source = true.format_source if kv_dtype else "assumed: 16 bits an element"
    return ClaimDoc(
        schema="kvsize.claim/1",
        model=model_doc(files, geometry),
        engine=EngineDoc(true.engine, true.version, true.cache, true.evidence, engine_settings(options)),
        workload=WorkloadDoc(tokens, sequences, None, 1),
        kv_dtype=FormatDoc(true.k_format, true.v_format, source),
        claim=ClaimedDoc(figure.text, middle, least, most),
        true_bytes=true.total_bytes,
        verdict="right" if found.right else "explained" if found.explanations else "unexplained",
        explanations=[_explanation_doc(each) for each in found.explanations],
        formulas=[formula.name for formula in found.formulas],
        tried=found.tried,
        notes=[*_notes(figure, geometry, name, kv_dtype), *true.notes],
    )


def _explanation_doc(each: Explanation) -> ExplanationDoc:
    return ExplanationDoc(round(each.bytes), each.unit.name, [step.document() for step in each.told])


def _notes(figure: Figure, geometry: Geometry, engine: str, kv_dtype: str) -> list[str]:
    notes = []
    if figure.precision * 20 > 1:
        notes.append("so round a figure can be had in many ways; more digits would tell them apart")
    if not kv_dtype and engine == "transformers" and geometry.dtype not in ("bfloat16", "float16"):
        named = f"names {geometry.dtype}" if geometry.dtype else "names no dtype"
        notes.append(
            f"held against 16 bits an element, though the config {named}: --kv-dtype auto takes it at its word"
        )
    return notes
