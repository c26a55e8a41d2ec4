"""What comes of holding one printed figure against a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from kvsize.engines import CacheSize
from kvsize.logs.lines import UNITS, Figure

# taken: what other figures are held against; inside, outside: an estimate's range, which contradicts nothing
Status: TypeAlias = Literal["agrees", "contradicts", "taken", "inside", "outside", "not_predicted"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure, what was predicted for it (in bytes, tokens, or its own unit; None: nothing), and why."""

    figure: Figure
    status: Status
    low: Fraction | None = None
    high: Fraction | None = None
    why: str = ""

    @property
    def predicted(self) -> str | None:
        """The prediction, written like the figure."""
        if self.low is None or self.high is None:
            return None
        low, high = written(self.low, self.figure), written(self.high, self.figure)
        return low if low == high else f"{low} … {high}"

    @property
    def difference(self) -> Fraction:
        """Printed less predicted, as little as the printed digits allow; 0 where they meet."""
        if self.low is None or self.high is None:
            return Fraction(0)
        if self.figure.least > self.high:
            return self.figure.least - self.high
        return self.figure.most - self.low if self.figure.most < self.low else Fraction(0)


@dataclass(frozen=True, slots=True)
class Waste:
    """Memory that holds nothing, or the same twice; `flag` would recover it ("" where none does)."""

    what: str
    share: float | None
    bytes: int | None
    flag: str


@dataclass(slots=True)
class Findings:
    """All that was found out about one server under one set of assumptions."""

    verdicts: list[Verdict] = field(default_factory=list)
    waste: list[Waste] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    options: Any = None
    size: CacheSize | None = None

    @property
    def contradictions(self) -> int:
        """Figures that the prediction does not explain."""
        return sum(verdict.status == "contradicts" for verdict in self.verdicts)

    def add(self, verdict: Verdict) -> None:
        """One more."""
        self.verdicts.append(verdict)


def judge(figure: Figure, low: Fraction | int, high: Fraction | int, why: str = "") -> Verdict:
    """Whether what the digits leave open and what is predicted meet."""
    least, most = Fraction(low), Fraction(high)
    meets = figure.least <= most and least <= figure.most
    return Verdict(figure, "agrees" if meets else "contradicts", least, most, why)


def estimate(figure: Figure, low: int, high: int, why: str) -> Verdict:
    """A figure beside an estimated range, which cannot contradict it."""
    meets = figure.least <= high and low <= figure.most
    return Verdict(figure, "inside" if meets else "outside", Fraction(low), Fraction(high), why)


def unpredicted(figure: Figure, why: str = "") -> Verdict:
    """A figure that is shown as printed."""
    return Verdict(figure, "not_predicted", why=why)


def written(value: Fraction, figure: Figure) -> str:
    """A value with the figure's unit and number of decimals."""
    decimals = len(figure.text.partition(".")[2])
    scaled = value / UNITS.get(figure.unit, 1)
    rounded = round(scaled * 10**decimals)
    whole, part = divmod(abs(rounded), 10**decimals)
    text = f"{whole:,}" + (f".{part:0{decimals}}" if decimals else "")
    return f"-{text}" if rounded < 0 else text


def first(count: Callable[[int], Fraction | int], wanted: Fraction | int, low: int, high: int) -> int:
    """The smallest number in low..high at which a growing `count` reaches `wanted`; high + 1 where it never does."""
    end = high + 1
    while low < end:
        middle = (low + end) // 2
        if count(middle) >= wanted:
            end = middle
        else:
            low = middle + 1
    return low
