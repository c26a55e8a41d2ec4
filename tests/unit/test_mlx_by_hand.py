"""MLX-LM: edges of its rules worked out by hand from mlx-lm@0.32.2 mlx_lm/models/cache.py, and what is said when."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Workload
from kvsize.engines import mlx as engine
from kvsize.engines.mlx.caches import growing, rotating
from kvsize.errors import UsageError
from kvsize.geometry import Attention, Geometry, Heads, IndexKey, Latent, Layer, Sliding

TOKEN = 8 * 256 * 2  # bytes of one token: 8 heads, K and V of 128, bfloat16
FULL = Layer((Attention(Heads(8, 128, 128)),))
NARROW = Layer((Attention(Heads(1, 128, 128)),))
WINDOW = Layer((Attention(Heads(8, 128, 128), Sliding(512)),), kind="sliding_attention")
LATENT = Attention(Latent(512, 64, Heads(16, 192, 128)))
INDEXED = Layer((LATENT, Attention(IndexKey(128))))


def model(*layers: Layer, kind: str = "qwen3") -> Geometry:
    return Geometry(kind, layers, dtype="bfloat16")


def answer(geometry: Geometry, tokens: int = 1000, sequences: int = 1, **options) -> CacheSize:
    return engine.size(geometry, Workload(tokens, sequences), engine.Options(**options))


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "step", "chunk", "cells"),
    [
        (259, 100, None, 456),  # 100, 100, 57: 257 > 256, so 200 and 256 more; the last two fit
        (102, 2048, 101, 256),  # 101 seen are a chunk and not more: no cut before the last token
        (103, 2048, 101, 357),  # 102 seen: cut to 101, and 256 more for the last
    ],
)
def test_cells_of_growing_caches(tokens, step, chunk, cells):
    assert growing(tokens, step, chunk).held == cells


def test_a_million_calls_are_followed_and_no_more():
    """The prompt of 1,000,001 tokens is read in 1,000,000 calls of one token, and its last alone."""
    assert growing(1_000_001, 1).after_prefill == 1_000_192  # 3907 x 256
    with pytest.raises(UsageError, match="1,000,001 calls"):
        growing(1_000_002, 1)


def test_one_token_outgrows_no_ring():
    assert rotating(1, 2048, 128).outgrown == 0
    assert rotating(2, 2048, 128).outgrown == 1  # the prompt's only token, kept by itself


# -- sums --------------------------------------------------------------------------------------------------------------


def test_logical_bytes_are_those_of_the_tokens():
    assert answer(model(FULL, NARROW), 1000, 3).logical_bytes == 3 * 1000 * (TOKEN + TOKEN // 8)
    assert answer(model(INDEXED, kind="deepseek_v32"), 1000).logical_bytes == 1000 * (576 + 256) * 2


def test_the_widest_layer_is_copied_while_it_grows():
    """257 tokens outgrow 256 cells; each layer grows in its turn."""
    assert answer(model(NARROW, FULL), 257, 3).transient_bytes == 3 * 256 * TOKEN
    assert answer(model()).peak_bytes == 0


def test_a_layer_without_an_indexer_gets_one_only_where_every_layer_runs_one():
    own, plain = 1024 * (576 + 256) * 2, 1024 * 576 * 2
    layers = (INDEXED, Layer((LATENT,)))
    for kind, second in (("glm_moe_dsa", own), ("deepseek_v3", plain)):
        assert [layer.held for layer in answer(model(*layers, kind=kind)).layers] == [own, second]
    assert answer(model(layers[1], kind="glm_moe_dsa")).total_bytes == plain


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "cache", "name", "source"),
    [(4999, "prompt cache", "bfloat16", "config"), (5000, "quantized", "4-bit", "given")],
)
def test_a_cache_is_named_by_what_it_is(tokens, cache, name, source):
    found = answer(model(FULL), tokens, kv_bits=4)
    assert (found.cache, found.k_format, found.v_format, found.format_source) == (cache, name, name, source)


@pytest.mark.parametrize(("kind", "evidence"), [("qwen3", "exact"), ("glm4", "derived")])
def test_only_weighed_modules_are_exact(kind, evidence):
    assert answer(model(FULL, kind=kind)).evidence == evidence


def test_sizes_are_even_over_256_tokens():
    assert answer(model(FULL)).step_tokens == 256


@pytest.mark.parametrize("group", [32, 64, 128])
def test_group_sizes(group):
    """8 vectors of 128 for K and V each: packed to 64 bytes, with two bfloat16 a group."""
    found = answer(model(FULL), 5000, kv_bits=4, kv_group_size=group)
    assert found.total_bytes == 5120 * 16 * (64 + 4 * (128 // group))


NOTES = {
    "windows in full": (model(FULL, WINDOW, kind="gemma2"), 100, 1, {}, "in full for gemma2", True),
    "no windows": (model(FULL), 100, 1, {}, "windows in full", False),
    "windows that rotate": (model(FULL, WINDOW, kind="gemma3_text"), 100, 1, {}, "windows in full", False),
    "not quantised yet": (model(FULL), 4999, 1, {"kv_bits": 4}, "sets in at 5,000 tokens", True),
    "quantised": (model(FULL), 5000, 1, {"kv_bits": 4}, "sets in", False),
    "never quantised": (model(FULL), 100, 1, {}, "sets in", False),
    "a request alone": (model(FULL), 100, 1, {}, "equal lengths are assumed", False),
    "two requests": (model(FULL), 100, 2, {}, "equal lengths are assumed", True),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case):
    geometry, tokens, sequences, options, words, said = NOTES[case]
    assert any(words in note for note in answer(geometry, tokens, sequences, **options).notes) == said
