"""SGLang: cells, pools and sentences worked out by hand from sglang@0.5.23, where no recorded pool holds them."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Group, Workload
from kvsize.engines import sglang as engine
from kvsize.engines.sglang import fraction
from kvsize.engines.sglang.cells import LayerCell, Layout, latent_bytes, layer_cells, slot_bytes
from kvsize.engines.sglang.pool import Plan, Settings, live_window, plan
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import format_of
from kvsize.geometry import (
    Attention,
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
TOKEN = 8 * 256 * 2  # bytes of one token of FULL
FULL = Layer((Attention(Heads(8, 128, 128)),))
WINDOW = Layer((Attention(Heads(8, 128, 128), Sliding(128)),), kind="sliding_attention")
MLA = Latent(512, 64, Heads(128, 192, 128))
DSA = Layer((Attention(MLA), Attention(IndexKey(128))))
DELTA = Layer((Recurrent("gated_delta", (State("conv", (8192, 4)), State("recurrent", (32, 128, 128), "float32"))),))
SLOT = 8192 * 3 * 2 + 32 * 128 * 128 * 4
CROSS = Layer((Attention(Heads(8, 128, 128)), Attention(Heads(8, 128, 128), Encoder())))


def model(*layers: Layer, name: str | None = "LlamaForCausalLM", kind: str = "llama", **fields: object) -> Geometry:
    values = {"num_attention_heads": 32, "max_tokens": 32_768, "dtype": "bfloat16", **fields}
    return Geometry(kind, layers, architecture=name, **values)


GPT = model(FULL, WINDOW, name="GptOssForCausalLM", kind="gpt_oss")
WINDOWS = model(WINDOW, WINDOW, name="GptOssForCausalLM", kind="gpt_oss")
INDEXED = model(DSA, name="DeepseekV32ForCausalLM", kind="deepseek_v32")
HYBRID = model(DELTA, FULL, name="Qwen3NextForCausalLM", kind="qwen3_next")
LONGCAT = model(*[Layer((Attention(MLA),))] * 2, name="LongcatFlashForCausalLM", kind="longcat_flash")


def answer(geometry: Geometry, tokens: int = 1000, sequences: int = 1, kv: str = "auto", **options) -> CacheSize:
    return engine.size(geometry, Workload(tokens, sequences, kv, kv), engine.Options(**options))


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_mamba_cache_size", "max_total_tokens", "max_model_len", "max_running_requests"])
def test_counts_start_at_one(name):
    assert getattr(engine.Options(**{name: 1}), name) == 1
    with pytest.raises(UsageError, match="must be at least 1"):
        engine.Options(**{name: 0})


@pytest.mark.parametrize(("tp", "dp", "dcp", "divides"), [(4, 2, 2, True), (2, 2, 2, False), (2, 1, 2, True)])
def test_tensor_parallel_ranks_are_shared_by_replicas_and_contexts(tp, dp, dcp, divides):
    options = {"tensor_parallel_size": tp, "data_parallel_size": dp, "decode_context_parallel_size": dcp}
    if divides:
        assert engine.Options(**options).tensor_parallel_size == tp
        return
    with pytest.raises(UsageError, match="multiple of --dp-size x --dcp"):
        engine.Options(**options)


def test_the_ratio_may_be_one():
    assert engine.Options(swa_full_tokens_ratio=1.0).swa_full_tokens_ratio == 1.0
    with pytest.raises(UsageError):
        engine.Options(swa_full_tokens_ratio=0.0)


@pytest.mark.parametrize(
    ("limit", "factor", "given", "taken"),
    [(32_768, 1.0, 32_768, True), (32_768, 1.0, 32_769, False), (32_768, 2.0, 65_536, True), (None, 1.0, 2048, True)],
)
def test_a_context_length_up_to_the_model_s(limit, factor, given, taken):
    geometry = model(FULL, max_tokens=limit, context_factor=factor)
    if taken:
        assert answer(geometry, max_model_len=given).total_bytes == 1000 * TOKEN
        return
    with pytest.raises(UnsupportedError, match="SGLang refuses --context-length 32,769"):
        answer(geometry, max_model_len=given)


def test_a_model_without_a_limit_is_taken_for_2048_tokens():
    assert any("requests of up to 2,048 tokens" in n for n in answer(model(FULL, max_tokens=None), 2049).notes)
    with pytest.raises(UnsupportedError, match="on a model of 2,048 tokens"):
        answer(model(FULL, max_tokens=None), max_model_len=2049)


def test_drafts_and_context_parallelism():
    options = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    with pytest.raises(UnsupportedError, match="drafts under decode context parallelism"):
        answer(model(FULL), num_speculative_tokens=1, **options)
    assert answer(model(FULL), num_speculative_tokens=1, tensor_parallel_size=2).total_bytes == 1000 * TOKEN // 2


@pytest.mark.parametrize(("kind", "elements"), [("qwen3_next", 2), ("kimi_linear", 4)])
def test_whose_state_dtype_is_read(kind, elements):
    geometry = model(DELTA, FULL, name="Qwen3NextForCausalLM", kind=kind, state_dtype="bfloat16")
    assert answer(geometry).layers[0].logical == 8192 * 3 * 2 + 32 * 128 * 128 * elements


# -- cells -------------------------------------------------------------------------------------------------------------


def cell(layer: Layer, **fields) -> LayerCell:
    layout = {key: fields.pop(key) for key in ("tensor", "context", "scaled") if key in fields}
    return layer_cells(model(layer, **fields), Layout(format_of("bfloat16"), format_of("float32"), **layout))[0]


STATED = {"hidden_size": 4096, "head_dim": 64, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("heads", "keys", "bytes_"),
    [
        (Heads(32, 128, 128), ("hidden_size", "head_dim", "num_key_value_heads"), 2 * 128 * 2),
        (Heads(32, 128, 128), ("hidden_size", "head_dim"), 32 * 128 * 2),
        (Heads(32, 128, 128), ("hidden_size",), 32 * 256 * 2),
        (Heads(32, 128, 128), ("head_dim",), 32 * 256 * 2),
        (Heads(8, 128, 128), ("hidden_size", "num_key_value_heads"), 8 * 256 * 2),  # no stray key: heads are grouped
        (Heads(32, 192, 192), ("hidden_size", "head_dim"), 32 * 384 * 2),  # not hidden / heads
        (Heads(32, 128, 64), ("hidden_size", "head_dim"), 32 * 192 * 2),
    ],
)
def test_keys_that_the_class_does_not_read_are_trusted(heads, keys, bytes_):
    found = cell(Layer((Attention(heads),)), kind="opt", stated=tuple((key, STATED[key]) for key in keys))
    assert found.kv == bytes_


@pytest.mark.parametrize(("tensor", "context", "heads"), [(8, 1, 1), (8, 2, 2), (2, 2, 8), (1, 2, 8), (12, 4, 2)])
def test_heads_of_a_context_group(tensor, context, heads):
    assert cell(FULL, tensor=tensor, context=context).kv == heads * 256 * 2


@pytest.mark.parametrize(("context", "bytes_"), [(1, 132), (2, 264)])
def test_index_keys_are_on_every_rank_of_a_context(context, bytes_):
    assert cell(DSA, name="DeepseekV32ForCausalLM", context=context).index == bytes_


def test_a_scaled_cell_has_a_byte_for_32():
    assert cell(FULL, scaled=True).kv == 8 * 256 * 2 + 8 * 256 // 32


@pytest.mark.parametrize(
    ("entry", "layout", "words"),
    [
        (MLA, {"unit": format_of("fp8_e4m3"), "scaled": True}, "mxfp8 has no layout for a latent"),
        (Latent(500, 64, MLA.expanded), {"unit": format_of("fp8_e4m3")}, "a rank in blocks of 128, not 500"),
    ],
)
def test_latents_without_a_layout(entry, layout, words):
    with pytest.raises(UnsupportedError, match=words):
        latent_bytes(entry, Layout(state=format_of("float32"), **layout), indexed=True)


def test_the_window_that_the_file_states():
    geometry = model(FULL, WINDOW, name="MiMoV2FlashForCausalLM", stated=(("sliding_window_size", 64),))
    assert answer(geometry, 10_000).layers[1].logical == 64 * TOKEN


@pytest.mark.parametrize(
    ("groups", "ranks", "channels"),
    [(1, 1, 2304), (1, 2, (2304 + 2 * 128) // 2), (1, 4, (2304 + 3 * 2 * 128) // 4), (8, 4, 4096 // 4)],
)
def test_groups_that_do_not_divide_are_copied(groups, ranks, channels):
    """2,048 inner channels, and B and C of 128 for each group."""
    states = (State("conv", (2048 + 2 * groups * 128, 4)), State("recurrent", (32, 64, 128), "float32"))
    layout = Layout(format_of("bfloat16"), format_of("float32"), tensor=ranks, ranks=ranks)
    found = slot_bytes(Recurrent("mamba2", states, groups=groups), layout)
    assert found == channels * 3 * 2 + 32 // ranks * 64 * 128 * 4


@pytest.mark.parametrize(("heads", "hidden", "bytes_"), [(32, 4096, 32 * 256 * 2), (4, 4, 4 * 2 * 2)])
def test_heads_of_the_config_where_no_layer_has_any(heads, hidden, bytes_):
    assert cell(Layer(), num_attention_heads=heads, hidden_size=hidden).kv == bytes_
    assert cell(Layer(), num_attention_heads=heads, stated=(("hidden_size", hidden),)).kv == bytes_


@pytest.mark.parametrize(("heads", "hidden"), [(None, 4096), (32, None), (32, 31)])
def test_a_config_without_heads(heads, hidden):
    with pytest.raises(UnsupportedError, match="names no heads for SGLang to count"):
        cell(Layer(), num_attention_heads=heads, hidden_size=hidden)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_request_s_bytes():
    found = answer(GPT, 10_000, 3, page_size=64)
    assert found.layers[0].logical == 3 * 10_000 * TOKEN
    assert found.layers[1].logical == 3 * 128 * TOKEN
    assert found.layers[0].held == found.layers[0].after_prefill == 3 * 157 * 64 * TOKEN
    assert answer(GPT, 100, chunked_prefill_size=-1).layers[1].after_prefill == 100 * TOKEN
    assert answer(GPT, 10_000, chunked_prefill_size=-1).layers[1].after_prefill == (128 + 128 + 1 + 1) * TOKEN


def test_a_request_spread_over_a_context():
    """501 of 1,001 tokens on a rank: eight pages."""
    found = answer(model(FULL), 1001, tensor_parallel_size=2, decode_context_parallel_size=2, page_size=64)
    assert found.layers[0].logical == 501 * TOKEN
    assert found.total_bytes == 512 * TOKEN
    assert found.step_tokens == 128


@pytest.mark.parametrize(
    ("window", "settings", "tokens"),
    [
        (128, Settings(1, 4096), 128 + 128 + 1 + 1),
        (128, Settings(64, 4096), 128 + 128 + 64 + 64),
        (128, Settings(64, 4096, draft_tokens=1), 128 + 128 + 64 + 2),
        (128, Settings(64, 4096, draft_tokens=4), 128 + 4 * 128 + 64 + 8),
    ],
)
def test_window_tokens_that_a_request_holds(window, settings, tokens):
    assert live_window(window, settings) == tokens


def test_layers_beyond_the_decoder_s_are_charged_for_every_request():
    found = answer(model(CROSS, name="BartModel", kind="bart", stated=(("num_hidden_layers", 3),)), 1000, 2)
    assert [(part.name, part.bytes) for part in found.overheads] == [
        ("layers that SGLang counts and the decoder lacks", 2 * 2 * 1000 * TOKEN)
    ]


# -- pools -------------------------------------------------------------------------------------------------------------


def test_a_pool_with_windows():
    """1 GiB / (4096 + 0.8 x 4096) = 145,635 tokens, 2,275 pages; four fifths of them 1,820 pages."""
    found = answer(GPT, 1000, kv_memory=GIB, page_size=64).pool
    assert (found.num_blocks, found.block_size, found.bytes_per_block) == (2275, 64, 64 * TOKEN)
    assert (found.tokens, found.request_blocks) == (145_600, 16)
    assert found.request_bytes == (1024 + 384) * TOKEN
    assert found.max_concurrency == 2275 / 16
    assert found.groups == (
        Group("full attention", 1, 64, 64 * TOKEN, 16),
        Group("window", 1, 64, 64 * TOKEN, 6),
    )


def test_a_small_share_for_windows_limits_concurrency():
    """1 GiB / 4300.8 = 249,660 tokens; a twentieth of 249,600 is 195 pages, six a request."""
    found = answer(GPT, 1000, kv_memory=GIB, page_size=64, swa_full_tokens_ratio=0.05)
    assert found.pool.max_concurrency == 195 / 6
    assert found.notes[-3] == "concurrency is limited by window tokens (--swa-full-tokens-ratio)"
    short = answer(GPT, 100, kv_memory=GIB, page_size=64, swa_full_tokens_ratio=0.05)
    assert short.pool.max_concurrency == 195 / 2


def test_a_pool_of_windows_alone():
    found = answer(WINDOWS, 1000, kv_memory=GIB, page_size=64)
    assert [group.name for group in found.pool.groups] == ["window"]
    assert found.pool.bytes_per_block == 2 * 64 * TOKEN
    assert f"does not count: {2 * 64 * TOKEN:,} bytes" in "\n".join(found.notes)


def test_a_pool_with_states():
    found = answer(HYBRID, 1000, kv_memory=GIB, max_mamba_cache_size=23)
    assert found.pool.groups == (
        Group("full attention", 1, 1, TOKEN, 1000),
        Group("state slots", 1, 1, SLOT, 5),
    )
    assert found.pool.tokens == (GIB - 24 * SLOT) // TOKEN
    assert found.pool.max_concurrency == 4
    assert found.notes[-3:] == (
        "concurrency is limited by state slots: 23, 5 a request",
        f"every buffer has one page of padding, which the budget does not count: {TOKEN:,} bytes",
        f"23 state slots and one of padding take {24 * SLOT:,} bytes",
    )


def planned(*cells: LayerCell, budget: int = 30_000, **settings) -> Plan:
    return plan(cells, budget, Settings(**{"page": 1, "context_length": 4096, **settings}))


A, B = LayerCell(kv=100, index=12), LayerCell(kv=50)
W = LayerCell(kv=100, window=64)
S = LayerCell(state=1000)


@pytest.mark.parametrize(
    ("cells", "settings", "tokens"),
    [
        ((A, B), {}, 185),  # 30,000 / 162
        ((A, B), {"page": 16}, 176),
        ((A, B), {"max_tokens": 100}, 100),
        ((A, B), {"draft_layers": 1}, 120),  # and 75 + 12 for the draft
        ((A, B), {"draft_layers": 2}, 89),  # and 150 + 24
        ((B, B), {"budget": 100}, 1),
        ((W, W), {}, 150),
        ((W, W), {"max_tokens": 100, "page": 16}, 96),
        ((B, W), {"window_ratio": 0.5}, 300),
        ((B, W), {"window_ratio": 0.5, "max_tokens": 200}, 200),
        ((B, W), {"window_ratio": 0.5, "draft_layers": 1}, 200),
        ((W, W), {"draft_layers": 1}, 150),
        ((B, B, A, A), {"stages": 2}, 133),  # the second stage's: 30,000 / 224 by 112
    ],
)
def test_tokens_of_a_budget(cells, settings, tokens):
    assert planned(*cells, **settings).tokens == tokens


def test_attention_alone_has_no_slots():
    found = planned(B)
    assert (found.state_slots, found.slot_bytes, found.window_tokens, found.window_bytes) == (None, 0, None, 0)


@pytest.mark.parametrize("cells", [(B, B), (W, W)])
def test_a_budget_below_one_token(cells):
    with pytest.raises(UnsupportedError, match="99 bytes hold no token"):
        planned(*cells, budget=99)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [({}, 4096), ({"stages": 2}, 4096), ({"max_tokens": 500}, 500), ({"max_tokens": 500, "page": 64}, 448)],
)
def test_states_alone_are_limited_by_the_context(settings, tokens):
    assert planned(S, S, **settings).tokens == tokens


@pytest.mark.parametrize(("window", "fits"), [(98, True), (99, False)])
def test_a_window_pool_is_larger_than_a_window_and_a_page(window, fits):
    """200 tokens, of which the window pool gets 100."""
    cells = (LayerCell(kv=100), LayerCell(kv=100, window=window), LayerCell(kv=100, window=7))
    settings = {"budget": 40_000, "window_ratio": 0.5}
    if fits:
        assert planned(*cells, **settings).window_tokens == 100
        return
    with pytest.raises(UnsupportedError, match="below one request's window and page, 100"):
        planned(*cells, **settings)


CAP = {"radix": False, "running_requests": 4, "chunk": 10, "window_ratio": 0.5, "budget": 300_000}


@pytest.mark.parametrize(
    ("settings", "window_tokens", "tokens"),
    [
        ({}, 4 * 194 + 21, 4406),  # (300,000 - 797 x 100) / 50
        ({"page": 16}, 944, 4112),  # 4 x 224 + 20 + 16 = 932: 59 pages
        ({"replicas": 2}, 2 * 194 + 21, 5182),
        ({"replicas": 8}, 194 + 21, 5570),
        ({"max_tokens": 100}, 100, 100),
        ({"max_tokens": 1000}, 797, 1000),
        ({"max_tokens": 5000}, 797, 4406),
        ({"budget": 104_700, "max_tokens": 499}, 499, 499),
        ({"budget": 104_700, "max_tokens": 500}, 797, 500),  # no lower than what the budget holds
        ({"chunk": 1}, 4 * 194 + 3, 4442),
        ({"chunk": 0}, 1500, 3000),
        ({"running_requests": None}, 1500, 3000),
        ({"radix": True}, 1500, 3000),
    ],
)
def test_windows_take_what_they_need_under_a_request_limit(settings, window_tokens, tokens):
    """64 tokens of a window, 128 until they are evicted and two pages: 194 a request, two chunks and a page."""
    found = planned(B, W, **{**CAP, **settings})
    assert (found.window_tokens, found.tokens) == (window_tokens, tokens)


@pytest.mark.parametrize(
    ("settings", "slots", "tokens"),
    [
        # half of 1,000,950 but one slot of 1,000; then 1,000,950 less 500 slots, in tokens of 50
        ({}, 499, 10_019),
        ({"state_slots": 100}, 100, 17_999),
        ({"state_slots": 100, "replicas": 4}, 25, 19_499),
        ({"radix": False, "running_requests": 100}, 100, 17_999),
        ({"radix": False, "running_requests": 100, "replicas": 4}, 25, 19_499),
        ({"radix": False, "running_requests": 1, "replicas": 4}, 1, 19_979),
        ({"running_requests": 100}, 499, 10_019),
        ({"radix": False}, 499, 10_019),
        # (500,475 - 4 x 1,000) / 1,750; the steps of 48 requests and one more
        ({"slots": 4, "draft_tokens": 3}, 283, 11_399),
        ({"slots": 4, "draft_tokens": 3, "running_requests": 20}, 283, 13_079),
        ({"slots": 4, "draft_tokens": 3, "running_requests": 20, "replicas": 2}, 283, 13_679),
        ({"slots": 4, "draft_tokens": 3, "running_requests": 1, "replicas": 2}, 283, 14_219),
        ({"slots": 4, "draft_tokens": 3, "running_requests": 90}, 283, 10_079),  # 70: what the slots hold
    ],
)
def test_state_slots(settings, slots, tokens):
    found = planned(S, B, budget=1_000_950, state_ratio=1.0, **settings)
    assert (found.state_slots, found.slot_bytes, found.tokens) == (slots, 1000, tokens)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, (None, 0, 0)),
        ({"max_running_requests": 7}, (7, 0, 0)),
        ({"num_speculative_tokens": 3}, (48, 4, 1)),
        ({"num_speculative_tokens": 3, "max_running_requests": 7, "num_draft_layers": 2}, (7, 4, 2)),
    ],
)
def test_what_drafting_sets(options, settings):
    found = engine.resolve(HYBRID, "bfloat16", engine.Options(**options)).settings
    assert (found.running_requests, found.draft_tokens, found.draft_layers) == settings


def test_the_widest_window_counts():
    wide = Layer((Attention(Heads(8, 128, 128), Sliding(512)),), kind="sliding_attention")
    both = model(FULL, WINDOW, wide, name="GptOssForCausalLM", kind="gpt_oss")
    found = answer(both, 1000, kv_memory=GIB, page_size=64).pool
    assert [group.request_blocks for group in found.groups] == [16, 12]  # (512 + 128 + 2 x 64) / 64


def test_windows_of_another_stage_limit_nothing():
    """The first stage has two full layers, and the fewest tokens."""
    found = answer(
        model(FULL, FULL, FULL, WINDOW, name="GptOssForCausalLM", kind="gpt_oss"),
        kv_memory=GIB,
        pipeline_parallel_size=2,
    )
    assert found.pool.tokens == GIB // (2 * TOKEN)
    assert "concurrency is limited by tokens" in found.notes


def test_layers_beyond_the_decoder_s_are_in_a_request():
    bart = model(CROSS, name="BartModel", kind="bart", stated=(("num_hidden_layers", 3),))
    assert answer(bart, 1000, kv_memory=GIB).pool.request_bytes == 3 * 1000 * TOKEN


def test_every_layer_of_a_model_without_a_cache_is_charged():
    found = answer(model(Layer(), Layer(), hidden_size=4096))
    assert [layer.held for layer in found.layers] == [1000 * 32 * 256 * 2] * 2
    assert found.overheads == ()


def test_states_of_one_rank():
    store = Recurrent("mamba", (State("conv", (64, 4)), State("recurrent", (64, 16), "float32")))
    assert slot_bytes(store, Layout(format_of("bfloat16"), format_of("float32"))) == 64 * 3 * 2 + 64 * 16 * 4


def test_a_slot_is_that_of_the_stage_with_the_most_states():
    found = planned(S, S, S, B, B, B, B, B, budget=1_000_950, state_slots=100, stages=4)
    assert found.slot_bytes == 2000
    assert planned(S, B, S, B, budget=1_000_950, state_slots=100, stages=2).slot_bytes == 1000


@pytest.mark.parametrize(
    ("tokens", "settings", "requests"),
    [
        (3000, {}, 1500),  # half the tokens
        (4096, {}, 2048),
        (20_000, {}, 2500),  # 512 x 20,000 / 4,096
        (100_000, {}, 4096),
        (10_000, {}, 2048),
        (3000, {"running_requests": 10}, 10),
        (3000, {"running_requests": 10, "replicas": 4}, 2),
        (3000, {"running_requests": 3, "replicas": 4}, 1),
        (3000, {"running_requests": 2000}, 1500),
    ],
)
def test_requests(tokens, settings, requests):
    assert planned(B, budget=50 * tokens, **settings).requests == requests


def test_a_chunk_beside_windows_keeps_the_ratio():
    chunk = LayerCell(kv=100, window=64, chunked=True)
    assert planned(B, W, chunk, **{**CAP, "budget": 450_000}).window_tokens == 1500


def test_requests_that_the_slots_hold():
    assert planned(S, B, budget=10**6, state_slots=30).requests == 30
    assert planned(S, B, budget=10**6, state_slots=30, slots=4).requests == 7


# -- the default fraction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "graphs"),
    [
        *((3, 0), (4, 1), (32, 8), (47, 8), (48, 9), (256, 22), (287, 22), (288, 23), (512, 30), (575, 30), (576, 31)),
        *((1024, 38), (1279, 38), (1280, 39), (2048, 42), (4096, 50), (4607, 50), (4608, 51), (8192, 58), (16_384, 74)),
    ],
)
def test_sizes_of_prefill_with_a_graph(tokens, graphs):
    assert fraction.prefill_graphs(tokens) == graphs


def test_the_smallest_gpus_have_eight_graphs_whatever_their_number():
    assert fraction.defaults(19.9 * 1024, 4) == (2048, 8)


@pytest.mark.parametrize(
    ("gib", "settings", "mib"),
    [
        (16, {}, 512 + 1.5 * 2048 + 128 + 2 * 8 + 8 * 42),
        (24, {}, 512 + 1.5 * 4096 + 128 + 2 * 48 + 8 * 50),
        (24, {"tensor_parallel": 4}, 512 + 1.5 * 4096 + 4 * 128 + 2 * 160 + 8 * 50),
        (24, {"tensor_parallel": 4, "pipeline_parallel": 2}, 512 + 1.5 * 4096 + 8 * 128 + 2 * 160 + 8 * 50),
        (24, {"attention_replicas": 2}, 512 + 1.5 * 4096 + 128 + 2 * 48 + 48 * 2 * 3 + 8 * 50),
        (24, {"latent": True}, 512 + 1.5 * 4096 + 128 + 2 * 48 + 1536),
        (80, {}, 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58),
        (
            80,
            {"tensor_parallel": 8, "attention_replicas": 8},
            512 + 1.5 * 8192 + 1024 + 2 * 512 + 512 * 8 * 4.5 + 8 * 58,
        ),
        (180, {}, 512 + 1.5 * 16_384 + 128 + 2 * 512 + 8 * 74),
        # a chunk of one's own counts as 2,048 at least; above 60 GiB 10 GiB are left in any case
        (24, {"chunked_prefill": 512}, 512 + 1.5 * 2048 + 128 + 2 * 48 + 8 * 30),
        (24, {"chunked_prefill": 2049}, 512 + 1.5 * 2049 + 128 + 2 * 48 + 8 * 42),
        (60, {"chunked_prefill": 512}, 512 + 1.5 * 2048 + 128 + 2 * 256 + 8 * 30),
        (60.5, {"chunked_prefill": 512}, 10 * 1024),
    ],
)
def test_memory_left_to_activations_and_graphs(gib, settings, mib):
    assert fraction.reserved_mib(gib * 1024, **settings) == mib


def test_the_fraction_has_three_decimals():
    """(24,576 - 7,280) / 24,576 = 0.70377..."""
    assert fraction.mem_fraction_static(24 * 1024) == 0.704
    assert fraction.mem_fraction_static(24 * 1024, pipeline_parallel=2) == 0.699
    assert fraction.mem_fraction_static(24 * 1024, attention_replicas=2) == 0.692
    assert fraction.mem_fraction_static(24 * 1024, latent=True) == 0.658


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "kv", "options", "evidence"),
    [
        (model(FULL), "auto", {}, "exact"),
        (model(FULL), "mxfp8", {}, "derived"),
        (model(FULL), "auto", {"pipeline_parallel_size": 2}, "derived"),
        (model(FULL), "auto", {"num_speculative_tokens": 1}, "derived"),
        (model(FULL), "auto", {"version": "0.5.22"}, "derived"),
        (LONGCAT, "auto", {}, "derived"),
        (GPT, "auto", {}, "exact"),
        (model(FULL, WINDOW, name="Step3p5ForCausalLM", kind="step3p5"), "auto", {}, "derived"),
        (HYBRID, "auto", {}, "exact"),
        (model(DELTA, FULL, name="FalconH1ForCausalLM", kind="falcon_h1"), "auto", {}, "derived"),
    ],
)
def test_what_the_figures_stand_on(geometry, kv, options, evidence):
    assert answer(geometry, kv=kv, **options).evidence == evidence


@pytest.mark.parametrize(("geometry", "name"), [(model(FULL), "pool"), (GPT, "pools"), (HYBRID, "pools")])
def test_one_pool_or_several(geometry, name):
    assert answer(geometry).cache == name


CROSSING_WINDOW = Layer((*WINDOW.stores, CROSS.stores[1]))
CASES = [
    (model(FULL), {}, "was checked", None),
    (model(FULL), {"version": "0.5.22"}, "was checked", "0.5.22 is computed by its rules"),
    (model(FULL), {}, "keeps windows in full", None),
    (GPT, {}, "keeps windows in full", None),
    (model(FULL, WINDOW, name="Gemma2ForCausalLM"), {}, "keeps windows in full", "Gemma2ForCausalLM"),
    (model(FULL), {}, "another layer's cache", None),
    (model(FULL, Layer(FULL.stores, shares=0)), {}, "another layer's cache", "gives buffers to"),
    (model(FULL), {}, "a request's window tokens", None),
    (GPT, {}, "a request's window tokens", "up to 8,192 tokens (--chunked-prefill-size) more"),
    (INDEXED, {}, "in pages of 64 only", None),
    (INDEXED, {"page_size": 32}, "in pages of 64 only", "overrides --page-size 32"),
    (INDEXED, {}, "on Blackwell", "auto is bfloat16 on Hopper"),
    (INDEXED, {"kv": "bfloat16"}, "on Blackwell", None),
    (model(FULL), {}, "on Blackwell", None),
    (model(FULL), {"tokens": 32_768}, "takes requests of up to", None),
    (model(FULL), {"tokens": 32_769}, "takes requests of up to", "32,768 tokens here"),
    (model(FULL), {"tokens": 101, "max_model_len": 100}, "takes requests of up to", "100 tokens here"),
    (model(FULL), {}, "layers of all stages", None),
    (model(FULL, FULL), {"pipeline_parallel_size": 2}, "layers of all stages", "the fewest tokens"),
    (model(FULL), {}, "spread over", None),
    (model(FULL), {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "spread over", "over 2 ranks"),
    (model(FULL), {}, "a draft of", None),
    (model(FULL), {"num_speculative_tokens": 1}, "a draft of", "a draft of 1 layers"),
    (model(FULL), {"kv_memory": GIB}, "the window pool holds", None),
    (model(FULL), {"kv_memory": GIB}, "one of padding", None),
    (model(DELTA, DELTA, name="Qwen3NextForCausalLM", kind="qwen3_next"), {"kv_memory": GIB}, "one page of", None),
    (LONGCAT, {}, "half of these tokens", "with 1 layers; its server counts both attention blocks of each"),
    (LONGCAT, {}, "half of these tokens", "2 in all"),
    (model(CROSS, name="WhisperForConditionalGeneration"), {}, "cross attention", "with 1 layers"),
    (model(CROSS, name="BartModel"), {}, "serves no model of this class", "its sizing code makes of the decoder"),
    (model(FULL, CROSS, name="BartModel"), {}, "serves no model of this class", "its sizing code"),
    (model(FULL, Layer(CROSS.stores[1:]), name="MllamaModel"), {}, "serves no model of this class", None),
    (model(CROSSING_WINDOW, name="BartModel"), {}, "keeps windows in full", "BartModel"),
    (INDEXED, {}, "serves no model of this class", None),
    (model(FULL, Layer()), {}, "caches nothing", None),
    (model(Layer(), hidden_size=4096), {}, "caches nothing", "every layer as attention"),
    (HYBRID, {}, "serves no such model", None),
    (model(DELTA, FULL, kind="jamba"), {}, "serves no such model", "every layer charged as attention"),
]


@pytest.mark.parametrize(("geometry", "options", "about", "words"), CASES)
def test_what_is_said(geometry, options, about, words):
    """The sentence about something, or none."""
    said = [note for note in answer(geometry, **options).notes if about in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


ACCEPTED = [
    model(FULL, name="InternVLChatModel", kind="internlm2"),
    model(
        Layer((Recurrent("mamba2", (State("conv", (128, 4)), State("recurrent", (2, 64, 16))), groups=0),)),
        name="Mamba2ForCausalLM",
        kind="mamba2",
        stated=(("intermediate_size", 128),),
    ),
    model(FULL, name="PixtralForConditionalGeneration", kind="mistral"),
    model(Layer((Attention(MLA),)), name="PixtralForConditionalGeneration", kind="mistral3"),
    INDEXED,
    model(Layer(), hidden_size=4096),
    model(DELTA, name="Qwen3NextForCausalLM", kind="qwen3_next", num_attention_heads=None),
]


def test_language_models_of_internvl_are_listed():
    words = "InternVLChatModel takes gpt_oss, internlm2, llama, qwen2, qwen3, qwen3_moe as its language model"
    with pytest.raises(UnsupportedError, match=words):
        answer(model(FULL, name="InternVLChatModel", kind="phi3"))


def test_a_class_with_a_latent_has_heads_in_no_layer():
    with pytest.raises(UnsupportedError, match="this model caches heads"):
        answer(model(Layer((Attention(MLA),)), FULL, name="DeepseekV2ForCausalLM", kind="deepseek_v2"))


@pytest.mark.parametrize("geometry", ACCEPTED)
def test_what_sglang_loads(geometry):
    assert answer(geometry).total_bytes > 0
