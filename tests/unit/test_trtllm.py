"""TensorRT-LLM's rules one by one: nothing of it was run, so these pin the arithmetic as read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.engines import Workload
from kvsize.engines import trtllm as engine
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
    Recurrent,
    Sliding,
    State,
)

GIB = 1 << 30
FULL = Layer((Attention(Heads(8, 128, 128)),))
WINDOW = Layer((Attention(Heads(8, 128, 128), Sliding(512)),))
TOKEN = 8 * 256 * 2
MLA = Layer((Attention(Latent(512, 64, Heads(128, 192, 128))),))


def model(*layers, **rest):
    return Geometry("llama", layers, **{"dtype": "bfloat16", **rest})


def answer(geometry, tokens=1000, sequences=1, kv="auto", **options):
    return engine.size(geometry, Workload(tokens, sequences, kv, kv), engine.Options(**options))


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (32, 1), (33, 2), (1000, 32)])
def test_a_request_takes_whole_blocks(tokens, blocks):
    assert answer(model(FULL), tokens).total_bytes == blocks * 32 * TOKEN


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (3, 3), (8, 1), (16, 1)])
def test_heads_are_divided_up(ranks, heads):
    assert answer(model(FULL), 32, tensor_parallel_size=ranks).total_bytes == 32 * heads * 256 * 2


def test_attention_data_parallelism_keeps_all_heads():
    assert answer(model(FULL), 32, tensor_parallel_size=8, data_parallel_size=8).total_bytes == 32 * TOKEN


def test_a_latent_lies_whole_on_every_rank():
    assert answer(model(MLA), 32, tensor_parallel_size=8).total_bytes == 32 * 576 * 2


@pytest.mark.parametrize(("kv", "token"), [("fp8", 2048), ("nvfp4", 1024 + 128), ("float32", 8192)])
def test_formats(kv, token):
    assert answer(model(FULL), 32, kv=kv).total_bytes == 32 * token


def test_a_pool_is_a_number_of_whole_blocks():
    size = answer(model(*[FULL] * 32), kv_memory=GIB)
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // (32 * TOKEN) // 32
    assert size.pool.tokens == size.pool.num_blocks * 32
    assert size.pool.max_concurrency == size.pool.num_blocks / 32


def test_windows_are_full_unless_listed():
    size = answer(model(FULL, WINDOW), 5000)
    assert size.layers[0] == size.layers[1]
    assert any("unless --max-attention-window" in note for note in size.notes)


def test_one_window_caps_every_layer():
    size = answer(model(FULL, FULL), 5000, max_attention_window="512")
    assert size.total_bytes == 2 * 17 * 32 * TOKEN


def test_window_sizes_share_the_memory_equally():
    layers = (*[WINDOW] * 3, FULL)
    size = answer(model(*layers), 5000, kv_memory=GIB, max_attention_window="512,512,512,131072", max_model_len=131_072)
    assert size.pool is not None
    assert [group.name for group in size.pool.groups] == ["window 512", "full attention"]
    assert size.pool.num_blocks == GIB // 2 // (3 * TOKEN) // 32
    assert size.pool.max_concurrency == (GIB // 2 // TOKEN // 32) / 157
    assert any(note.startswith("window 512:") for note in size.notes)


def test_the_split_by_windows_forgets_nvfp4_scales():
    size = answer(model(WINDOW, FULL), 5000, kv="nvfp4", kv_memory=GIB, max_attention_window="512,5000")
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // 2 // 1024 // 32


def test_windows_above_the_longest_sequence_are_clamped():
    assert answer(model(FULL), 100, max_attention_window="4096").total_bytes == 4 * 32 * TOKEN


def test_stages_take_the_layers_left_over_first():
    size = answer(model(*[FULL] * 5), kv_memory=GIB, pipeline_parallel_size=2)
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // (3 * TOKEN) // 32


def test_a_request_that_does_not_fit_is_said():
    size = answer(model(FULL), 10**6, kv_memory=GIB)
    assert any("not one such request fits" in note for note in size.notes)


def test_everything_is_derived_and_says_so():
    size = answer(model(FULL), version="1.0.0")
    assert size.evidence == "derived"
    assert any("not run" in note for note in size.notes)
    assert any("only the source at" in note for note in size.notes)


STATES = Recurrent("mamba2", (State("conv", (8, 4)), State("recurrent", (2, 2, 2))))


@pytest.mark.parametrize(
    ("geometry", "words"),
    [
        (model(Layer((STATES,))), "recurrent"),
        (model(Layer((*MLA.stores, Attention(IndexKey(128))))), "indexers"),
        (model(Layer((Attention(Heads(8, 192, 128)),))), "head width"),
        (model(FULL, Layer((Attention(Heads(2, 256, 256)),))), "head width"),
        (model(FULL, Layer(FULL.stores, shares=0)), "sharing"),
        (model(Layer((Attention(Heads(8, 128, 128), Encoder()),))), "encoder"),
    ],
)
def test_what_no_rule_covers_is_refused(geometry, words):
    with pytest.raises(UnsupportedError, match=words) as error:
        answer(geometry)
    assert "--engine" in str(error.value)


def test_formats_of_other_engines_are_refused():
    with pytest.raises(UnsupportedError, match="format of its own"):
        answer(model(FULL), kv="q8_0")


@pytest.mark.parametrize(
    "wrong",
    [{"tokens_per_block": 24}, {"tensor_parallel_size": 0}, {"tensor_parallel_size": 8, "data_parallel_size": 2}],
)
def test_settings_out_of_bounds_are_usage_errors(wrong):
    with pytest.raises(UsageError):
        engine.Options(**wrong)


@pytest.mark.parametrize("text", ["", "512,", "many", "0", "-5"])
def test_windows_are_a_list_of_tokens(text):
    with pytest.raises(UsageError, match="4096,131072"):
        answer(model(FULL), max_attention_window=text)


def test_chunks_are_kept_in_full():
    chunked = Layer((Attention(Heads(8, 128, 128), Chunked(8192)),))
    assert answer(model(chunked), 20_000).total_bytes == 625 * 32 * TOKEN


def test_layers_without_a_cache_take_nothing():
    size = answer(model(FULL, Layer(kind="mlp")), kv_memory=GIB)
    assert size.layers[1].held == 0
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // TOKEN // 32


# -- edges, worked out by hand ----------------------------------------------------------------------------------------


def test_logical_bytes_are_those_of_the_tokens_in_reach():
    size = answer(model(FULL, FULL), 5000, 3, max_attention_window="512,5000")
    assert [(layer.logical, layer.held, layer.after_prefill) for layer in size.layers] == [
        (3 * 512 * TOKEN, 3 * 17 * 32 * TOKEN, 3 * 17 * 32 * TOKEN),
        (3 * 5000 * TOKEN, 3 * 157 * 32 * TOKEN, 3 * 157 * 32 * TOKEN),
    ]


def test_blocks_of_one_token():
    assert answer(model(FULL), 1000, tokens_per_block=1).total_bytes == 1000 * TOKEN
    with pytest.raises(UsageError, match="power of two"):
        engine.Options(tokens_per_block=0)


def test_two_ranks_of_attention_data_parallelism_keep_all_heads():
    assert answer(model(FULL), 32, tensor_parallel_size=2, data_parallel_size=2).total_bytes == 32 * TOKEN


@pytest.mark.parametrize(("window", "blocks"), [("1", 2), (str(2**40 - 1), 32)])
def test_the_least_and_the_largest_window(window, blocks):
    assert answer(model(FULL), 1000, max_attention_window=window).total_bytes == blocks * 32 * TOKEN


def test_windows_of_2_to_the_40_tokens_are_refused():
    with pytest.raises(UsageError, match="4096,131072"):
        answer(model(FULL), 1000, max_attention_window=str(2**40))


def test_the_pool_is_that_of_the_tightest_stage():
    """Halves of the memory: over 3 layers and 1 on the first stage, over 2 and 2 on the second."""
    size = answer(
        model(*[FULL] * 8),
        5000,
        kv_memory=GIB,
        pipeline_parallel_size=2,
        max_attention_window="5000,5000,5000,512,5000,5000,512,512",
    )
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // 2 // (3 * TOKEN) // 32


def test_a_group_s_page_and_the_longer_request():
    size = answer(model(WINDOW, WINDOW, FULL), 5000, kv_memory=GIB, max_attention_window="512,512,5000")
    assert size.pool is not None
    assert [(group.page_bytes, group.request_blocks) for group in size.pool.groups] == [
        (2 * 32 * TOKEN, 17),
        (32 * TOKEN, 157),
    ]
    assert size.pool.request_blocks == 157
    assert size.pool.bytes_per_block == 3 * 32 * TOKEN


def test_even_stages_have_no_layer_left_over():
    size = answer(model(*[FULL] * 6), kv_memory=GIB, pipeline_parallel_size=2)
    assert size.pool is not None
    assert size.pool.num_blocks == GIB // (3 * TOKEN) // 32


NOTES = {
    "a request that just fits": (model(FULL), {"kv_memory": 32 * 32 * TOKEN}, "not one such request fits", False),
    "a block too few": (model(FULL), {"kv_memory": 31 * 32 * TOKEN}, "not one such request fits", True),
    "one pool": (model(FULL), {"kv_memory": GIB}, "full attention:", False),
    "no windows": (model(FULL), {}, "windows are kept in full", False),
    "windows": (model(FULL, WINDOW), {}, "windows are kept in full", True),
    "windows listed": (model(FULL, WINDOW), {"max_attention_window": "512"}, "windows are kept in full", False),
    "one stage": (model(FULL, FULL), {}, "all stages", False),
    "two stages": (model(FULL, FULL), {"pipeline_parallel_size": 2}, "all stages", True),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case):
    geometry, options, words, said = NOTES[case]
    assert any(words in note for note in answer(geometry, **options).notes) == said


# -- properties --------------------------------------------------------------------------------------------------------


@given(tokens=st.integers(1, 100_000), block=st.sampled_from([16, 32, 64, 128]))
def test_a_request_grows_in_whole_blocks(tokens, block):
    here = answer(model(FULL), tokens, tokens_per_block=block)
    assert here.total_bytes <= answer(model(FULL), tokens + 1, tokens_per_block=block).total_bytes
    assert here.total_bytes == answer(model(FULL), -(-tokens // block) * block, tokens_per_block=block).total_bytes
    assert here.logical_bytes <= here.total_bytes


@given(budget=st.integers(1 << 22, 1 << 36), sequences=st.integers(1, 9))
def test_a_pool_fits_its_budget(budget, sequences):
    size = answer(model(FULL, FULL), 100, sequences, kv_memory=budget)
    assert size.pool is not None
    assert size.pool.num_blocks * size.pool.bytes_per_block <= budget
    assert size.total_bytes == sequences * size.pool.request_bytes
