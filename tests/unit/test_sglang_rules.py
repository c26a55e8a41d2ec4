"""SGLang's rules one by one, and what must hold for every model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.engines import Workload
from kvsize.engines import sglang as engine
from kvsize.engines.sglang import fraction, models
from kvsize.engines.sglang.cells import Layout, charged_layers, latent_bytes, layer_cells, slot_bytes
from kvsize.engines.sglang.pool import Settings, plan, stage_ranges
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import format_of
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

GIB = 1 << 30
HEADS = Heads(8, 128, 128)
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(128)),), kind="sliding_attention")
MLA = Latent(512, 64, Heads(128, 192, 128))
DELTA = Recurrent("gated_delta", (State("conv", (8192, 4)), State("recurrent", (32, 128, 128), "float32")))


def model(*layers, name="LlamaForCausalLM", kind="llama", **rest):
    rest = {"num_attention_heads": 32, "max_tokens": 32768, "dtype": "bfloat16", **rest}
    return Geometry(kind, layers, architecture=name, **rest)


def answer(geometry, tokens=1000, sequences=1, kv="auto", **options):
    return engine.size(geometry, Workload(tokens, sequences, kv, kv), engine.Options(**options))


def cells(geometry, **layout):
    bf16 = format_of("bfloat16")
    return layer_cells(geometry, Layout(**{"unit": bf16, "state": format_of("float32"), **layout}))


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (3, 2)])
def test_heads_are_divided_down_to_one(ranks, heads):
    assert cells(model(FULL), tensor=ranks)[0].kv == heads * 256 * 2


def test_a_context_group_shares_heads_among_fewer_ranks():
    assert cells(model(FULL), tensor=8, context=4)[0].kv == 4 * 256 * 2


def test_attention_replicas_keep_all_heads():
    size = answer(model(FULL), tensor_parallel_size=8, data_parallel_size=8)
    assert size.total_bytes == 1000 * 8 * 256 * 2


@pytest.mark.parametrize(
    ("unit", "raw", "indexed", "want"),
    [
        ("bfloat16", False, False, 1152),
        ("fp8_e4m3", False, False, 576),
        ("bfloat16", False, True, 1152),
        ("fp8_e4m3", False, True, 656),
        ("fp8_e4m3", True, True, 576),
        ("fp8_e5m2", False, True, 576),
    ],
)
def test_the_latent_carries_scales_in_fp8_with_an_indexer(unit, raw, indexed, want):
    assert latent_bytes(MLA, Layout(format_of(unit), format_of("float32"), raw_latent=raw), indexed) == want


def test_an_indexer_adds_132_bytes_a_layer_that_runs_it():
    own = Layer((Attention(MLA), Attention(IndexKey(128))))
    shared = Layer((Attention(MLA),))
    found = cells(model(own, shared, name="GlmMoeDsaForCausalLM", kind="glm_moe_dsa"))
    assert [cell.token for cell in found] == [1152 + 132, 1152]


def test_mxfp8_adds_a_byte_for_32_elements():
    assert answer(model(FULL), kv="mxfp8").total_bytes == 1000 * (2048 + 64)


def test_layers_that_share_are_charged_too():
    reader = Layer(FULL.stores, shares=0)
    size = answer(model(FULL, reader, kind="gemma3n_text", name="Gemma3nForCausalLM"))
    assert size.layers[0] == size.layers[1]
    assert any("read another layer's cache" in note for note in size.notes)


def test_cross_attention_has_no_buffer():
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder())))
    assert cells(model(both))[0].kv == 4096


def test_a_decoder_shorter_than_num_hidden_layers_is_charged_in_full():
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder())))
    size = answer(model(both, both, kind="marian", name="MarianMTModel", stated=(("num_hidden_layers", 6),)))
    assert size.total_bytes == 6 * 1000 * 4096
    assert size.overhead_bytes == 4 * 1000 * 4096


@pytest.mark.parametrize("key", ["encoder_layers", "num_layers"])
def test_without_num_hidden_layers_the_encoders_depth_counts(key):
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder())))
    assert charged_layers(model(both, both, kind="bart", name="BartModel", stated=((key, 4),))) == 4
    assert charged_layers(model(both, both, kind="bart", name="BartModel")) == 2


def test_models_without_a_cache_are_charged_as_attention():
    nothing = Layer(kind="no_cache")
    size = answer(model(nothing, nothing, kind="openai-gpt", name="OpenAIGPTLMHeadModel", hidden_size=4096))
    assert size.total_bytes == 2 * 1000 * 2 * 4096 * 2
    assert size.evidence == "derived"


def test_one_tensor_for_k_and_v_is_counted_twice():
    states = Layer((Attention(Heads(1, 4096, 0)),))
    found = cells(model(states, kind="xlnet", name="XLNetLMHeadModel", hidden_size=4096), tensor=8)
    assert found[0].kv == 4 * 256 * 2


def test_a_stray_head_count_is_trusted_over_the_class():
    stated = (("num_key_value_heads", 2), ("hidden_size", 4096))
    mha = Layer((Attention(Heads(32, 128, 128)),))
    assert cells(model(mha, kind="opt", name="OPTForCausalLM", stated=stated))[0].kv == 2 * 256 * 2


def test_the_first_chatglm_is_charged_one_head():
    mha = Layer((Attention(Heads(32, 128, 128)),))
    assert cells(model(mha, kind="chatglm", name="ChatGLMModel"))[0].kv == 512


def test_types_without_a_state_pool_are_charged_as_attention():
    mamba = Layer((Recurrent("mamba", (State("conv", (8192, 4)), State("recurrent", (8192, 16), "float32"))),))
    size = answer(model(mamba, FULL, kind="jamba", name="JambaForCausalLM"))
    assert [layer.held for layer in size.layers] == [1000 * 4096, 1000 * 4096]
    assert (size.evidence, "every layer charged as attention" in " ".join(size.notes)) == ("derived", True)


def test_longcat_is_counted_once_a_layer_and_says_so():
    blocks = (Layer((Attention(MLA),)),) * 4
    geometry = model(*blocks, kind="longcat_flash", name="LongcatFlashForCausalLM")
    assert charged_layers(geometry) == 2
    size = answer(geometry, kv_memory=GIB)
    assert size.pool is not None
    assert size.pool.tokens == GIB // (2 * 1152)
    assert size.total_bytes == 4 * 1000 * 1152
    assert any("holds half of these tokens" in note for note in size.notes)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_windows_are_kept_in_full_off_the_list():
    size = answer(model(FULL, WINDOW, kind="gemma2", name="Gemma2ForCausalLM"), 10_000)
    assert size.layers[1].held == 10_000 * 4096
    assert any("not on its list" in note for note in size.notes)


def test_a_request_holds_window_interval_and_two_pages():
    geometry = model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")
    size = answer(geometry, 10_000, page_size=64)
    assert size.layers[1].held == (128 + 128 + 64 + 64) * 4096
    assert size.layers[1].after_prefill == 8576 * 4096  # and a chunk of 8,192, in whole pages
    assert answer(geometry, 100, page_size=64).layers[1].held == 128 * 4096


def test_the_window_pool_takes_its_ratio():
    geometry = model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")
    size = answer(geometry, kv_memory=GIB, swa_full_tokens_ratio=0.5)
    assert size.pool is not None
    assert size.pool.tokens == int(GIB // (4096 * 1.5))
    assert [group.name for group in size.pool.groups] == ["full attention", "window"]


def test_a_request_limit_without_prefix_sharing_caps_the_window_pool():
    settings = Settings(page=64, context_length=4096, running_requests=64, radix=False)
    found = cells(model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM"))
    assert plan(found, GIB, settings).window_tokens == 41_024


def test_a_chunk_is_no_window_for_that_cap():
    chunked = Layer((Attention(HEADS, Chunked(8192)),))
    settings = Settings(page=64, context_length=4096, running_requests=64, radix=False)
    found = cells(model(FULL, chunked, kind="llama4_text", name="Llama4ForConditionalGeneration"))
    pools = plan(found, GIB, settings)
    assert pools.window_tokens == int(pools.tokens * 0.8) // 64 * 64


def test_only_windows_need_no_ratio():
    pools = plan(
        cells(model(WINDOW, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")), GIB, Settings(1, 4096, window_ratio=0.1)
    )
    assert (pools.tokens, pools.window_tokens, pools.full_bytes) == (GIB // 8192, GIB // 8192, 0)


def test_a_window_pool_below_one_request_is_refused():
    geometry = model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")
    with pytest.raises(UnsupportedError, match="below one request"):
        answer(geometry, kv_memory=1 << 20)


# -- states ------------------------------------------------------------------------------------------------------------

HYBRID = model(
    Layer((DELTA,)), FULL, kind="qwen3_next", name="Qwen3NextForCausalLM", num_attention_heads=16, max_tokens=262_144
)


@pytest.mark.parametrize(
    ("ranks", "channels"),
    [(1, 8192), (16, 512), (32, (8192 + 2 * 128 * 16) // 32)],  # 16 key heads on 32 ranks are copied
)
def test_a_slot_keeps_one_column_less_and_is_spread(ranks, channels):
    layout = Layout(format_of("bfloat16"), format_of("float32"), tensor=ranks, ranks=ranks)
    assert slot_bytes(DELTA, layout) == channels * 3 * 2 + 32 // ranks * 128 * 128 * 4


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UnsupportedError, match="do not divide by 3"):
        answer(HYBRID, tensor_parallel_size=3)


def test_mamba_1_is_spread_over_all_ranks():
    store = Recurrent("mamba", (State("conv", (5120, 4)), State("recurrent", (5120, 16), "float32")))
    layout = Layout(format_of("bfloat16"), format_of("float32"), tensor=1, ranks=8)
    assert slot_bytes(store, layout) == 640 * 3 * 2 + 640 * 16 * 4


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, 5),
        ({"mamba_radix_cache_strategy": "no_buffer"}, 3),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
        ({"disable_radix_cache": True}, 1),
    ],
)
def test_a_request_ties_up_slots(options, slots):
    per_slot = 8192 * 3 * 2 + 32 * 128 * 128 * 4
    assert answer(HYBRID, **options).layers[0].held == slots * per_slot


def test_the_state_format_can_be_given():
    assert answer(HYBRID, mamba_ssm_cache_dtype="bfloat16").layers[0].logical == 8192 * 3 * 2 + 32 * 128 * 128 * 2


def test_slots_take_nine_nineteenths_and_the_rest_is_tokens():
    size = answer(HYBRID, kv_memory=GIB)
    per_slot = 8192 * 3 * 2 + 32 * 128 * 128 * 4
    slots = int((GIB * 0.9 / 1.9 - per_slot) // per_slot)
    assert size.pool is not None
    assert size.pool.tokens == (GIB - (slots + 1) * per_slot) // 4096
    assert size.pool.max_concurrency == min(size.pool.tokens / 1000, slots // 5)
    assert any("limited by state slots" in note for note in size.notes)


def test_drafts_take_their_share_of_the_state_budget():
    plain, drafting = answer(HYBRID, kv_memory=GIB), answer(HYBRID, kv_memory=GIB, num_speculative_tokens=3)
    assert plain.pool is not None
    assert drafting.pool is not None
    assert drafting.pool.tokens < plain.pool.tokens
    assert drafting.evidence == "derived"


def test_a_draft_layer_is_charged_like_the_models_own():
    size = answer(model(*[FULL] * 32), kv_memory=GIB, num_speculative_tokens=3)
    assert size.pool is not None
    assert size.pool.tokens == GIB // (33 * 4096)


def test_stages_take_the_layers_left_over_last():
    assert stage_ranges(10, 4) == [(0, 2), (2, 4), (4, 7), (7, 10)]
    size = answer(model(*[FULL] * 10), kv_memory=GIB, pipeline_parallel_size=4)
    assert size.pool is not None
    assert size.pool.tokens == GIB // (3 * 4096)


def test_a_stage_without_attention_does_not_limit_the_pool():
    layers = (*[Layer((DELTA,))] * 3, FULL)
    geometry = model(*layers, kind="qwen3_next", name="Qwen3NextForCausalLM")
    size = answer(geometry, kv_memory=GIB, pipeline_parallel_size=2)
    assert size.pool is not None
    assert 0 < size.pool.tokens < GIB // 4096


# -- formats, limits, refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "kind", "want"),
    [
        ("bfloat16", "llama", "bfloat16"),
        ("float16", "llama", "float16"),
        ("float32", "llama", "float16"),
        (None, "llama", "float16"),
        ("float32", "gemma2", "bfloat16"),
    ],
)
def test_float32_is_cast_down(dtype, kind, want):
    assert engine.kv_format(model(FULL, kind=kind, dtype=dtype), Workload(1))[0] == want


@pytest.mark.parametrize(("scheme", "want"), [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("nvfp4", "bfloat16")])
def test_a_checkpoint_with_fp8_scales_gets_an_fp8_cache(scheme, want):
    assert engine.kv_format(model(FULL, kv_scheme=scheme), Workload(1))[0] == want
    assert engine.kv_format(model(FULL, kv_scheme=scheme), Workload(1, 1, "bfloat16", "bfloat16"))[0] == "bfloat16"


@pytest.mark.parametrize("kv", ["nvfp4", "mxfp4", "q8_0", "int8"])
def test_formats_without_a_modelled_pool_are_refused(kv):
    with pytest.raises(UnsupportedError):
        answer(model(FULL), kv=kv)


def test_k_and_v_share_a_format():
    with pytest.raises(UnsupportedError, match="one format"):
        engine.size(model(FULL), Workload(1, 1, "fp8_e4m3", "bfloat16"), engine.Options())


REFUSED = [
    (model(FULL, name=None), "names no class"),
    (model(FULL, kind="phi3", name="InternVLChatModel"), "as its language model"),
    (model(FULL, kind="internlm2", name="InternLM2ForCausalLM"), "trust-remote-code"),
    (model(FULL, kind="mamba2", name="Mamba2ForCausalLM"), "intermediate_size"),
    (model(Layer((Compressed(512, 128, 128, False),)), kind="deepseek_v4", name="DeepseekV4ForCausalLM"), "compressed"),
    (model(FULL, kind="gemma4_text", name="Gemma4ForCausalLM"), "text-only"),
    (model(Layer((Attention(MLA),)), name="YoutuForCausalLM", kind="youtu"), "not among those"),
    (model(FULL, name="DeepseekV2ForCausalLM", kind="deepseek_v2"), "caches heads"),
    (model(Layer((Attention(HEADS), Attention(IndexKey(128))))), "indexer"),
    (model(FULL, name="GptOssForCausalLM", kind="gpt_oss"), "no layer has a window"),
    (model(Layer(), num_attention_heads=None), "no layer caches"),
]


@pytest.mark.parametrize(("geometry", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_no_rule_covers_is_refused_with_a_way_on(geometry, words):
    with pytest.raises(UnsupportedError, match=words) as error:
        answer(geometry)
    assert "--engine" in str(error.value)


def test_laguna_without_windows_is_charged_in_full():
    assert not models.windows_pooled(model(FULL, name="LagunaForCausalLM", kind="laguna"))
    assert answer(model(FULL, name="LagunaForCausalLM", kind="laguna")).total_bytes == 4096_000


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(UnsupportedError, match="32,768 tokens"):
        answer(model(FULL), max_model_len=40_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensor_parallel_size": 0},
        {"page_size": 0},
        {"tensor_parallel_size": 4, "data_parallel_size": 8},
        {"swa_full_tokens_ratio": 1.5},
        {"mamba_full_memory_ratio": 0.0},
        {"mamba_radix_cache_strategy": "none"},
        {"max_running_requests": 0},
    ],
)
def test_settings_out_of_bounds_are_usage_errors(wrong):
    with pytest.raises(UsageError):
        engine.Options(**wrong)


def test_an_indexer_sets_the_page_unless_one_is_given():
    dsa = model(Layer((Attention(MLA), Attention(IndexKey(128)))), name="DeepseekV32ForCausalLM", kind="deepseek_v32")
    assert answer(dsa).step_tokens == 64
    assert any("pages of 64 only" in note for note in answer(dsa, page_size=1).notes)


def test_another_release_is_derived():
    size = answer(model(FULL), version="0.4.9")
    assert (size.version, size.evidence) == ("0.4.9", "derived")
    assert any("only sglang 0.5.23 was checked" in note for note in size.notes)


@pytest.mark.parametrize(
    ("limit", "options"),
    [("tokens", {}), ("max_running_requests", {"max_running_requests": 2})],
)
def test_the_notes_name_what_limits_concurrency(limit, options):
    size = answer(model(FULL), kv_memory=GIB, **options)
    assert f"concurrency is limited by {limit}" in size.notes


def test_a_user_limit_caps_the_pool():
    size = answer(model(FULL), kv_memory=GIB, max_total_tokens=1000, page_size=64)
    assert size.pool is not None
    assert size.pool.tokens == 960


# -- the default fraction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib", "ranks", "latent", "want"),
    [
        # 512 + 1.5 * 4096 + 128 + 2 * 48 + 8 * 50 graphs = 7280 MiB of 24 GiB
        (24, 1, False, round((24576 - 7280) / 24576, 3)),
        # 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58 graphs = 13904 MiB
        (80, 1, False, round((81920 - 13904) / 81920, 3)),
        # 512 + 1.5 * 8192 + 1024 + 2 * 512 + 1536 = 16384 MiB
        (80, 8, True, round((81920 - 16384) / 81920, 3)),
    ],
)
def test_the_default_fraction_leaves_room_for_activations(gib, ranks, latent, want):
    assert fraction.mem_fraction_static(gib * 1024, tensor_parallel=ranks, latent=latent) == want


def test_attention_replicas_pad_their_graphs():
    plain = fraction.mem_fraction_static(80 * 1024, tensor_parallel=8)
    assert fraction.mem_fraction_static(80 * 1024, tensor_parallel=8, attention_replicas=8) < plain


@given(gib=st.integers(20, 300), ranks=st.sampled_from([1, 2, 4, 8]))
def test_the_fraction_is_a_fraction(gib, ranks):
    assert 0 < fraction.mem_fraction_static(gib * 1024, tensor_parallel=ranks) < 1


# -- properties --------------------------------------------------------------------------------------------------------

GEOMETRIES = st.sampled_from(
    [
        model(FULL, FULL),
        model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM"),
        model(FULL, WINDOW, kind="gemma2", name="Gemma2ForCausalLM"),
        model(Layer((Attention(MLA),)), kind="deepseek_v3", name="DeepseekV3ForCausalLM"),
        HYBRID,
    ]
)


@given(geometry=GEOMETRIES, tokens=st.integers(1, 40_000), page=st.sampled_from([1, 16, 64, 128]))
def test_a_request_grows_with_its_tokens_in_whole_pages(geometry, tokens, page):
    here, more = (answer(geometry, count, page_size=page) for count in (tokens, tokens + 1))
    assert here.logical_bytes <= more.logical_bytes
    assert here.total_bytes <= more.total_bytes
    assert here.logical_bytes <= here.total_bytes <= here.peak_bytes
    rounded = -(-tokens // page) * page
    assert here.total_bytes == answer(geometry, rounded, page_size=page).total_bytes


@given(geometry=GEOMETRIES, tokens=st.integers(1, 10_000), sequences=st.integers(1, 64))
def test_sequences_multiply(geometry, tokens, sequences):
    assert answer(geometry, tokens, sequences).total_bytes == sequences * answer(geometry, tokens).total_bytes


@given(geometry=GEOMETRIES, budget=st.integers(GIB // 4, 8 * GIB), page=st.sampled_from([1, 64]))
def test_a_pool_fits_its_budget_and_grows_with_it(geometry, budget, page):
    small = answer(geometry, kv_memory=budget, page_size=page).pool
    large = answer(geometry, kv_memory=budget + GIB, page_size=page).pool
    assert small is not None
    assert large is not None
    assert small.tokens % page == 0
    assert small.tokens <= large.tokens
    assert small.num_blocks * small.bytes_per_block <= budget


@given(geometry=GEOMETRIES, ranks=st.sampled_from([1, 2, 4, 8]))
def test_more_ranks_never_take_more_a_rank(geometry, ranks):
    here, half = (answer(geometry, tensor_parallel_size=count).total_bytes for count in (ranks, 2 * ranks))
    assert half <= here


def test_a_window_as_wide_as_the_request_equals_full():
    wide = Layer((Attention(HEADS, Sliding(100_000)),))
    both = model(FULL, wide, kind="gpt_oss", name="GptOssForCausalLM")
    assert answer(both, 5000).total_bytes == answer(model(FULL, FULL), 5000).total_bytes


@pytest.mark.parametrize(
    ("layers", "width", "factor"),
    [
        (24, 1024, 0.95),
        (27, 1152, 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))),  # 0.910
        (50, 1536, 0.95 * 0.8),  # 4.7 times ViT-L/14
        (5, 32, 0.95 * 1.05),
    ],
)
def test_a_model_that_sees_leaves_more(layers, width, factor):
    assert fraction.vision_factor(layers, width) == pytest.approx(factor, rel=1e-12)


def test_a_smaller_chunk_leaves_less():
    # 512 + 1.5 * 2048 + 128 + 2 * 48 + 8 * 42 graphs up to 2048 tokens
    assert fraction.reserved_mib(24 * 1024, chunked_prefill=2048) == 512 + 3072 + 128 + 96 + 336
    # fewer than 2048 tokens count as so many; graphs up to 1024 tokens: 4 to 32, 48 to 256, 288 to 512, 576 to 1024
    assert fraction.reserved_mib(24 * 1024, chunked_prefill=1024) == 512 + 3072 + 128 + 96 + 8 * (8 + 14 + 8 + 8)
