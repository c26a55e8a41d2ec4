"""Will it fit, how much fits, and what would make it fit: pure functions over an engine's own answers.

Capacity is never a division. Everything asks one question, which the engine itself answers, and bisects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["fits", "tight", "does_not_fit", "unknown"]
Fits: TypeAlias = Callable[[int, int], bool]

# No request is longer, no batch larger; bisection stops here.
MAX_TOKENS = 2**30
MAX_SEQUENCES = 2**20


@dataclass(frozen=True, slots=True)
class Question:
    """One workload on one rank: `fits(tokens, sequences)` for certain, `may_fit` at the kind end of the estimates."""

    tokens: int
    sequences: int
    fits: Fits
    may_fit: Fits
    max_tokens: int = MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Capacity:
    """The longest context at these sequences, and the most sequences at this context: what fits for certain."""

    max_tokens: int
    max_sequences: int


def verdict(question: Question) -> Verdict:
    """Whether it fits: for certain, only at the kind end of what is estimated, or not."""
    tokens, sequences = question.tokens, question.sequences
    if question.fits(tokens, sequences):
        return "fits"
    return "tight" if question.may_fit(tokens, sequences) else "does_not_fit"


def capacity(question: Question) -> Capacity:
    """Both capacities; many questions to the engine, where a verdict takes one or two."""
    return Capacity(longest(question), most(question))


def longest(question: Question) -> int:
    """The most tokens that `sequences` requests can have; 0 if not even one token fits."""
    return largest(lambda tokens: question.fits(tokens, question.sequences), question.max_tokens)


def most(question: Question) -> int:
    """The most requests of `tokens` tokens; 0 if not even one fits."""
    return largest(lambda sequences: question.fits(question.tokens, sequences), MAX_SEQUENCES)


def largest(fits: Callable[[int], bool], ceiling: int) -> int:
    """The largest n in 1 … ceiling for which a falling predicate holds; 0 if it never does."""
    if not fits(1):
        return 0
    good = 1
    while good < ceiling and fits(min(2 * good, ceiling)):
        good = min(2 * good, ceiling)
    if good == ceiling:
        return ceiling
    bad = min(2 * good, ceiling)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
