"""llama.cpp: the longest context that a budget holds, found by bisection on a simple cache and on real ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.engines.llamacpp.buffers import compute_buffer_estimate, mask_bytes, scores_bytes
from kvsize.engines.llamacpp.pool import pool


def cache(cells: int) -> int:
    """1,000 bytes, and 10 a cell."""
    return 1000 + 10 * cells


@given(budget=st.integers(1, 1 << 36), sequences=st.integers(1, 8))
def test_it_fits_and_one_step_more_does_not(budget, sequences):
    unit = 256 * sequences
    found = pool(budget, 100, sequences, cache)
    if found is None:
        assert cache(unit) > budget or cache(2**31 // unit * unit) <= budget
    else:
        assert cache(found.tokens) <= budget < cache(found.tokens + unit)
        assert found.tokens % unit == 0


@pytest.mark.parametrize(("budget", "tokens"), [(3559, None), (3560, 256), (6119, 256), (6120, 512)])
def test_a_budget_that_is_just_enough(budget, tokens):
    found = pool(budget, 100, 1, cache)
    assert (found and found.tokens) == tokens


def test_no_limit_is_no_pool():
    assert pool(cache(2**31), 100, 1, cache) is None
    assert pool(cache(2**31) - 1, 100, 1, cache).tokens == 2**31 - 256


def test_figures_of_a_pool():
    found = pool(1_000_000, 1000, 2, cache)
    assert (found.tokens, found.num_blocks) == (99_840, 390)
    assert found.bytes_per_block == 2560
    assert (found.request_blocks, found.request_bytes) == (4, (1000 + 10 * 2000) // 2)
    assert found.max_concurrency == 99.84


def test_without_flash_attention_scores_are_kept_beside_the_mask():
    sizes = {"hidden": 64, "mlp": 128, "vocab": 256, "heads": 32, "cells": 32_768, "outputs": 1}
    plain, flash = (compute_buffer_estimate(**sizes, flash=on) for on in (False, True))
    assert plain == 4 * 512 * 4 * 64 + scores_bytes(512, 32, 32_768) + mask_bytes(512, 32_768)
    assert flash == 4 * 512 * (3 * 128 + 4 * 64) + mask_bytes(512, 32_768)
