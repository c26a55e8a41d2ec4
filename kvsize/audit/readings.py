"""What a claimed figure may be a figure of: which tokens, which format, what share; and whole figures of other origin.

Together with the mistakes of kvsize.audit.mistakes these span the combinations that kvsize.audit.claims looks through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvsize.audit.folded import Folded
from kvsize.audit.formulas import Case, InapplicableError
from kvsize.audit.mistakes import Deviation
from kvsize.audit.published import PUBLISHED, Published
from kvsize.engines import ENGINES, Workload, engine_options, load_engine
from kvsize.errors import KvsizeError
from kvsize.formats import Format
from kvsize.geometry import Geometry
from kvsize.words import ENGINE_NAMES


@dataclass(frozen=True, slots=True)
class Weight:
    """Elements in the cache's own format, and bytes in formats that the model fixes."""

    elements: int
    fixed_bytes: int

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.elements + other.elements, self.fixed_bytes + other.fixed_bytes)

    def times(self, factor: int) -> Weight:
        """The same, several times over."""
        return Weight(self.elements * factor, self.fixed_bytes * factor)

    def bytes(self, width: Fraction) -> Fraction:
        """Bytes at so many bytes an element."""
        return self.elements * width + self.fixed_bytes


Weigh = Callable[[Folded, int], Weight]


def weigher(geometry: Geometry, workload: Workload) -> Weigh:
    """How transformers' dynamic cache holds a changed geometry, for so many tokens; found by weighing it twice."""
    engine = load_engine("transformers")
    options = engine.Options()

    def held(folded: Folded, tokens: int, name: str) -> int:
        changed = replace(geometry, layers=tuple(layer for layer, _ in folded))
        size = engine.size(changed, replace(workload, tokens=tokens, k_format=name, v_format=name), options)
        return sum(part.held * count for part, (_, count) in zip(size.layers, folded, strict=True))

    def weigh(folded: Folded, tokens: int) -> Weight:
        narrow, wide = held(folded, tokens, "bfloat16"), held(folded, tokens, "float32")
        return Weight((wide - narrow) // 2, 2 * narrow - wide)

    return weigh


# -- tokens ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """Which tokens a figure is of: the sum of so many times the cache at so many tokens. No deviation: as asked."""

    deviation: Deviation | None
    terms: tuple[tuple[int, int], ...]

    def weight(self, weigh: Weigh, folded: Folded) -> Weight:
        """The weight of those tokens."""
        total = Weight(0, 0)
        for factor, tokens in self.terms:
            total += weigh(folded, tokens).times(factor)
        return total

    @property
    def tokens(self) -> int:
        """The length, where it is one."""
        return self.terms[0][1]


def readings(tokens: int, longest: int | None) -> list[Reading]:
    """The length as asked, and what else may have been meant."""
    found = [Reading(None, ((1, tokens),))]

    def add(key: str, price: int, words: str, *terms: tuple[int, int]) -> None:
        if terms not in [reading.terms for reading in found]:
            found.append(Reading(Deviation(key, "semantics", words, price), terms))

    found += other_thousands(tokens)
    add("one-token", 90, "the figure of one token", (1, 1))
    add("further-token", 110, f"one further token after {tokens:,}", (1, tokens + 1), (-1, tokens))
    if longest is not None:
        add("longest", 120, f"the figure at the model's longest context, {longest:,} tokens", (1, longest))
    return found


def other_thousands(tokens: int) -> list[Reading]:
    """128k read as 128,000 where 131,072 was asked for, or the other way round."""
    for own, other in ((1000, 1024), (1024, 1000)):
        if tokens % own == 0:
            length = tokens // own * other
            words = f"{tokens // own:,}k read as {length:,} tokens"
            return [Reading(Deviation("thousands", "semantics", words, 60), ((1, length),))]
    return []


# -- formats -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Width:
    """Bytes of an element. No deviation: as asked."""

    deviation: Deviation | None
    bytes: Fraction


# What a quantised checkpoint's weights take, by its quant_method or quant_algo: bits with their scales.
WEIGHT_BITS = {"fp8": Fraction(8), "mxfp4": Fraction(17, 4), "nvfp4": Fraction(9, 2)}


def widths(asked: Format, dtype: str | None, config: Mapping[str, Any]) -> list[Width]:
    """The format as asked, and what else may have been counted: of the weights, by the config's dtype, by habit."""
    own = Fraction(asked.block_bytes, asked.block_elements)
    found = [Width(None, own)]

    def add(key: str, price: int, words: str, size: Fraction) -> None:
        if size not in [width.bytes for width in found]:
            found.append(Width(Deviation(key, "mistake", words, price), size))

    for name, bits in weight_formats(config):
        add("weight-format", 80, f"KV bytes taken from the weights' {name} ({_number(bits)} bits an element)", bits / 8)
    named = dtype == "float32"
    words = "4 bytes an element" + (": the float32 that the checkpoint is kept in" if named else " (float32)")
    add("float32", 60 if named else 130, words, Fraction(4))
    add("16-bit", 100, "2 bytes an element (float16 or bfloat16)", Fraction(2))
    add("8-bit", 120, "1 byte an element (fp8 or int8)", Fraction(1))
    add("4-bit", 140, "half a byte an element (4 bits)", Fraction(1, 2))
    add("q8_0", 150, "llama.cpp's q8_0: 34 bytes for 32 elements", Fraction(34, 32))
    for size, price in ((own * 8, 210), (Fraction(8), 170)):
        add("bits", price, f"bits counted as bytes: {_number(size)} for an element", size)
    return found


def _number(value: Fraction) -> str:
    return f"{float(value):g}"


def weight_formats(config: Mapping[str, Any]) -> Iterator[tuple[str, Fraction]]:
    """The weights' own format, as far as quantization_config tells."""
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return
    for key in ("quant_method", "quant_algo"):
        name = str(given.get(key)).lower()
        if name in WEIGHT_BITS:
            yield name, WEIGHT_BITS[name]
    bits = given.get("bits")
    if type(bits) is int and bits in (2, 3, 4, 8):
        yield str(given.get("quant_method")), Fraction(bits)


# -- shares ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the whole a figure is. No deviation: all of it."""

    deviation: Deviation | None
    factor: Fraction


def shares(layers: int, sequences: int) -> list[Share]:
    """All sequences, layers and GPUs together, or less; or something counted twice."""
    twice = "everything twice: K and V counted once more, or twice the KV heads of the released config"
    found = [Share(None, Fraction(1)), Share(Deviation("twice", "mistake", twice, 120), Fraction(2))]
    if sequences > 1:
        words = f"one sequence in place of {sequences:,}"
        found.append(Share(Deviation("batch", "mistake", words, 90), Fraction(1, sequences)))
    if layers > 1:
        found.append(Share(Deviation("one-layer", "semantics", "one layer alone", 130), Fraction(1, layers)))
    for ranks in (2, 4, 8, 16):
        words = f"the share of each of {ranks} GPUs"
        found.append(Share(Deviation("one-gpu", "semantics", words, 150), Fraction(1, ranks)))
    return found


# -- whole figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """A figure of another origin than the plain cache."""

    deviation: Deviation
    bytes: int


def other_moments(geometry: Geometry, workload: Workload) -> Iterator[Whole]:
    """transformers' cache at other moments, and of other kinds."""
    engine = load_engine("transformers")
    dynamic = engine.size(geometry, workload, engine.Options())
    words = "right after the prefill, while windows still hold the whole prompt"
    yield Whole(Deviation("after-prefill", "semantics", words, 95), dynamic.after_prefill_bytes)
    yield Whole(Deviation("peak", "semantics", "the peak of a growing cache", 110), dynamic.peak_bytes)
    try:
        static = engine.size(geometry, workload, engine.Options(cache="static"))
    except KvsizeError:
        return
    yield Whole(Deviation("static", "semantics", "a static cache", 100), static.total_bytes)


# Settings under which engines are asked besides their defaults: (engine, settings, how people say it).
SETTINGS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("vllm", {"disable_hybrid_kv_cache_manager": True}, " without its hybrid manager"),
    ("llama.cpp", {"swa_full": True}, " with --swa-full"),
)


def other_engines(geometry: Geometry, workload: Workload, own: str) -> Iterator[Whole]:
    """What every other engine sets aside for the same request; those that refuse are silent, those that agree one."""
    defaults: list[tuple[str, dict[str, Any], str]] = [(name, {}, "") for name in ENGINES if name != own]
    found: dict[int, list[str]] = {}
    for name, settings, words in (*defaults, *(row for row in SETTINGS if row[0] in ENGINES)):
        try:
            size = load_engine(name).size(geometry, workload, engine_options(name, settings))
        except KvsizeError:
            continue
        found.setdefault(size.total_bytes, []).append(f"{ENGINE_NAMES.get(name, name)} {size.version}{words}")
    for total, names in found.items():
        words = f"what {_listed(names)} set{'' if len(names) > 1 else 's'} aside"
        yield Whole(Deviation("engine", "semantics", words, 95), total)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def with_weights(true_bytes: int, weight_bytes: int | None) -> Iterator[Whole]:
    """The weights counted too, or alone."""
    if weight_bytes:
        yield Whole(Deviation("weights", "semantics", "the weights counted too", 120), true_bytes + weight_bytes)
        yield Whole(Deviation("weights-alone", "semantics", "the weights alone, without a cache", 120), weight_bytes)


def missed_keys(config: Mapping[str, Any], workload: Workload) -> Iterator[Whole]:
    """A tool that looks for the sizes outside text_config, misses them, and fills in those of a 7B model."""
    if isinstance(config.get("text_config"), Mapping) and "num_hidden_layers" not in config:
        words = "the keys in text_config missed, and 32 layers of hidden_size 4,096 filled in"
        total = 2 * 32 * 4096 * 2 * workload.tokens * workload.sequences
        yield Whole(Deviation("missed-keys", "mistake", words, 140), total)


def formulas(case: Case) -> Iterator[tuple[Published, int]]:
    """What each published formula says, of those that apply."""
    for formula in PUBLISHED:
        try:
            yield formula, formula.compute(case)
        except InapplicableError:
            continue


def published(case: Case) -> Iterator[Whole]:
    """The figures of published formulas, each once."""
    found: dict[int, list[Published]] = {}
    for formula, said in formulas(case):
        found.setdefault(said, []).append(formula)
    for said, those in found.items():
        others = f" and {len(those) - 1} more" if len(those) > 1 else ""
        words = f"the formula of {those[0].name}{others}: {those[0].arithmetic}"
        yield Whole(Deviation("formula", "mistake", words, 200), said)
