"""Bytes as people read them: one unit a column, decimals that line up, and never a float."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of memory; bytes are shown whole, everything else with two decimals."""

    name: str
    size: int

    def number(self, value: int) -> str:
        """The figure alone, rounded half up: 10.41."""
        if self.size == 1:
            return f"{value:,}"
        hundredths = (abs(value) * 200 + self.size) // (2 * self.size)
        whole, rest = divmod(hundredths, 100)
        return f"{'-' if value < 0 else ''}{whole:,}.{rest:02}"

    def text(self, value: int) -> str:
        """The figure with its unit: 10.41 GiB."""
        return f"{self.number(value)} {self.name}"


BYTE = Unit("B", 1)
UNITS = (Unit("TiB", 2**40), Unit("GiB", 2**30), Unit("MiB", 2**20), Unit("KiB", 2**10), BYTE)


def unit_for(values: Iterable[int], *, exact: bool = False) -> Unit:
    """The unit of a column: the largest in which its largest figure is at least 1."""
    largest = max((abs(value) for value in values), default=0)
    return BYTE if exact else next((unit for unit in UNITS if largest >= unit.size), BYTE)


def amount(value: int, *, exact: bool = False) -> str:
    """One figure in its own unit."""
    return unit_for((value,), exact=exact).text(value)


def times(part: int, whole: int) -> str:
    """How many times `whole` the part is: 11.9, or 71 from 20 up."""
    tenths = (part * 20 + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10}" if tenths < 200 else f"{(tenths + 5) // 10:,}"
