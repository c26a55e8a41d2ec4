"""A figure that is known between two ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """At least `low`, at most `high`; equal where the figure is known. Bytes, unless a name says otherwise."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"a range from {self.low} to {self.high}")

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    @property
    def width(self) -> int:
        """How far the ends lie apart."""
        return self.high - self.low


def exactly(value: int) -> Range:
    """A figure that is known."""
    return Range(value, value)
