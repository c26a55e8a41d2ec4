"""MLX-LM's rules one by one, and what must hold for every request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.engines import Workload
from kvsize.engines import mlx as engine
from kvsize.engines.mlx.caches import growing, quantized_bytes, rotating
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Read,
    Recurrent,
    Sliding,
    State,
)

HEADS = Heads(8, 128, 128)
TOKEN = 8 * 256 * 2
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(512)),), kind="sliding_attention")
MLA = Latent(512, 64, Heads(16, 192, 128))


def model(*layers, kind="qwen3", **rest):
    return Geometry(kind, layers, dtype="bfloat16", **rest)


def answer(geometry, tokens=1000, sequences=1, kv="auto", **options):
    return engine.size(geometry, Workload(tokens, sequences, kv, kv), engine.Options(**options))


def held(geometry, tokens=1000, **options):
    return [layer.held for layer in answer(geometry, tokens, **options).layers]


@pytest.mark.parametrize(("tokens", "cells"), [(1, 256), (256, 256), (257, 512), (2049, 2304), (32_768, 32_768)])
def test_a_cache_grows_in_steps_of_256(tokens, cells):
    assert held(model(FULL), tokens) == [cells * TOKEN]


def test_a_call_off_the_step_cuts_the_buffer_first():
    assert growing(303, 100).held == 456  # 200 seen, cut to 200, 256 more


def test_old_and_new_buffer_live_together_while_growing():
    size = answer(model(FULL), 257)
    assert size.peak_bytes == (512 + 256) * TOKEN


@pytest.mark.parametrize(
    ("tokens", "limit", "held_cells", "read"),
    [
        (1, 128, 128, 128),  # one token: the whole ring at once
        (300, 128, 128, 299),  # the prompt's only call is kept whole
        (300, 1024, 298 + 256, 299),  # below the limit the ring still grows by 256
        (5000, 1024, 1024, 1023 + 903),  # the last of three calls behind limit - 1 cells
    ],
)
def test_a_rotating_cache_keeps_a_prompts_calls_whole(tokens, limit, held_cells, read):
    cells = rotating(tokens, 2048, limit)
    assert (cells.held, cells.after_prefill) == (held_cells, read)


@pytest.mark.parametrize(("tokens", "cells"), [(512, 512), (513, 768), (602, 768), (10_000, 768)])
def test_a_chunked_cache_is_cut_to_its_chunk_before_every_call(tokens, cells):
    assert growing(tokens, 2048, 512).held == cells


def test_windows_rotate_where_the_module_makes_its_own_caches():
    assert held(model(WINDOW, kind="gemma3_text"), 5000) == [512 * TOKEN]
    assert held(model(WINDOW, kind="gemma2"), 5000) == [5120 * TOKEN]
    assert any("in full for gemma2" in note for note in answer(model(WINDOW, kind="gemma2")).notes)


def test_llama_rotates_only_where_the_file_lists_layer_types():
    listed = (Read("$.layer_types", "[…]", "config"),)
    assert held(model(WINDOW, kind="llama"), 5000) == [5120 * TOKEN]
    assert held(model(WINDOW, kind="llama", reads=listed), 5000) == [512 * TOKEN]


def test_mimo_takes_the_window_as_the_file_states_it():
    geometry = model(WINDOW, kind="mimo_v2_flash", stated=(("sliding_window_size", 128),))
    assert held(geometry, 5000) == [128 * TOKEN]


def test_chunks_of_llama_4():
    chunked = Layer((Attention(HEADS, Chunked(8192)),))
    assert held(model(chunked, kind="llama4_text"), 20_000) == [(8192 + 256) * TOKEN]


@pytest.mark.parametrize(("kind", "cells"), [("qwen3", 128), ("llama", 5120), ("gemma3_text", 5120)])
def test_max_kv_size_counts_for_modules_without_caches_of_their_own(kind, cells):
    size = answer(model(FULL, kind=kind), 5000, max_kv_size=128)
    assert size.total_bytes == cells * TOKEN
    assert any("ignores --max-kv-size" in note for note in size.notes) == (cells != 128)


def test_latents_are_kept_or_decompressed():
    layer = Layer((Attention(MLA),))
    assert held(model(layer, kind="deepseek_v3")) == [1024 * 576 * 2]
    assert held(model(layer, kind="deepseek_v2")) == [1024 * 16 * 320 * 2]


def test_an_indexer_is_a_second_cache_with_empty_values():
    own = Layer((Attention(MLA), Attention(IndexKey(128))))
    assert held(model(own, kind="deepseek_v32")) == [1024 * (576 + 256) * 2]


def test_layers_that_share_an_indexer_run_their_own():
    own, shared = Layer((Attention(MLA), Attention(IndexKey(128)))), Layer((Attention(MLA),))
    first, second = held(model(own, shared, kind="glm_moe_dsa"))
    assert first == second


def test_sharing_layers_keep_nothing():
    reader = Layer(FULL.stores, shares=0)
    assert held(model(FULL, reader, kind="gemma3n_text")) == [1024 * TOKEN, 0]


@pytest.mark.parametrize(
    ("kind", "store", "want"),
    [
        (
            "granitemoehybrid",
            Recurrent("mamba2", (State("conv", (3328, 4)), State("recurrent", (48, 64, 128), "float32"))),
            1_592_832,
        ),
        ("lfm2", Recurrent("short_conv", (State("conv", (2048, 3)),)), 8192),
        ("mamba", Recurrent("mamba", (State("conv", (128, 4)), State("recurrent", (128, 16), "float32"))), 768 + 4096),
    ],
)
def test_states_do_not_grow(kind, store, want):
    assert held(model(Layer((store,)), kind=kind), 1) == held(model(Layer((store,)), kind=kind), 9000) == [want]


# -- quantised ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "group", "want"), [(8, 64, 136), (4, 64, 72), (4, 32, 80), (2, 128, 36)])
def test_a_vector_carries_a_scale_and_a_bias_a_group(bits, group, want):
    assert quantized_bytes(128, bits, group, 2) == want


def test_a_group_that_does_not_divide_is_refused():
    with pytest.raises(UnsupportedError, match="do not divide vectors of 80"):
        quantized_bytes(80, 4, 64, 2)


def test_quantisation_sets_in_at_its_start():
    assert held(model(FULL), 4999, kv_bits=8) == [5120 * TOKEN]
    assert held(model(FULL), 5000, kv_bits=8) == [5120 * 8 * 2 * 136]
    assert answer(model(FULL), 5000, kv_bits=8).k_format == "8-bit"
    assert any("sets in at 5,000" in note for note in answer(model(FULL), 100, kv_bits=8).notes)


@pytest.mark.parametrize(
    ("geometry", "words"),
    [
        (model(WINDOW, kind="gemma3_text"), "RotatingKVCache"),
        (model(Layer((Attention(MLA),)), kind="deepseek_v3"), "latent"),
        (model(FULL, kind="gemma2"), "gemma2"),
    ],
)
def test_caches_that_cannot_be_quantised_are_refused(geometry, words):
    with pytest.raises(UnsupportedError, match=words):
        answer(geometry, 6000, kv_bits=4)


def test_a_rotating_limit_cannot_be_quantised():
    with pytest.raises(UnsupportedError, match="RotatingKVCache"):
        answer(model(FULL), 6000, kv_bits=4, max_kv_size=1024)


def test_chunks_lists_and_states_are_passed_over():
    chunked = Layer((Attention(HEADS, Chunked(512)),))
    assert held(model(chunked, kind="llama4_text"), 6000, kv_bits=4) == [768 * TOKEN]
    size = answer(model(FULL, kind="falcon_h1"), 6000, kv_bits=4)
    assert size.total_bytes == 6144 * TOKEN
    assert any("passes over" in note for note in size.notes)


# -- refusals and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "words"),
    [
        (model(FULL, kind="t5"), "no rule here for t5"),
        (model(Layer((Attention(HEADS, Encoder()),))), "encoder"),
        (model(Layer((Attention(Heads(1, 512, 0)),))), "K and V at once"),
        (model(Layer((Recurrent("rwkv", (State("conv", (8, 1)),)),))), "rwkv"),
    ],
)
def test_what_is_not_modelled_is_refused(geometry, words):
    with pytest.raises(UnsupportedError, match=words):
        answer(geometry)


@pytest.mark.parametrize("kv", ["fp8_e4m3", "q8_0", "int8"])
def test_only_activation_formats(kv):
    with pytest.raises(UnsupportedError, match="activations"):
        answer(model(FULL), kv=kv)


@pytest.mark.parametrize("wrong", [{"kv_bits": 3}, {"kv_group_size": 48}, {"prefill_step_size": 0}, {"max_kv_size": 0}])
def test_settings_out_of_bounds_are_usage_errors(wrong):
    with pytest.raises(UsageError):
        engine.Options(**wrong)


def test_a_prompt_in_endless_calls_is_refused():
    with pytest.raises(UsageError, match="too many to follow"):
        answer(model(FULL), 2**30, prefill_step_size=1)


def test_without_a_dtype_the_widest_is_assumed():
    size = engine.size(Geometry("qwen3", (FULL,)), Workload(1000), engine.Options())
    assert size.k_format == "float32"
    assert "assumed" in size.format_source


def test_another_release_is_derived():
    size = answer(model(FULL), version="0.30.0")
    assert size.evidence == "derived"
    assert any("only mlx-lm 0.32.2 was checked" in note for note in size.notes)


# -- properties --------------------------------------------------------------------------------------------------------

GEOMETRIES = st.sampled_from(
    [
        model(FULL, FULL),
        model(FULL, WINDOW, kind="gemma3_text"),
        model(Layer((Attention(HEADS, Chunked(512)),)), FULL, kind="llama4_text"),
        model(Layer((Attention(MLA),)), kind="deepseek_v3"),
    ]
)


@given(geometry=GEOMETRIES, tokens=st.integers(1, 20_000))
def test_a_cache_never_shrinks_while_it_grows(geometry, tokens):
    here, more = answer(geometry, tokens), answer(geometry, tokens + 1)
    assert here.total_bytes <= more.total_bytes
    assert here.logical_bytes <= more.logical_bytes
    assert here.logical_bytes <= here.total_bytes <= here.peak_bytes


@given(tokens=st.integers(1, 20_000), step=st.sampled_from([256, 512, 2048, 4096]))
def test_with_steps_of_whole_blocks_a_cache_is_padded_to_256(tokens, step):
    assert growing(tokens, step).held == -(-tokens // 256) * 256


@given(tokens=st.integers(1, 5000), step=st.integers(1, 3000))
def test_whatever_the_step_all_tokens_have_a_cell(tokens, step):
    cells = growing(tokens, step)
    assert cells.held >= tokens
    assert cells.after_prefill >= tokens - 1


@given(tokens=st.integers(1, 20_000), limit=st.integers(1, 8192))
def test_a_rotating_cache_stays_within_its_limit(tokens, limit):
    assert min(tokens, limit) <= rotating(tokens, 2048, limit).held <= limit


@given(tokens=st.integers(1, 9000), sequences=st.integers(1, 16))
def test_sequences_multiply(tokens, sequences):
    geometry = model(FULL, WINDOW, kind="gemma3_text")
    assert answer(geometry, tokens, sequences).total_bytes == sequences * answer(geometry, tokens).total_bytes
