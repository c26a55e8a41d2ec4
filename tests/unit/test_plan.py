"""Bisection over an engine's own function: the next value above must not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.deployment.plan import MAX_SEQUENCES, Capacity, Question, capacity, largest, verdict
from kvsize.ranges import Range


@given(st.integers(0, 10_000), st.integers(1, 9_000))
def test_largest_is_the_last_that_fits(limit, ceiling):
    found = largest(lambda n: n <= limit, ceiling)
    assert found == min(limit, ceiling)


def question(tokens, sequences, low, high):
    """A cache of 10 bytes a token in whole pages of 16 tokens, 1 byte of activations a token."""

    def holds(tokens, sequences, cache_bytes):
        return -(-tokens // 16) * 160 * sequences <= cache_bytes

    def room(tokens, _sequences):
        return Range(low - tokens, high - tokens)

    return Question(
        tokens,
        sequences,
        fits=lambda tokens, sequences: holds(tokens, sequences, room(tokens, sequences).low),
        may_fit=lambda tokens, sequences: holds(tokens, sequences, room(tokens, sequences).high),
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(2000, 3000, "fits"), (1200, 2000, "tight"), (100, 1200, "does_not_fit")]
)
def test_the_verdict_is_kind_only_where_both_ends_are(low, high, expected):
    assert verdict(question(100, 1, low, high)) == expected


@given(st.integers(1, 3000), st.integers(1, 50), st.integers(200, 100_000))
def test_one_more_token_or_sequence_does_not_fit(tokens, sequences, low):
    asked = question(tokens, sequences, low, low)
    found = capacity(asked)
    for value, fits in (
        (found.max_tokens, lambda n: asked.fits(n, sequences)),
        (found.max_sequences, lambda n: asked.fits(tokens, n)),
    ):
        assert not value or fits(value)
        assert value == MAX_SEQUENCES or not fits(value + 1)


def test_nothing_fits_where_nothing_is_left():
    asked = question(100, 1, -5, -1)
    assert verdict(asked) == "does_not_fit"
    assert capacity(asked) == Capacity(0, 0)
