"""llama.cpp: cells, builds, buffers and sentences by hand from llama.cpp@b11434, on both sides of an edge."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Overhead, Workload, llamacpp
from kvsize.engines.llamacpp.buffers import compute_buffer_estimate
from kvsize.engines.llamacpp.context import Context, context
from kvsize.engines.llamacpp.rows import Rows
from kvsize.engines.llamacpp.versions import build
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
)

ROW = 2 * 2 * 64 * 2  # bytes of a cell: K and V, two heads of 64, float16
FULL = Layer((Attention(Heads(2, 64, 64)),))
WINDOW = Layer((Attention(Heads(2, 64, 64), Sliding(512)),), kind="sliding_attention")
NARROW = Layer((Attention(Heads(2, 64, 64), Sliding(64)),), kind="sliding_attention")
CHUNK = Layer((Attention(Heads(2, 64, 64), Chunked(2048)),), kind="chunked_attention")
MLA = Layer((Attention(Latent(512, 64, Heads(16, 192, 128))),))
STATES = Layer((Recurrent("mamba", (State("conv", (64, 4)), State("recurrent", (64, 16)))),), kind="linear_attention")


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    return Geometry(kind, layers, **{"num_attention_heads": 8, "max_tokens": 8192, **fields})


def sized(found: Geometry, tokens: int = 1024, sequences: int = 1, **settings: object) -> CacheSize:
    return llamacpp.size(found, Workload(tokens, sequences), llamacpp.Options(**settings))


# -- contexts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ctx", "batch", "ubatch", "taken"),
    [
        (8192, 2048, 512, 512),
        (8192, 2048, 0, 2048),
        (8192, 256, 512, 256),
        (100, 2048, 512, 100),
    ],
)
def test_a_ubatch_is_at_most_a_batch_and_a_context(n_ctx, batch, ubatch, taken):
    assert context(n_ctx, 1, False, batch, ubatch, build("b11739"), flash=True, hybrid=False).ubatch == taken


def test_batches_of_its_own():
    assert sized(model(FULL), 8192).scratch.ubatch == 512
    assert sized(model(FULL), 8192, n_ubatch=0).scratch.ubatch == 2048


@pytest.mark.parametrize(
    ("n_ctx", "sequences", "per_stream"), [(1, 256, 256), (256, 1, 256), (257, 1, 512), (65_536, 256, 256)]
)
def test_cells_of_a_stream(n_ctx, sequences, per_stream):
    found = context(n_ctx, sequences, False, 2048, 512, build("b11739"), flash=True, hybrid=False)
    assert (found.per_stream, found.streams, found.cells) == (per_stream, sequences, per_stream * sequences)


@pytest.mark.parametrize(
    ("unified", "hybrid", "flash", "per_stream", "streams"),
    [
        (False, False, False, 352, 3),  # 1,000 / 3 = 334 to steps of 32
        (False, False, True, 512, 3),
        (True, False, False, 1024, 1),
        (False, True, False, 1024, 3),
    ],
)
def test_contexts_of_2025(unified, hybrid, flash, per_stream, streams):
    found = context(1000, 3, unified, 2048, 512, build("b6173"), flash=flash, hybrid=hybrid)
    assert (found.per_stream, found.streams) == (per_stream, streams)


@pytest.mark.parametrize(
    ("window", "shared", "old_step", "cells"),
    [
        (100, False, 0, 768),  # 612
        (100, True, 0, 1024),  # 812
        (100, True, 32, 832),
        (10_000, False, 0, 4096),
        (10_000, False, 32, 4000),
        (3488, False, 32, 4000),  # a whole context, which is no multiple of 256
    ],
)
def test_cells_of_a_window(window, shared, old_step, cells):
    found = Context(4000, 1, 3, unified=True, ubatch=512, old_step=old_step)
    assert found.window_cells(window, shared=shared) == cells


@pytest.mark.parametrize(
    ("rows", "swa_full", "cells"),
    [
        (Rows(1, 1), False, 4096),
        (Rows(1, 1, own=True), False, 3 * 4096),
        (Rows(1, 1, window=100), False, 1024),
        (Rows(1, 1, window=100), True, 4096),
        (Rows(1, 1, window=100, own=True), False, 3 * 768),
        (Rows(1, 1, rate=2), False, 2048),
        (Rows(1, 1, rate=128), False, 256),
        (Rows(1, 1, rate=4, own=True), True, 3 * 1024),
    ],
)
def test_cells_of_rows(rows, swa_full, cells):
    assert rows.cells(Context(4096, 1, 3, unified=True, ubatch=512), swa_full=swa_full) == cells


@pytest.mark.parametrize(
    ("settings", "cells"),
    [
        ({"n_ctx": 0}, 8192),
        ({"n_ctx": 1}, 256),
        ({"n_parallel": 256}, 256 * 1024),
        ({"n_parallel": -1, "kv_unified": False, "n_ctx": 8192}, 8192),
        ({"n_ubatch": 0}, 1024),
        ({"n_batch": 1}, 1024),
        ({"n_parallel": 1}, 1024),
    ],
)
def test_settings_at_their_least_and_most(settings, cells):
    assert sized(model(FULL), **settings).total_bytes == cells * ROW


@pytest.mark.parametrize(
    ("settings", "name", "window"),
    [
        ({"n_parallel": -1}, "unified", 4),
        ({"n_parallel": -1, "kv_unified": False}, "streams", 1),
        ({"n_parallel": 4}, "streams", 1),
        ({"n_parallel": 4, "kv_unified": True}, "unified", 4),
    ],
)
def test_who_shares_a_pool(settings, name, window):
    """With a pool for all, a window is as wide as four."""
    found = sized(model(FULL, WINDOW, kind="gemma3_text"), 8192, **settings)
    assert found.cache == name
    streams = 1 if name == "unified" else 4
    assert found.layers[1].held == streams * (512 * window + 512) * ROW


def test_t5_with_one_pool():
    t5 = model(Layer((Attention(Heads(2, 64, 64)), Attention(Heads(2, 64, 64), Encoder()))), kind="t5")
    assert sized(t5, n_parallel=2, kv_unified=True).total_bytes == 2048 * ROW
    assert sized(t5).total_bytes == 1024 * ROW
    with pytest.raises(UnsupportedError, match="no cross attention for llama"):
        sized(model(*t5.layers))


def test_sizes_are_even_over_256_tokens():
    assert sized(model(FULL)).step_tokens == 256


# -- windows of each architecture --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layer", "stated", "window"),
    [
        ("llama4_text", CHUNK, (), 8192),
        ("gemma3_text", CHUNK, (), 2048),
        ("mimo_v2_flash", WINDOW, (), 512),
        ("mimo_v2_flash", Layer((Attention(Heads(2, 64, 64), Sliding(513)),)), (("sliding_window_size", 512),), 512),
        ("mimo_v2_flash", Layer((Attention(Heads(2, 64, 64), Sliding(1)),)), (("sliding_window_size", 1),), 1),
        ("gemma3_text", Layer((Attention(Heads(2, 64, 64), Sliding(513)),)), (("sliding_window_size", 512),), 513),
    ],
)
def test_windows(kind, layer, stated, window):
    """In steps of 256: a window and a ubatch of 512."""
    cells = -(-(window + 512) // 256) * 256
    assert sized(model(layer, kind=kind, stated=stated), 32_768).total_bytes == cells * ROW


# -- builds ------------------------------------------------------------------------------------------------------------


def test_a_window_is_at_least_the_token_itself():
    geometry = model(
        Layer((Attention(Heads(2, 64, 64), Sliding(1)),)), kind="mimo_v2_flash", stated=(("sliding_window_size", 1),)
    )
    assert sized(geometry, 32_768, n_ubatch=255).total_bytes == 256 * ROW


@pytest.mark.parametrize("text", ["b6000", "b6300", "b8560", "6173", "b100000"])
def test_builds_that_are_modelled(text):
    assert sized(model(FULL), version=text).version == f"b{text.removeprefix('b')}"


@pytest.mark.parametrize("text", ["b999", "b1000000", "c6173", "b6173 ", ""])
def test_what_is_no_build(text):
    with pytest.raises(UsageError, match="looks like b11739"):
        sized(model(FULL), version=text)


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        ("b6173", "exact"),
        ("b6174", "derived"),
        ("b8560", "exact"),
        ("b8561", "derived"),
        ("b11433", "derived"),
        ("b11434", "exact"),
        ("b11739", "exact"),
        ("b11740", "derived"),
    ],
)
def test_builds_that_ran(text, evidence):
    assert sized(model(FULL), version=text).evidence == evidence


def test_b11434_wants_one_type_for_a_latent_and_keeps_index_keys():
    latent = model(MLA, kind="deepseek_v3")
    indexed = model(Layer((*MLA.stores, Attention(IndexKey(128)))), kind="deepseek_v32")
    assert sized(latent, version="b11433", cache_type_v="f32").total_bytes == 1024 * 576 * 2
    assert sized(indexed, version="b11434").total_bytes == 1024 * (576 + 128) * 2
    with pytest.raises(UnsupportedError, match="one type for K and V"):
        sized(latent, version="b11434", cache_type_v="f32")
    with pytest.raises(UnsupportedError, match="index caches"):
        sized(indexed, version="b11433")


@pytest.mark.parametrize(
    ("version", "asked", "flash"),
    [
        ("b11739", None, True),
        ("b11739", "auto", True),
        ("b11739", "on", True),
        ("b11739", "off", False),
        ("b6173", None, False),
        ("b6173", "auto", False),
        ("b6173", "on", True),
    ],
)
def test_who_turns_flash_attention_on(version, asked, flash):
    assert sized(model(FULL), version=version, flash_attn=asked).scratch.flash == flash


@pytest.mark.parametrize(
    ("settings", "source"),
    [({}, "default"), ({"cache_type_k": "f16"}, "given"), ({"cache_type_v": "f16"}, "given")],
)
def test_where_the_types_came_from(settings, source):
    assert sized(model(FULL), **settings).format_source == source


@pytest.mark.parametrize(("width", "fits"), [(96, True), (80, False)])
def test_heads_are_whole_blocks_of_32(width, fits):
    found = model(Layer((Attention(Heads(2, width, width)),)))
    if fits:
        assert sized(found, cache_type_k="q8_0").total_bytes == 1024 * 2 * (3 * 34 + 96 * 2)
        return
    for letter in "kv":
        with pytest.raises(UnsupportedError, match=f"a head's {letter.upper()} is no multiple") as caught:
            sized(found, **{f"cache_type_{letter}": "q8_0"})
        assert caught.value.hint == f"Use --cache-type-{letter} f16."


def test_a_latent_s_widths_count_as_well():
    q8 = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    assert sized(model(MLA, kind="deepseek_v3"), **q8).total_bytes == 1024 * 576 // 32 * 34
    for latent in (Latent(512, 48, Heads(16, 192, 128)), Latent(520, 56, Heads(16, 192, 128))):
        with pytest.raises(UnsupportedError, match="is no multiple"):
            sized(model(Layer((Attention(latent),)), kind="deepseek_v3"), **q8)


def test_latents_that_are_cached_as_heads():
    """No MLA in llama.cpp: K of 192 and V of 128 for each of 16 heads, of any two types."""
    found = model(MLA, kind="minicpm3")
    assert sized(found).total_bytes == 1024 * 16 * (192 + 128) * 2
    assert sized(found, cache_type_v="f32").total_bytes == 1024 * 16 * (192 * 2 + 128 * 4)
    narrow = Layer((Attention(Latent(512, 64, Heads(16, 192, 64))),))
    both = model(MLA, narrow, kind="minicpm3")
    assert [layer.held // 2**15 for layer in sized(both).layers] == [320, 256]
    assert [layer.held // 2**15 for layer in sized(both, flash_attn="off").layers] == [320, 320]


def test_an_index_key_beside_a_v_as_wide_as_the_widest():
    narrow, wide = Attention(Heads(2, 64, 64)), Attention(Heads(2, 64, 128))
    found = model(Layer((narrow, Attention(IndexKey(128)))), Layer((wide,)), kind="minimax_m3_vl_text")
    assert [layer.held for layer in sized(found).layers] == [1024 * 2 * (256 + 128 + 128), 1024 * 2 * 384]


def test_layers_without_heads_take_nothing():
    assert sized(model(Layer()), flash_attn="off").total_bytes == 0
    assert [layer.held for layer in sized(model(FULL, Layer()), flash_attn="off").layers] == [1024 * ROW, 512 * ROW]


@pytest.mark.parametrize(
    ("stated", "refused"),
    [
        ((), "kv"),
        ((("attention.key_length", 64),), "v"),
        ((("attention.value_length", 64),), "k"),
        ((("attention.key_length", 64), ("attention.value_length", 64)), ""),
        ((("attention.key_length", 64), ("attention.key_length_swa", 80), ("attention.value_length", 64)), "k"),
    ],
)
def test_widths_that_a_file_does_not_state_are_the_layers(stated, refused):
    """Two heads of 80: five blocks a cell, and no whole number of them a head."""
    found = model(Layer((Attention(Heads(2, 80, 80)),)), stated=stated)
    for letter in "kv":
        options = {f"cache_type_{letter}": "q8_0"}
        if letter in refused:
            with pytest.raises(UnsupportedError, match=f"a head's {letter.upper()} is no multiple"):
                sized(found, **options)
        else:
            assert sized(found, **options).total_bytes == 1024 * (160 * 2 + 5 * 34)


def test_a_latent_s_k_is_its_rank_and_its_rope():
    found = model(Layer((Attention(Latent(520, 56, Heads(16, 192, 128))),)), kind="deepseek_v3")
    assert sized(found, version="b8560", cache_type_k="q8_0").total_bytes == 1024 * 18 * 34


def test_what_qwen_4_s_n_grams_keep():
    """Four columns of 64 as they are beside the convolution's three; tokens of 64 bits are cells of their own."""
    states = (State("conv", (128, 4)), State("recurrent", (4, 16, 16)), State("conv", (64, 4)))
    grams = State("recurrent", (3,), "int64")
    found = model(Layer((Recurrent("gated_delta", (*states, grams)),)), kind="qwen4_exp_text")
    assert sized(found).total_bytes == 4 * (128 * 3 + 4 * 16 * 16 + 64 * 4)


@pytest.mark.parametrize(("dim", "elements"), [(257, 384), (129, 192)])
def test_index_keys_that_glm_5_next_pools(dim, elements):
    found = model(Layer((*MLA.stores, Attention(IndexKey(dim)))), kind="glm5_next_text")
    assert sized(found).total_bytes == 1024 * (576 + elements) * 2


# -- placement, states, drafting ---------------------------------------------------------------------------------------


def test_without_offloading_all_caches_are_the_host_s():
    found = sized(model(FULL, FULL), kv_offload=False)
    assert found.host_bytes == found.total_bytes == 2 * 1024 * ROW


@pytest.mark.parametrize(("sequences", "ahead", "copies"), [(1, 0, 1), (3, 0, 3), (1, 2, 3), (3, 2, 9)])
def test_states_are_kept_for_each_sequence_and_token_ahead(sequences, ahead, copies):
    conv, wide = State("conv", (64, 4)), State("recurrent", (4, 16, 16))
    found = model(Layer((Recurrent("gated_delta", (conv, wide)),)), kind="qwen3_5_text")
    size = sized(found, 1024, sequences, num_speculative_tokens=ahead)
    assert size.total_bytes == copies * 4 * (64 * 3 + 4 * 16 * 16)


def test_other_states_do_not_roll_back():
    one, drafting = (sized(model(STATES, kind="mamba"), num_speculative_tokens=n).total_bytes for n in (0, 2))
    assert one == drafting == 4 * (64 * 3 + 64 * 16)


def test_cells_that_a_sequence_attends_to():
    found = model(FULL, WINDOW, NARROW, kind="gemma3_text")
    assert sized(found, 8192).scratch.cells == 8192 + 1024
    assert sized(found, 8192, swa_full=True).scratch.cells == 8192
    assert sized(found, 8192, 2).scratch.cells == 8192 + 1024
    assert sized(found, 8192, 2, kv_unified=True).scratch.cells == 16_384 + 1536
    assert sized(model(FULL, num_attention_heads=None)).scratch.heads == 0


@pytest.mark.parametrize(("sequences", "ahead"), [(1, 0), (2, 0), (1, 2), (2, 2)])
def test_compressors_are_in_the_peak_and_no_cache(sequences, ahead):
    """A window of 128 beside one entry for 4 tokens (and its index) and for 128: cells of 512, 512, 128 and 512."""
    layers = (
        Layer((Compressed(512, 128, 4, overlap=True, index_dim=128),)),
        Layer((Compressed(512, 128, 128, overlap=False),)),
    )
    found = sized(model(*layers, kind="deepseek_v4"), 8192, sequences, num_speculative_tokens=ahead)
    raw, csa, hca = 768 * 512, 2048 * (512 + 128), 256 * 512
    assert found.total_bytes == sequences * 2 * (2 * raw + csa + hca)
    carried = 2 * 2 * (512 + 128) * 2 * 4 + 2 * 512 * 128
    kept = sequences * (1 + ahead) * 4 * carried
    assert found.transient_bytes == kept
    assert any(f"{kept:,} bytes of compressor states" in note for note in found.notes)


def test_drafting_layers():
    found = model(FULL, kind="glm4_moe", drafts=(FULL,))
    assert sized(found).overheads == ()
    assert sized(found, num_speculative_tokens=1).overheads == (Overhead("cache for drafting", 1024 * ROW),)
    assert sized(found, num_speculative_tokens=1, cache_type_k="q8_0").overhead_bytes == 1024 * ROW
    gemma = model(FULL, kind="gemma4_text", drafts=(FULL,))
    assert sized(gemma, num_speculative_tokens=1).overhead_bytes == 1024 * ROW


# -- the compute buffer ------------------------------------------------------------------------------------------------

WIDTHS = {"hidden": 64, "mlp": 128, "vocab": 1000, "heads": 8, "cells": 1024}
MASK = 2 * 512 * 1024


@pytest.mark.parametrize(
    ("settings", "bytes_"),
    [
        ({}, 4 * 512 * 1000 + 4 * 512 * 4 * 64 + MASK),
        ({"outputs": 1}, 4 * 512 * (3 * 128 + 4 * 64) + MASK),
        ({"outputs": 400}, 4 * 400 * 1000 + 4 * 512 * 4 * 64 + MASK),
        ({"outputs": 1, "ubatch": 256}, 4 * 256 * (3 * 128 + 4 * 64) + MASK // 2),
        ({"flash": False}, 4 * 512 * 4 * 64 + 4 * 512 * 9 * 1024 + MASK),
        ({"flash": False, "cells": 64}, 4 * 512 * 1000 + 4 * 512 * 4 * 64 + MASK // 16),
        ({"index_heads": 3}, 4 * 512 * 1000 + 4 * 512 * 4 * 64 + 4 * 512 * 3 * 1024 + MASK),
        ({"devices": 2}, 4 * 512 * 1000 + 4 * 512 * 4 * 64 + 4 * MASK + 3 * 4 * 512 * 64),
    ],
)
def test_a_compute_buffer(settings, bytes_):
    assert compute_buffer_estimate(**{**WIDTHS, **settings}) == bytes_


# -- words -------------------------------------------------------------------------------------------------------------

PADDED, LONG, IGNORED = "contexts are padded", "does not fit", "ignores this model's window"
SCORES, FORCED, OTHERS = "not counted: without flash attention", "flash attention is off", "those of --parallel"
CASES = [
    (model(FULL), {}, OTHERS, None),
    (model(FULL), {"n_parallel": 2}, OTHERS, "2 sequences, not 1"),
    (model(FULL), {}, PADDED, None),
    (model(FULL), {"tokens": 1000}, PADDED, "1,000 tokens take 1,024 cells:"),
    (model(FULL), {"tokens": 1000, "sequences": 2}, PADDED, "2,000 tokens take 2,048 cells, 1,024 for each of 2"),
    (model(FULL), {"n_ctx": 1000}, PADDED, "1,000 tokens take 1,024 cells:"),
    (model(FULL, max_tokens=1000), {"n_ctx": 0}, PADDED, None),
    (model(STATES, kind="mamba"), {"tokens": 1000}, PADDED, None),
    (model(STATES, FULL, kind="jamba"), {"tokens": 1000}, PADDED, "1,000 tokens take 1,024 cells:"),
    (model(FULL), {"tokens": 1024, "n_ctx": 1024}, LONG, None),
    (model(FULL), {"tokens": 1025, "n_ctx": 1024}, LONG, "one sequence has 1,024 cells: a request of 1,025 tokens"),
    (model(STATES, kind="mamba"), {"tokens": 1025, "n_ctx": 1024}, LONG, None),
    (model(FULL), {}, IGNORED, None),
    (model(FULL, NARROW, WINDOW), {}, IGNORED, "window of 512 tokens"),
    (model(FULL, CHUNK, WINDOW), {}, IGNORED, "window of 2,048 tokens"),
    (model(FULL, WINDOW, kind="gemma3_text"), {}, IGNORED, None),
    (model(FULL), {}, SCORES, None),
    (model(FULL), {"flash_attn": "off"}, SCORES, f"{4 * 512 * 9 * 1024:,} bytes of scores"),
    (model(FULL), {"flash_attn": "off", "sequences": 2}, SCORES, f"{4 * 512 * 9 * 1024:,} bytes of scores"),
    (model(FULL, num_attention_heads=None), {"flash_attn": "off"}, SCORES, None),
    (model(STATES, kind="mamba"), {"flash_attn": "off"}, SCORES, None),
    (model(FULL), {"flash_attn": "off"}, FORCED, None),
    (model(FULL, kind="grok-1"), {}, FORCED, "cannot use it with grok"),
    (model(FULL, kind="grok-1"), {"flash_attn": "off"}, FORCED, None),
    (model(FULL), {}, "compressor states", None),
    (model(FULL), {"flash_attn": "off"}, "as wide as the widest", None),
]


@pytest.mark.parametrize(("found", "settings", "about", "words"), CASES)
def test_what_is_said(found, settings, about, words):
    """The sentence about something, or none."""
    said = [note for note in sized(found, **settings).notes if about in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
