"""llama.cpp: contexts, types, refusals, placement, notes; and what each GGUF architecture's keys mean."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from gguffile import LLAMA, gguf, metadata

from kvsize.architectures import geometry
from kvsize.architectures.gguf import GGUF
from kvsize.cli import run
from kvsize.engines import CacheSize, Workload, llamacpp
from kvsize.engines.llamacpp import archs, versions
from kvsize.engines.llamacpp.context import context
from kvsize.errors import ConfigError, UnknownArchitectureError, UnsupportedError, UsageError
from kvsize.geometry import Attention, Chunked, Full, Geometry, Heads, IndexKey, Layer, Recurrent, Sliding
from kvsize.gguf_names import NAMES

PLAIN = {
    "block_count": 4,
    "context_length": 8192,
    "embedding_length": 256,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}
MLA = {
    **PLAIN,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.kv_lora_rank": 512,
}
SSM = {"ssm.inner_size": 512, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.time_step_rank": 8, "ssm.group_count": 2}


def model(arch: str = "llama", base: dict | None = None, **keys: object) -> Geometry:
    """A small model; keys with __ for the dot."""
    given = {key.replace("__", "."): of for key, of in keys.items()}
    return geometry(metadata(arch, {**(PLAIN if base is None else base), **given}))


def sized(found: Geometry, tokens: int = 1024, sequences: int = 1, **settings: object) -> CacheSize:
    return llamacpp.size(found, Workload(tokens, sequences), llamacpp.Options(**settings))


# -- contexts ----------------------------------------------------------------------------------------------------------

MODERN = versions.build("b11739")
OLD = versions.build("b6173")


@pytest.mark.parametrize(
    ("n_ctx", "sequences", "unified", "per_stream", "streams"),
    [
        (8192, 1, False, 8192, 1),
        (1000, 1, False, 1024, 1),
        (1000, 8, False, 256, 8),  # "rounding down", says the log, and takes 2,048 cells
        (8192, 3, False, 2816, 3),
        (8192, 3, True, 8192, 1),
        (1, 200, False, 256, 200),
    ],
)
def test_contexts_are_padded_and_divided(n_ctx, sequences, unified, per_stream, streams):
    found = context(n_ctx, sequences, unified, 2048, 512, MODERN, flash=True, hybrid=False)
    assert (found.per_stream, found.streams) == (per_stream, streams)
    assert found.cells == per_stream * streams


@pytest.mark.parametrize(
    ("n_ctx", "sequences", "flash", "hybrid", "per_stream"),
    [
        (2000, 1, False, False, 2016),
        (2000, 1, True, False, 2048),
        (1000, 8, False, False, 128),
        (4096, 4, True, True, 4096),  # a whole context for each sequence
    ],
)
def test_contexts_of_2025(n_ctx, sequences, flash, hybrid, per_stream):
    assert context(n_ctx, sequences, False, 2048, 512, OLD, flash=flash, hybrid=hybrid).per_stream == per_stream


@pytest.mark.parametrize(
    ("window", "sequences", "unified", "ubatch", "cells"),
    [(1024, 1, False, 512, 1536), (128, 1, False, 512, 768), (4096, 4, True, 512, 8192), (512, 4, True, 128, 2304)],
)
def test_windows_take_a_batch_more(window, sequences, unified, ubatch, cells):
    found = context(8192, sequences, unified, 2048, ubatch, MODERN, flash=True, hybrid=False)
    assert found.window_cells(window, shared=unified) == cells


def test_a_window_of_2025_was_padded_inside():
    found = context(8192, 1, False, 2048, 512, OLD, flash=False, hybrid=False)
    assert found.window_cells(128, shared=False) == 640


@pytest.mark.parametrize(
    ("settings", "cells"),
    [
        ({}, 2048),  # two sequences of 1,024 tokens
        ({"n_ctx": 4096}, 4096),
        ({"n_ctx": 0}, 8192),
        ({"n_parallel": 1}, 1024),
        ({"n_parallel": -1}, 4096),
        ({"n_parallel": -1, "n_ctx": 8192}, 8192),
    ],
)
def test_who_sets_the_context(settings, cells):
    per_cell = 4 * 2 * 2 * 32 * 2  # layers, heads, K and V, width, bytes
    assert sized(model(), 1024, 2, **settings).total_bytes == cells * per_cell


@given(tokens=st.integers(1, 20_000), sequences=st.integers(1, 9), unified=st.booleans(), full=st.booleans())
def test_more_tokens_never_take_less(tokens, sequences, unified, full):
    found = model("gemma3", attention__sliding_window=512)
    less, more = (
        sized(found, count, sequences, kv_unified=unified, swa_full=full).total_bytes for count in (tokens, tokens + 97)
    )
    assert less <= more
    assert less >= sized(found, tokens, 1).total_bytes


# -- types and refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "per_block"), [("f16", 64), ("bf16", 64), ("f32", 128), ("q8_0", 34), ("q5_1", 24), ("iq4_nl", 18)]
)
def test_each_type_has_its_blocks(name, per_block):
    assert sized(model(), cache_type_k=name, cache_type_v=name).total_bytes == 1024 * 4 * 2 * 2 * per_block


def test_kv_dtype_and_cache_types_mean_the_same():
    one = llamacpp.size(model(), Workload(1024, 1, "q8_0", "q5_0"), llamacpp.Options())
    assert one == sized(model(), cache_type_k="q8_0", cache_type_v="q5_0")
    assert (one.k_format, one.v_format, one.format_source) == ("q8_0", "q5_0", "given")
    with pytest.raises(UsageError, match="contradict"):
        llamacpp.size(model(), Workload(1024, 1, "q8_0", "q8_0"), llamacpp.Options(cache_type_k="f16"))


@pytest.mark.parametrize(
    ("found", "settings", "says"),
    [
        (model(), {"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention, and it is off"),
        (model("grok"), {"cache_type_v": "q8_0"}, "grok cannot use it"),
        (model("phi2", embedding_length=640), {"cache_type_k": "q8_0"}, "head's K is no multiple"),
        (model(attention__value_length=80), {"cache_type_v": "q4_0"}, "head's V is no multiple"),
        (model("deepseek2", MLA), {"cache_type_k": "q8_0"}, "one type for K and V"),
        (model(), {"cache_type_k": "fp8"}, "no cache of fp8_e4m3"),
        (model("t5"), {"n_parallel": 2}, "aborts on T5"),
        (model(), {"n_parallel": 257}, "at most 256 sequences"),
        (model(attention__key_length=7), {"cache_type_k": "q8_0", "flash_attn": "off"}, "no whole number of q8_0"),
        (Geometry("blt", ()), {}, "no architecture for blt"),
    ],
)
def test_what_llama_cpp_refuses(found, settings, says):
    with pytest.raises(UnsupportedError, match=says) as caught:
        sized(found, **settings)
    assert caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        {"flash_attn": "maybe"},
        {"n_ctx": -1},
        {"n_batch": 0},
        {"n_ubatch": -1},
        {"n_parallel": 0},
        {"n_parallel": -2},
        {"cache_type_k": "q9"},
        {"version": "5.23"},
        {"num_speculative_tokens": -1},
    ],
)
def test_settings_that_mean_nothing(settings):
    with pytest.raises(UsageError):
        sized(model(), **settings)


def test_a_context_that_nobody_names():
    with pytest.raises(UsageError, match="names none"):
        sized(model(context_length=None), n_ctx=0)


def test_k_alone_may_be_quantised_without_flash_attention():
    assert sized(model(), cache_type_k="q8_0", flash_attn="off").total_bytes == 1024 * 4 * 2 * (34 + 64)


def test_an_mla_model_keeps_k_only():
    found = model("deepseek2", MLA)
    assert sized(found).total_bytes == 1024 * 4 * 576 * 2
    assert sized(found, flash_attn="off").total_bytes == 1024 * 4 * 576 * 2
    assert sized(found, version="b6173").total_bytes == 1024 * 4 * (576 + 512) * 2
    assert sized(found, version="b8560", cache_type_v="f32").total_bytes == 1024 * 4 * 576 * 2


def test_a_missing_value_length_counts_although_no_v_is_kept():
    found = model("kimi-linear", {**MLA, "kda.head_dim": 32, "ssm.conv_kernel": 4}, attention__value_length=None)
    with pytest.raises(UnsupportedError, match="no multiple"):
        sized(
            replace(found, stated=(), hidden_size=2304, num_attention_heads=32),
            cache_type_k="q8_0",
            cache_type_v="q8_0",
        )


def test_without_flash_attention_v_is_as_wide_as_the_widest():
    found = model("openelm", attention__head_count_kv=[1, 2, 3, 4])
    assert sized(found).total_bytes == 1024 * 32 * 2 * (10 + 10)
    off = sized(found, flash_attn="off")
    assert off.total_bytes == 1024 * 32 * 2 * (10 + 16)
    assert any(f"{1024 * 32 * 2 * 6:,} bytes more" in note for note in off.notes)


def test_layers_without_heads_then_get_a_v_of_their_own():
    found = model("deci", attention__head_count_kv=[2, 0, 2, 0])
    assert sized(found).total_bytes == 1024 * 32 * 2 * 8
    assert [layer.held for layer in sized(found, flash_attn="off").layers] == [262144, 131072, 262144, 131072]


# -- builds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", ["b5999", "b6301", "b8559", "7000"])
def test_builds_whose_rules_nobody_knows(build):
    with pytest.raises(UnsupportedError, match="are not known") as caught:
        sized(model(), version=build)
    assert "b8560" in str(caught.value.hint)


def test_what_an_old_build_could_not_load():
    with pytest.raises(UnsupportedError, match="b6173 has no architecture gemma4"):
        sized(
            model("gemma4", attention__sliding_window=512, attention__sliding_window_pattern=[1, 1, 1, 0]),
            version="b6173",
        )


def test_index_caches_changed_until_b11434():
    found = model("deepseek32", {**MLA, "attention.indexer.key_length": 128})
    assert sized(found).total_bytes == 1024 * 4 * (576 + 128) * 2
    with pytest.raises(UnsupportedError, match=r"index caches of llama\.cpp b8560"):
        sized(found, version="b8560")


@pytest.mark.parametrize(
    ("arch", "build", "evidence"),
    [
        ("llama", "b11739", "exact"),
        ("llama", "b11500", "exact"),
        ("llama", "b9000", "derived"),
        ("llama", "b12000", "derived"),
    ],
)
def test_what_the_figures_stand_on(arch, build, evidence):
    assert sized(model(arch), version=build).evidence == evidence
    assert sized(model("xverse"), version=build).evidence == "derived"


# -- placement, drafting, budgets, notes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu_layers", "host"), [(None, 0), (-1, 0), (99, 0), (5, 0), (4, 1), (1, 4), (0, 4)])
def test_the_output_layer_counts_as_one(gpu_layers, host):
    size = sized(model(), n_gpu_layers=gpu_layers)
    assert [bool(layer.host) for layer in size.layers] == [True] * host + [False] * (4 - host)


def test_drafting_layers_push_others_off_the_gpu():
    found = model("glm4moe", nextn_predict_layers=1)
    assert (len(found.layers), len(found.drafts)) == (3, 1)
    assert [bool(layer.host) for layer in sized(found, n_gpu_layers=3).layers] == [True, True, False]


def test_drafting_has_a_context_of_its_own_and_keeps_states():
    found = model("qwen35", {**PLAIN, **SSM}, block_count=5, nextn_predict_layers=1)
    size = sized(found, num_speculative_tokens=2)
    state = 4 * (3 * (512 + 2 * 2 * 16) + 512 * 16)
    assert [layer.held for layer in size.layers] == [3 * state] * 3 + [1024 * 256]
    assert [(part.name, part.bytes) for part in size.overheads] == [("cache for drafting", 1024 * 256)]
    assert sized(found).total_bytes == 3 * state + 1024 * 256


def test_drafting_layers_of_some_hybrids_lie_with_the_others():
    found = model("granitehybrid", {**PLAIN, **SSM}, nextn_predict_layers=1, attention__head_count_kv=[0, 2, 0, 2])
    assert [part.bytes for part in sized(found).overheads] == [1024 * 256]


def test_drafting_without_a_rule():
    keys = {
        "attention.compress_ratios": [0, 4, 128, 0],
        "attention.indexer.key_length": 128,
        "attention.sliding_window": 128,
    }
    found = geometry(
        {**metadata("deepseek4", {**PLAIN, **keys, "nextn_predict_layers": 1}), "kvsize.draft_tensors": True}
    )
    assert len(found.drafts) == 1
    assert sized(found).overhead_bytes == 768 * 32 * 2
    with pytest.raises(UnsupportedError, match="drafts has no rule"):
        sized(found, num_speculative_tokens=1)


def test_a_file_of_drafting_layers_alone_is_a_model():
    found = model("glm4moe", nextn_predict_layers=4)
    assert (len(found.layers), found.drafts) == (4, ())


@given(budget=st.integers(1, 2**33), sequences=st.integers(1, 5), unified=st.booleans())
def test_a_budget_holds_so_much_and_no_step_more(budget, sequences, unified):
    found = model("gemma3", block_count=6, attention__sliding_window=512)
    pool = sized(found, 1024, sequences, kv_unified=unified, kv_memory=budget).pool
    step = 256 * sequences
    if pool is None:
        least, most = (
            sized(found, 1024, sequences, kv_unified=unified, n_ctx=n).total_bytes for n in (step, 2**31 // step * step)
        )
        assert least > budget or most <= budget
        return
    fits, next_up = (
        sized(found, 1024, sequences, kv_unified=unified, n_ctx=n).total_bytes
        for n in (pool.tokens, pool.tokens + step)
    )
    assert fits <= budget < next_up


def test_a_budget_says_nothing_where_nothing_grows():
    assert sized(model("mamba", {**PLAIN, **SSM}), kv_memory=2**30).pool is None


@pytest.mark.parametrize(
    ("found", "settings", "says"),
    [
        (model(), {"n_ctx": 1000}, "1,000 tokens take 1,024 cells: contexts are padded"),
        (model(), {"n_ctx": 1000, "n_parallel": 8}, "256 for each of 8 sequences"),
        (model(), {"n_ctx": 1024, "n_parallel": 4}, "a request of 1,024 tokens does not fit"),
        (model(attention__sliding_window=4096), {}, "ignores this model's window of 4,096 tokens"),
        (model(), {"flash_attn": "off"}, f"about {4 * 512 * 9 * 1024:,} bytes of scores"),
        (model("grok"), {}, "cannot use it with grok"),
        (model(), {"n_parallel": 3}, "those of --parallel: 3 sequences, not 1"),
    ],
)
def test_notes(found, settings, says):
    assert any(says in note for note in sized(found, **settings).notes)


def test_nothing_is_said_where_nothing_is_odd():
    assert sized(model(), 1024).notes == ()


# -- what the keys of each architecture mean ---------------------------------------------------------------------------


def spans(found: Geometry) -> list:
    return [store.span for layer in found.layers for store in layer.stores if isinstance(store, Attention)]


W, C, F = Sliding(64), Chunked(8192), Full()


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("gemma2", {}, [W, F, W, F]),
        ("gemma2", {"attention__sliding_window": None}, [Sliding(4096), F] * 2),
        ("gemma3", {"attention__sliding_window": 0}, [F] * 4),
        ("gemma3", {"attention__sliding_window": None}, [F] * 4),
        ("gemma3", {}, [W] * 4),
        ("gpt-oss", {}, [W, F, W, F]),
        ("cohere2", {}, [W, W, W, F]),
        ("cohere2moe", {}, [F, W, W, W]),
        ("exaone4", {}, [F] * 4),
        ("smallthinker", {}, [F] + [Sliding(4096)] * 3),
        ("laguna", {"attention__sliding_window": None}, [F] * 4),
        ("llama4", {}, [C, C, C, F]),
        ("llama4", {"attention__sliding_window": None}, [C, C, C, F]),
        ("llama4", {"attention__sliding_window": 0}, [F] * 4),
        ("olmo2", {"attention__sliding_window_pattern": 2}, [W, F, W, F]),
        ("olmo2", {"attention__sliding_window_pattern": 1}, [F] * 4),
        ("olmo2", {"attention__sliding_window_pattern": 0}, [W] * 4),
        ("olmo2", {"attention__sliding_window_pattern": [True, False, False, True]}, [W, F, F, W]),
        ("mimo2", {"attention__sliding_window_pattern": [0, 1, 1]}, [F, W, W, F]),
        ("lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": [0, 2, 0, 2]}, [W, W]),
        ("llama", {}, [W] * 4),
        ("qwen2", {}, [F] * 4),
    ],
)
def test_windows_of_each_architecture(arch, keys, expected):
    assert spans(model(arch, **{"attention__sliding_window": 64, **keys})) == expected


def test_windows_may_have_heads_of_their_own_width():
    found = model(
        "gemma4",
        attention__sliding_window=64,
        attention__sliding_window_pattern=[1, 0, 1, 0],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__shared_kv_layers=2,
    )
    entries = [layer.stores[0].entry for layer in found.layers]
    assert entries == [Heads(2, 256, 256), Heads(2, 512, 512)] * 2
    assert [layer.shares for layer in found.layers] == [None, None, 0, 1]
    assert [bool(layer.held) for layer in sized(found).layers] == [True, True, False, False]


def test_gemma_3n_keeps_twenty_layers_whatever_its_file_says():
    found = model("gemma3n", block_count=30, attention__sliding_window=64, attention__shared_kv_layers=15)
    assert sum(layer.shares is not None for layer in found.layers) == 10
    assert [bool(layer.held) for layer in sized(found).layers] == [True] * 20 + [False] * 10


@pytest.mark.parametrize(
    ("arch", "keys", "kinds"),
    [
        ("jamba", {"attention__head_count_kv": [0, 0, 2, 0]}, "rraR".lower()),
        ("nemotron_h", {"attention__head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 64, 0, 0]}, "r-ar"),
        ("nemotron_h", {"attention__head_count_kv": [0, 0, 2, 0]}, "rrar"),
        ("qwen3next", {}, "rrra"),
        ("qwen35", {"full_attention_interval": 2}, "rara"),
        ("qwen35moe", {"attention__recurrent_layers": [False, True, True, False]}, "arra"),
        ("mamba2", {}, "rrrr"),
        ("falcon-h1", {}, "bbbb"),
    ],
)
def test_which_layers_are_recurrent(arch, keys, kinds):
    found = model(arch, {**PLAIN, **SSM}, **keys)
    letters = {(): "-", (Attention,): "a", (Recurrent,): "r", (Attention, Recurrent): "b"}
    assert "".join(letters[tuple(type(store) for store in layer.stores)] for layer in found.layers) == kinds


@pytest.mark.parametrize(
    ("arch", "keys", "elements"),
    [
        ("mamba", SSM | {"ssm.group_count": 0}, 3 * 512 + 512 * 16),
        ("mamba2", SSM, 3 * (512 + 4 * 16) + 512 * 16),
        ("rwkv6", {"wkv.head_size": 64}, 2 * 256 + 256 * 64),
        ("arwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, 256 + 256 * 64),
        ("minimax-01", {"full_attention_interval": 8}, 8 * 32 * 32),
        (
            "kimi-linear",
            MLA | {"attention.head_count_kv": 0, "kda.head_dim": 16, "ssm.conv_kernel": 4},
            3 * 3 * 128 + 8 * 256,
        ),
        ("lfm2moe", {"attention.head_count_kv": 0, "shortconv.l_cache": 3}, 256 * 2),
    ],
)
def test_states_are_float32_and_one_column_short(arch, keys, elements):
    found = model(arch, {**PLAIN, **keys})
    assert sized(found, 4096, 3).total_bytes == 3 * 4 * 4 * elements
    assert sized(found, 64, 3, kv_unified=True, cache_type_k="f32", flash_attn="off").total_bytes == 3 * 16 * elements


def test_deepseek_v4_keeps_a_stream_for_each_sequence():
    found = model(
        "deepseek4",
        attention__key_length=512,
        attention__value_length=512,
        attention__sliding_window=128,
        attention__compress_ratios=[0, 4, 128, 0, 7],
        attention__indexer__key_length=128,
    )
    raw, csa, hca, lid = 4 * 768 * 512, 2048 * 512, 256 * 512, 2048 * 128
    one = sized(found, 8192)
    assert one.total_bytes == 2 * (raw + csa + hca + lid)
    assert one.peak_bytes - one.total_bytes == 2 * 4 * (2 * 512) * 8 + 2 * 4 * 512 * 128 + 2 * 4 * (2 * 128) * 8
    assert sized(found, n_ctx=8192, n_parallel=4, kv_unified=True).total_bytes == 4 * one.total_bytes
    assert any("compressor states are in the peak only" in note for note in one.notes)


def test_minimax_m3_allocates_a_v_that_nothing_reads():
    found = model("minimax-m3", leading_dense_block_count=1, attention__indexer__key_length=128)
    assert sized(found).total_bytes == 1024 * 2 * (4 * 128 + 3 * (128 + 32))


def test_glm_5_next_pools_its_index_keys():
    keys = {**MLA, "attention.indexer.key_length": 128, "kda.head_dim": 16, "ssm.conv_kernel": 4}
    found = model("glm5-next", keys, attention__head_count_kv=[0, 0, 0, 1])
    assert [type(store.entry) for store in found.layers[3].stores][1] is IndexKey
    assert sized(found).layers[3].held == 1024 * 2 * (576 + 3 * 128)


@pytest.mark.parametrize(
    ("context_length", "listed", "own"),
    [(202_752, None, "1111"), (1 << 20, None, "1110"), (1 << 20, [1, 0, 0, 1], "1001")],
)
def test_which_layers_of_glm_5_have_an_indexer(context_length, listed, own):
    found = model(
        "glm-dsa",
        {**MLA, "attention.indexer.key_length": 128},
        context_length=context_length,
        attention__indexer__types=listed,
    )
    assert "".join(str(len(layer.stores) - 1) for layer in found.layers) == own


def test_dots_note_has_latents_of_two_widths():
    keys = {
        **MLA,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [0, 0, 1, 1],
        "attention.indexer.key_length": 128,
        "attention.indexer.types": [1, 0, 0, 0],
        "attention.kv_lora_rank_swa": 1024,
        "attention.key_length_swa": 1088,
        "attention.value_length_swa": 1024,
        "attention.key_length_mla_swa": 256,
        "attention.value_length_mla_swa": 128,
    }
    assert sized(model("dots3note", keys), 8192).total_bytes == 2 * (8192 * (2 * 576 + 128) + 768 * 2 * 1088)


def test_files_from_before_mla_keep_their_heads():
    found = model("deepseek2", attention__head_count_kv=8, attention__key_length=192, attention__value_length=128)
    assert sized(found).total_bytes == 1024 * 4 * 8 * (192 + 128) * 2


def test_a_switch_has_a_router_and_a_loop_has_passes():
    assert len(model("graniteswitch").layers) == 5
    assert sized(model("graniteswitch")).layers[4].held == 1024 * 2 * 32 * 2
    assert len(model("nanbeige", num_loops=3).layers) == 12


def test_hy_v4_may_have_no_indexer():
    assert sized(model("hy_v4", MLA)).total_bytes == 1024 * 4 * 576 * 2
    keys = {
        **MLA,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 64,
        "attention.indexer.types": [1, 0, 0, 0],
    }
    assert sized(model("hy_v4", keys)).total_bytes == 1024 * (4 * 576 + 128) * 2


def test_qwen_4_has_index_keys_and_an_n_gram_state():
    keys = {
        **PLAIN,
        **SSM,
        "attention.indexer.key_length": 64,
        "ple.layers": [1],
        "ple.conv_kernel": 4,
        "ple.ngram_size": 3,
        "hyper_connection.count": 4,
    }
    layers = sized(model("qwen4exp", keys)).layers
    assert layers[1].held - layers[0].held == 4 * 9 * 4 * 256
    assert layers[3].held == 1024 * 2 * (2 * 2 * 32 + 2 * 64)


@pytest.mark.parametrize(
    ("arch", "keys", "says"),
    [
        ("llama", {"block_count": None}, r"llama\.block_count: missing"),
        ("llama", {"block_count": 0}, "between 1 and"),
        ("llama", {"attention__head_count_kv": [1, 2]}, "2 entries for 4 layers"),
        ("llama", {"embedding_length": None}, "embedding_length: missing"),
        ("llama", {"embedding_length": 4}, "k_dim must be positive"),
        ("llama", {"nextn_predict_layers": 9}, "at most the 4"),
        ("llama", {"attention__head_count": "8"}, "a whole number"),
        ("gpt-oss", {}, "sliding_window: missing"),
        ("gpt-oss", {"attention__sliding_window": 0}, "a window in tokens"),
        ("gemma4", {"attention__sliding_window": 64}, "sliding_window_pattern: missing"),
        ("gemma4", {"attention__sliding_window": 64, "attention__sliding_window_pattern": [2]}, "true and false"),
        ("gemma4", {"attention__shared_kv_layers": 4}, "below the 4 layers"),
        ("mamba", {}, r"ssm\.inner_size: missing"),
        ("rwkv7", {"wkv__head_size": 60}, "a divisor of 256"),
        ("deepseek2", {"attention__key_length_mla": 192, "attention__head_count_kv": 1}, "kv_lora_rank: missing"),
        ("deepseek2", {"attention__key_length_mla": 192}, "1 beside key_length_mla"),
        ("nanbeige", {"num_loops": 1000}, "at most 512 layers"),
    ],
)
def test_keys_that_are_missing_or_wrong(arch, keys, says):
    with pytest.raises(ConfigError, match=says):
        model(arch, **keys)


@pytest.mark.parametrize(
    ("arch", "hint"),
    [("lama", "Nearest known: llama"), ("clip", "projector"), ("dflash", "drafting"), ("zzz", "newer"), (7, "newer")],
)
def test_unknown_architectures_name_the_nearest(arch, hint):
    with pytest.raises(UnknownArchitectureError) as caught:
        geometry({**LLAMA, "general.architecture": arch})
    assert hint in str(caught.value.hint)


# -- the tables --------------------------------------------------------------------------------------------------------


def test_every_gguf_architecture_is_the_one_that_llama_cpp_loads():
    """Names that transformers has for an architecture lead back to it, or to one with the same rules."""
    same = {"nemotron_h_moe": "nemotron_h"}
    for arch in GGUF:
        model_type = NAMES.get(arch, (arch, ""))[0]
        assert archs.ARCH_OF[model_type] == same.get(arch, arch)


def test_tables_name_architectures_that_exist():
    for names in (archs.WINDOWED, archs.NO_CACHE, archs.STATEFUL, archs.DRAFTS_INSIDE, archs.EXPANDED, archs.MEASURED):
        assert not names - set(GGUF)
    assert set(archs.ARCH_OF.values()) <= set(GGUF)
    assert not versions.KNOWN_THEN - set(GGUF)


def test_layers_keep_their_order():
    found = Geometry("llama", (Layer((Attention(Heads(1, 64, 64)),)), Layer((Attention(Heads(2, 64, 64)),))))
    assert [layer.held for layer in sized(found).layers] == [1024 * 256, 1024 * 512]


# -- the pages ---------------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "engines"
GEMMA = {
    "block_count": 34,
    "embedding_length": 2560,
    "context_length": 131_072,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 1024,
}


def screens() -> list[tuple[str, list[str]]]:
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("llamacpp.md", "ollama.md")]
    found = [
        block for page in pages for block in re.findall(r"^```\n\$ kvsize (.*?)^```", page, re.DOTALL | re.MULTILINE)
    ]
    return [(text.split("\n")[0], [line for line in text.split("\n")[1:] if line.strip()]) for text in found]


@pytest.mark.parametrize(("command", "shown"), screens(), ids=lambda value: value if isinstance(value, str) else "")
def test_pages_give_the_answers_that_are_printed(command, shown, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("gemma-3-4b-it.gguf").write_bytes(gguf(metadata("gemma3", GEMMA)))
    run(command.split())
    output = capsys.readouterr()
    answers = [line for line in shown if " bytes) for " in line or line.startswith("kvsize: ")]
    assert len(answers) == 1
    assert answers[0] in (output.out + output.err).splitlines()


def test_both_pages_have_screens():
    assert len(screens()) == 3
