"""vLLM: blocks, shares and sentences worked out by hand, where no compared plan holds a rule in place."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Group, LayerBytes, Pool, Workload
from kvsize.engines import vllm as engine
from kvsize.engines.vllm.formats import KV_FORMATS, index_key_bytes, name_of
from kvsize.engines.vllm.groups import stages
from kvsize.engines.vllm.models import LAST_RELEASE, STATES
from kvsize.errors import UnsupportedError
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
TOKEN = 8 * 256 * 2  # bytes of one token of FULL
FULL = Layer((Attention(Heads(8, 128, 128)),))
HALF = Layer((Attention(Heads(4, 128, 128)),))
WINDOW = Layer((Attention(Heads(8, 128, 128), Sliding(1024)),), kind="sliding_attention")
CHUNK = Layer((Attention(Heads(8, 128, 128), Chunked(1024)),), kind="chunked_attention")
MLA = Layer((Attention(Latent(512, 64, Heads(128, 192, 128))),))
DSA = Layer((*MLA.stores, Attention(IndexKey(128))))
CROSS = Layer((Attention(Heads(8, 128, 128)), Attention(Heads(8, 128, 128), Encoder(tokens=1500))))
NOTHING = Layer(kind="mlp")


def mamba(channels: int) -> Layer:
    """(3 + 16) x channels elements in bfloat16."""
    return Layer((Recurrent("mamba", (State("conv", (channels, 4)), State("recurrent", (channels, 16)))),))


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    values = {"dtype": "bfloat16", "max_tokens": 131_072, "num_attention_heads": 32, **fields}
    return Geometry(kind, layers, **values)


def size(geometry: Geometry, tokens: int = 8192, kv: str = "auto", encoder: int | None = None, **options) -> CacheSize:
    return engine.size(geometry, Workload(tokens, 1, kv, kv, encoder), engine.Options(**options))


def logical(*layers: Layer, tokens: int = 8192, **rest) -> list[int]:
    kind = rest.pop("kind", "llama")
    return [layer.logical for layer in size(model(*layers, kind=kind), tokens, **rest).layers]


# -- formats -----------------------------------------------------------------------------------------------------------

LATENTS = {  # of 576 elements: without an indexer, and with one
    "bfloat16": (1152, 1152),
    "float16": (1152, 1152),
    "fp8": (576, 576),
    "fp8_e4m3": (576, 576),
    "fp8_ds_mla": (None, 656),
    "nvfp4_ds_mla": (None, 352),
}


@pytest.mark.parametrize("name", KV_FORMATS)
def test_bytes_of_a_latent(name):
    entry = KV_FORMATS[name]
    found = tuple(None if width is None else width(576) for width in (entry.latent, entry.indexed))
    assert found == LATENTS.get(name, (None, None))


def test_which_formats_need_blackwell_are_packed_or_want_k_as_wide_as_v():
    def named(flag: str) -> set[str]:
        return {name for name, entry in KV_FORMATS.items() if getattr(entry, flag)}

    turbo = {"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"}
    assert named("blackwell") == {"nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"}
    assert named("packed") == turbo
    assert named("symmetric") == turbo | {"nvfp4", "nvfp4_4over6"}


@pytest.mark.parametrize(("dim", "bytes_"), [(64, 64), (128, 132), (256, 264)])
def test_an_index_key_has_a_scale_for_each_128(dim, bytes_):
    assert index_key_bytes(dim) == bytes_


@pytest.mark.parametrize(
    ("text", "name"), [("BF16", "bfloat16"), ("fp16", "float16"), ("FP8", "fp8"), ("fp8_E5M2", "fp8_e5m2")]
)
def test_names_of_formats(text, name):
    assert name_of(text) == name


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_hybrid_s_block_covers_the_widest_states_with_the_widest_attention():
    """128 channels are 4,864 bytes; 16 tokens of two heads of 16 are 2,048: 3 x 16 tokens."""
    narrow, wide = (Layer((Attention(Heads(count, 16, 16)),)) for count in (1, 2))
    found = size(model(mamba(64), mamba(128), narrow, wide, kind="jamba"), kv_memory=GIB).pool
    assert [(group.name, group.page_bytes) for group in found.groups] == [
        ("recurrent states", 6144),
        ("recurrent states", 6144),
        ("full attention", 6144),
        ("full attention", 6144),
    ]
    assert sorted(group.block_tokens for group in found.groups) == [48, 48, 48, 96]
    assert found.block_size == 48


@pytest.mark.parametrize(("caching", "block"), [(True, 16), (False, 8192)])
def test_states_alone_have_the_kernels_block_under_prefix_caching(caching, block):
    found = size(model(mamba(64), kind="mamba"), kv_memory=GIB, enable_prefix_caching=caching)
    assert found.pool.block_size == block


@pytest.mark.parametrize(("tp", "dcp", "step"), [(1, 1, 16), (16, 1, 16), (16, 2, 32)])
def test_context_parallel_ranks_take_a_block_each(tp, dcp, step):
    found = size(model(FULL), tensor_parallel_size=tp, decode_context_parallel_size=dcp)
    assert found.step_tokens == step


@pytest.mark.parametrize(
    ("layers", "pp", "unit", "shares"),
    [
        (10, 1, 1, [10]),
        (10, 4, 1, [2, 3, 3, 2]),
        (11, 4, 1, [3, 3, 3, 2]),
        (12, 4, 1, [3, 3, 3, 3]),
        (10, 2, 2, [6, 4]),  # 5 units: the last stage has fewer
    ],
)
def test_layers_left_over_go_to_the_middle(layers, pp, unit, shares):
    found = stages(layers, pp, unit)
    assert [len(span) for span in found] == shares
    assert [index for span in found for index in span] == list(range(layers))


# -- whose bytes -------------------------------------------------------------------------------------------------------


def test_layers_without_a_cache_pay_nothing():
    assert size(model(FULL, NOTHING)).layers[1] == LayerBytes(0, 0, 0)


@pytest.mark.parametrize(("layer", "tokens", "kept"), [(WINDOW, 8192, 1024), (CHUNK, 8192, 1024), (WINDOW, 100, 100)])
def test_a_window_reaches_so_far(layer, tokens, kept):
    assert logical(layer, tokens=tokens) == [kept * TOKEN]


def test_a_rank_s_share_of_the_context():
    options = {"tensor_parallel_size": 16, "decode_context_parallel_size": 2}
    assert logical(FULL, tokens=8191, **options) == [4096 * 512]


def test_states_and_encoder_tokens_reach_as_they_are():
    assert logical(mamba(64), kind="mamba") == [64 * 19 * 2]
    assert logical(CROSS, tokens=448, kind="whisper") == [(448 + 8192) * TOKEN]
    assert logical(CROSS, tokens=448, kind="whisper", encoder=10_000) == [(448 + 8192) * TOKEN]


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "kv", "device", "name", "source"),
    [
        (model(FULL), "auto", None, "bfloat16", "config"),
        (model(FULL), "fp8", None, "fp8", "given"),
        (model(FULL, dtype=None), "auto", None, "bfloat16", "vLLM computes in bfloat16 where"),
        (model(FULL, kv_scheme="fp8"), "auto", None, "fp8", "the checkpoint's own"),
        (model(FULL, kind="falcon"), "fp8", None, "bfloat16", "the model's dtype: vLLM's Falcon"),
        (model(DSA, kind="deepseek_v32"), "fp8", "9.0", "fp8_ds_mla", "what vLLM's sparse attention keeps for fp8"),
        (model(DSA, kind="deepseek_v32"), "fp8", "8.0", "fp8", "given"),
        (model(DSA, kind="deepseek_v32"), "fp8", "12.0", "fp8_ds_mla", "what vLLM's"),
        (model(DSA, kind="deepseek_v32"), "fp8_e4m3", "12.0", "fp8_ds_mla", "what vLLM's"),
        (model(DSA, kind="deepseek_v32"), "bfloat16", "12.0", "bfloat16", "given"),
        (model(DSA, kind="deepseek_v32"), "auto", "12.0", "fp8_ds_mla", "what vLLM's"),
        (model(DSA, kind="deepseek_v32"), "auto", "9.0", "bfloat16", "config"),
        (model(MLA, kind="deepseek_v3"), "fp8", "9.0", "fp8", "given"),
        (model(DSA, kind="glm_moe_dsa"), "auto", "10.0", "fp8_e4m3", "vLLM's default for GLM"),
        (model(DSA, kind="glm_moe_dsa"), "auto", "9.0", "bfloat16", "config"),
        (model(DSA, kind="deepseek_v32"), "auto", "10.0", "bfloat16", "config"),
        (model(FULL), "nvfp4", None, "nvfp4", "given"),
    ],
)
def test_the_format_and_why(geometry, kv, device, name, source):
    found = size(geometry, kv=kv, device_capability=device)
    assert found.k_format == name
    assert found.format_source.startswith(source)


@pytest.mark.parametrize(
    ("options", "in_flight"),
    [
        ({}, 16_384),
        ({"async_scheduling": False}, 8192),
        ({"max_num_batched_tokens": 1000}, 2000),
        ({"pipeline_parallel_size": 2}, 24_576),
        ({"pipeline_parallel_size": 2, "async_scheduling": False}, 16_384),
        ({"device_capability": "12.0"}, 4096),
        ({"device_capability": "8.0"}, 4096),
        ({"device_capability": "10.0"}, 32_768),
        ({"version": "0.27.0", "device_capability": "10.0"}, 16_384),
        ({"version": "0.25.0"}, 8192),
    ],
)
def test_tokens_in_flight(options, in_flight):
    notes = size(model(FULL, WINDOW), **options).notes
    assert any(f"is given up to {in_flight:,} more" in note for note in notes)


@pytest.mark.parametrize(
    ("drafted", "method", "layers"), [(0, "mtp", 0), (1, "mtp", 1), (3, "mtp", 1), (3, "ngram", 0)]
)
def test_layers_that_draft(drafted, method, layers):
    found = size(model(MLA, MLA, kind="deepseek_v3"), num_speculative_tokens=drafted, speculative_method=method)
    assert found.overhead_bytes == layers * 8192 * 1152


def test_a_draft_is_like_the_last_layer():
    narrow = Layer((Attention(Latent(256, 64, Heads(128, 192, 128))),))
    options = {"num_speculative_tokens": 1, "speculative_method": "mtp"}
    assert size(model(MLA, narrow, kind="deepseek_v3"), **options).overhead_bytes == 8192 * 320 * 2


@pytest.mark.parametrize(
    ("count", "packed"), [(1, "1"), (2, "00"), (3, "010"), (4, "0000"), (5, "00100"), (6, "001100")]
)
def test_outermost_layers_stay_in_the_models_dtype(count, packed):
    """A head of 128 takes 196 bytes in turboquant_k8v4, else 512."""
    found = logical(*[FULL] * count, kv="turboquant_k8v4")
    assert found == [8192 * 8 * (196 if letter == "1" else 512) for letter in packed]


# -- ranks and states --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "tp", "each"), [(8, 8, 1), (8, 4, 2), (8, 16, 1), (3, 6, 1), (6, 4, None), (8, 3, None), (4, 6, None)]
)
def test_heads_of_a_rank(heads, tp, each):
    geometry = model(Layer((Attention(Heads(heads, 128, 128)),)), num_attention_heads=None)
    if each is not None:
        assert size(geometry, tensor_parallel_size=tp).total_bytes == 8192 * each * 512
        return
    with pytest.raises(UnsupportedError, match=f"cannot split {heads} KV heads over {tp} ranks"):
        size(geometry, tensor_parallel_size=tp)


@pytest.mark.parametrize(("k", "v", "fits"), [(8, 8, True), (16, 8, True), (4, 8, False), (8, 4, False)])
def test_widths_of_a_quantised_head(k, v, fits):
    geometry = model(Layer((Attention(Heads(8, k, v)),)))
    assert size(geometry).total_bytes == 8192 * 8 * (k + v) * 2
    if fits:
        assert size(geometry, kv="fp8").total_bytes == 8192 * 8 * (k + v)
        return
    with pytest.raises(UnsupportedError, match="no vLLM kernel takes a fp8 cache"):
        size(geometry, kv="fp8")


@pytest.mark.parametrize(("batch", "yields", "reach"), [(8192, 1500, 8192), (1024, 1500, 1500), (1024, None, 1024)])
def test_encoder_tokens_of_a_request(batch, yields, reach):
    heads = Heads(8, 128, 128)
    both = Layer((Attention(heads), Attention(heads, Encoder(tokens=yields))))
    found = size(model(both, kind="whisper"), 448, max_num_batched_tokens=batch, kv_memory=GIB).pool
    assert found.request_blocks == 28 + -(-reach // 16)


CONV, WIDE = State("conv", (2304, 4)), State("recurrent", (32, 64, 128))


def states(kind: str, mixer: str, groups: int = 0, **options) -> int:
    geometry = model(Layer((Recurrent(mixer, (CONV, WIDE), groups=groups),)), kind=kind, **options.pop("fields", {}))
    return size(geometry, enable_prefix_caching=False, **options).layers[0].logical


@pytest.mark.parametrize(
    ("kind", "mixer", "columns"),
    [("mamba2", "mamba2", 6), ("qwen3_next", "gated_delta", 6), ("kimi_linear", "kda", 6), ("mamba", "mamba", 3)],
)
def test_columns_for_drafted_tokens(kind, mixer, columns):
    elements = 4 if kind == "kimi_linear" else 2
    drafting = states(kind, mixer, num_speculative_tokens=3)
    assert drafting == 2304 * columns * 2 + 32 * 64 * 128 * elements
    assert states(kind, mixer) == 2304 * 3 * 2 + 32 * 64 * 128 * elements


@pytest.mark.parametrize(
    ("groups", "tp", "channels"), [(1, 1, 2304), (1, 2, (2304 + 256) // 2), (1, 4, (2304 + 3 * 256) // 4), (2, 2, 1152)]
)
def test_a_single_group_is_copied_to_each_rank(groups, tp, channels):
    found = states("mamba2", "mamba2", groups, tensor_parallel_size=tp)
    assert found == channels * 3 * 2 + 32 // tp * 64 * 128 * 2


@pytest.mark.parametrize(
    ("kind", "fields", "options", "conv", "wide"),
    [
        ("mamba2", {"state_dtype": "float32"}, {}, 2, 2),
        ("nemotron_h", {}, {}, 2, 4),
        ("nemotron_h", {"state_dtype": "bfloat16"}, {}, 2, 2),
        ("qwen3_5_text", {}, {}, 2, 2),
        ("qwen3_5_text", {"state_dtype": "float32"}, {}, 2, 4),
        ("qwen3_5_text", {"state_dtype": "float32", "architecture": "Qwen3_5ForCausalLM"}, {}, 2, 4),
        ("qwen3_5_text", {"state_dtype": "float32", "architecture": "MiniCPMV4_6"}, {}, 2, 2),
        ("kimi_linear", {}, {}, 2, 4),
        ("mamba2", {}, {"mamba_cache_dtype": "float32"}, 4, 4),
        ("mamba2", {}, {"mamba_ssm_cache_dtype": "float32"}, 2, 4),
        ("kimi_linear", {}, {"mamba_ssm_cache_dtype": "bfloat16"}, 2, 2),
        ("kimi_linear", {}, {"mamba_cache_dtype": "float32"}, 4, 4),
    ],
)
def test_formats_of_states(kind, fields, options, conv, wide):
    assert states(kind, "mamba2", fields=fields, **options) == 2304 * 3 * conv + 32 * 64 * 128 * wide


DELTA = Layer((Recurrent("gated_delta", (State("conv", (8192, 4)), State("recurrent", (32, 128, 128)))),))
KDA = Layer((Recurrent("kda", DELTA.stores[0].states),))


@pytest.mark.parametrize(
    ("layer", "kind", "name", "device", "version", "blocks"),
    [
        (DELTA, "qwen3_next", None, "9.0", "0.33.0", 3),
        (DELTA, "qwen3_next", None, "10.0", "0.33.0", 3),
        (DELTA, "qwen3_next", None, "12.0", "0.33.0", 3),
        (DELTA, "qwen3_next", None, "8.0", "0.33.0", 2),
        (DELTA, "qwen3_next", None, "11.0", "0.33.0", 2),
        (DELTA, "qwen3_next", None, "9.0", "0.32.0", 2),
        (KDA, "kimi_linear", None, "9.0", "0.33.0", 2),
        (KDA, "kimi_linear", "KimiK3ForConditionalGeneration", "9.0", "0.33.0", 3),
        (mamba(64), "jamba", None, "9.0", "0.33.0", 2),
    ],
)
def test_state_blocks_of_a_request(layer, kind, name, device, version, blocks):
    geometry = model(layer, FULL, kind=kind, architecture=name)
    pool = size(geometry, version=version, device_capability=device, kv_memory=8 * GIB).pool
    assert pool.groups[0].request_blocks == blocks


@pytest.mark.parametrize(
    ("layer", "options", "block"),
    [
        # 8192 x 3 x 2 + 32 x 128 x 128 x 2 = 1,097,728 bytes, 268 tokens of 4,096 bytes
        (DELTA, {}, 320),  # of 64, where prefills save a state
        (DELTA, {"enable_prefix_caching": False}, 272),
        (DELTA, {"device_capability": "8.0"}, 272),
        (DELTA, {"version": "0.32.0"}, 272),
        (DELTA, {"block_size": 128, "enable_prefix_caching": False}, 384),
        (DELTA, {"block_size": 512}, 512),
        (DELTA, {"block_size": 128, "version": "0.21.0", "enable_prefix_caching": False}, 272),
    ],
)
def test_blocks_of_gated_delta_hybrids(layer, options, block):
    pool = size(model(layer, FULL, kind="qwen3_next"), kv_memory=8 * GIB, **options).pool
    assert pool.groups[1].block_tokens == block


@pytest.mark.parametrize(("version", "block"), [("0.33.0", 1920), ("0.27.0", 1920), ("0.26.0", 1872)])
def test_blocks_of_latent_hybrids(version, block):
    """8192 x 3 x 2 + 32 x 128 x 128 x 4 = 2,146,304 bytes are 1,864 tokens of 1,152: 15 x 128, or 117 x 16."""
    pool = size(model(KDA, MLA, kind="kimi_linear"), kv_memory=8 * GIB, version=version).pool
    assert pool.groups[1].block_tokens == block


# -- pools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "blocks"), [("0.33.0", 513), ("0.29.0", 513), ("0.28.0", 512)])
def test_the_least_memory_that_starts(version, blocks):
    """512 blocks of 64 KiB are a request of 8,192 tokens; since 0.29 the null block is no use to it."""
    found = size(model(FULL), version=version, kv_memory=blocks * 65_536).pool
    assert (found.num_blocks, found.max_concurrency) == (blocks, blocks / 512)
    with pytest.raises(UnsupportedError, match="one request of 8,192 tokens takes 33,554,432 bytes") as caught:
        size(model(FULL), version=version, kv_memory=blocks * 65_536 - 1)
    assert caught.value.hint == "It would start with --max-model-len 8176."


def test_the_least_that_one_token_takes():
    with pytest.raises(UnsupportedError) as caught:
        size(model(FULL), kv_memory=2 * 65_536)
    assert caught.value.hint == "It would start with --max-model-len 16."
    with pytest.raises(UnsupportedError) as caught:
        size(model(FULL), kv_memory=2 * 65_536 - 1)
    assert caught.value.hint.startswith("Not even one token fits")


def test_a_pool_by_hand():
    """Two groups of one layer: 8,192 / 16 blocks, and (1,023 + 16,384 of at most 8,192) / 16 and one more."""
    found = size(model(FULL, WINDOW), kv_memory=GIB).pool
    assert found == Pool(
        num_blocks=16_384,
        block_size=16,
        bytes_per_block=65_536,
        tokens=int(16_384 / 1025 * 8192),
        max_concurrency=16_384 / 1025,
        request_blocks=1025,
        request_bytes=1025 * 65_536,
        groups=(
            Group("full attention", 1, 16, 65_536, 512),
            Group("sliding window 1,024", 1, 16, 65_536, 513),
        ),
    )


@pytest.mark.parametrize(
    ("version", "tokens", "concurrency"),
    [("0.8.5", 16_384 // 2 * 16, 16.0), ("0.20.0", 8192 * 16, 16_384 / 1025), ("0.20.1", 130_944, 16_384 / 1025)],
)
def test_what_releases_print(version, tokens, concurrency):
    found = size(model(FULL, WINDOW), version=version, kv_memory=GIB).pool
    assert found.tokens == tokens
    assert found.max_concurrency == pytest.approx(concurrency, rel=1e-3)


def test_older_releases_print_the_tokens_of_all_context_parallel_ranks():
    options = {"version": "0.20.0", "tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    found = size(model(MLA, kind="deepseek_v3"), kv_memory=GIB, **options).pool
    assert found.tokens == GIB // (16 * 1152) * 16 * 8


@pytest.mark.parametrize(("window", "blocks"), [(1025, 1088 + 1), (1026, 1089 + 1)])
def test_blocks_of_a_window(window, blocks):
    """16,384 tokens in flight behind the window's others, and one block more."""
    found = size(model(Layer((Attention(Heads(8, 128, 128), Sliding(window)),))), 65_536, kv_memory=8 * GIB)
    assert found.pool.request_blocks == blocks


@pytest.mark.parametrize(("given", "block"), [(None, 16), (32, 32)])
def test_an_encoders_pool_has_its_null_block(given, block):
    found = size(model(FULL, kind="bert", max_tokens=512), 512, kv_memory=GIB, block_size=given)
    assert found.pool == Pool(1, block, 0, 0, 0.0, 0, 0)


def test_states_alone_take_no_steps():
    assert size(model(mamba(64), kind="mamba")).step_tokens == 1


# -- refusals, on both sides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "tokens", "options"),
    [
        (model(FULL, max_tokens=4096), 4096, {}),
        (model(FULL, max_tokens=None), 10**6, {}),
        (model(FULL), 4096, {"max_model_len": 4096}),
        (model(FULL, kind="bert", max_tokens=512), 512, {"max_num_batched_tokens": 512}),
        (model(FULL, num_attention_heads=None), 64, {"tensor_parallel_size": 8}),
        (model(mamba(64), kind="mamba", num_attention_heads=5), 64, {"tensor_parallel_size": 2}),
        (model(FULL, FULL), 64, {"pipeline_parallel_size": 2}),
        (model(FULL), 64, {"device_capability": "9.100"}),
        (model(mamba(64), mamba(64), kind="mamba"), 64, {"disable_hybrid_kv_cache_manager": True}),
        (model(WINDOW, WINDOW), 64, {"disable_hybrid_kv_cache_manager": True}),
        (model(CHUNK, MLA, kind="deepseek_v3"), 64, {"disable_hybrid_kv_cache_manager": True}),
        (model(*[MLA] * 4, kind="longcat_flash"), 64, {"pipeline_parallel_size": 2}),
        (
            model(Layer((Attention(Heads(1, 128, 128)),)), num_attention_heads=None),
            64,
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
        ),
        (model(FULL, FULL, FULL, Layer(FULL.stores, shares=2), kind="gemma3n_text"), 64, {"pipeline_parallel_size": 2}),
    ],
)
def test_accepted(geometry, tokens, options):
    assert size(geometry, tokens, **options).version == "0.33.0"


TWO_COUNTS = model(FULL, HALF, num_attention_heads=24)


@pytest.mark.parametrize(
    ("geometry", "tokens", "options", "words"),
    [
        (model(FULL, max_tokens=4096), 4097, {}, "the config says 4,096 tokens"),
        (model(FULL), 4097, {"max_model_len": 4096}, "longer than --max-model-len 4,096"),
        (model(FULL, kind="bert", max_tokens=512), 512, {"max_num_batched_tokens": 511}, "in one step of at most 511"),
        (model(FULL, FULL), 64, {"pipeline_parallel_size": 3}, "2 layers are too few for 3"),
        (model(*[MLA] * 4, kind="longcat_flash"), 64, {"pipeline_parallel_size": 3}, "4 layers are too few for 3"),
        (
            model(mamba(64), FULL, kind="jamba"),
            64,
            {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
            "no decode context parallelism for this model",
        ),
        (
            model(NOTHING),
            64,
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            "no decode context parallelism for this model",
        ),
        # the more KV heads decide: 8 of them on 8 ranks leave no copies, 24 / 8 query heads no even share
        (TWO_COUNTS, 64, {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, "leave 1 copies"),
        (TWO_COUNTS, 64, {"tensor_parallel_size": 24, "decode_context_parallel_size": 2}, "leave 3 copies"),
        (model(MLA, WINDOW, kind="deepseek_v3"), 64, {}, "cannot pad a latent's page"),
        (model(FULL, Layer(kind="no_cache")), 64, {}, "a model without a cache"),
        (model(Layer((Attention(Heads(8, 128, 128), extra_tokens=32),))), 64, {}, "a cache of its own kind"),
        (model(Layer((Attention(Heads(8, 128, 128), expanded_view=True),))), 64, {}, "a cache of its own kind"),
        (model(Layer((Attention(Heads(8, 128, 128), format="int64"),))), 64, {}, "a cache of its own kind"),
    ],
)
def test_refused(geometry, tokens, options, words):
    with pytest.raises(UnsupportedError, match=words):
        size(geometry, tokens, **options)


# The last release with a class or a type (registry.py _PREVIOUSLY_SUPPORTED_MODELS).
LAST = {
    "Phi3SmallForCausalLM": "0.9.2",
    **dict.fromkeys(("MllamaForConditionalGeneration", "MotifForCausalLM"), "0.10.2"),
    **dict.fromkeys(("BaiChuanForCausalLM", "BaichuanForCausalLM", "XverseForCausalLM"), "0.23.0"),
    **dict.fromkeys(("InternLMForCausalLM", "QWenLMHeadModel", "QwenVLForConditionalGeneration"), "0.23.0"),
    **dict.fromkeys(("AquilaModel", "AquilaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM"), "0.24.0"),
    "TeleChatForCausalLM": "0.25.0",
    **dict.fromkeys(("Plamo2ForCausalLM", "OuroForCausalLM"), "0.26.0"),
    **dict.fromkeys(("ArcticForCausalLM", "RWForCausalLM", "StableLMEpochForCausalLM", "MPTForCausalLM"), "0.28.0"),
}


def refused_after(geometry: Geometry, last: str) -> bool:
    major, minor, patch = last.split(".")
    assert size(geometry, version=last).version == last
    with pytest.raises(UnsupportedError, match=f"The last release with it is {last}"):
        size(geometry, version=f"{major}.{minor}.{int(patch) + 1}")
    return True


@pytest.mark.parametrize("name", LAST)
def test_the_last_release_with_a_class(name):
    assert refused_after(model(FULL, architecture=name), LAST[name])


@pytest.mark.parametrize("kind", ["bamba", "minimax", "minimax_text_01", "minimax_m1"])
def test_the_last_release_with_a_recurrent_type(kind):
    assert refused_after(model(mamba(64), FULL, kind=kind), "0.23.0")


def test_no_other_class_or_type_has_left():
    assert set(LAST_RELEASE) == set(LAST)
    assert {kind for kind, rule in STATES.items() if rule.until} == {
        "bamba",
        "minimax",
        "minimax_text_01",
        "minimax_m1",
    }


# -- words -------------------------------------------------------------------------------------------------------------

RANKS, LATENT, COPIES = "bytes are those of one of", "lies whole on every", "hold copies of the same heads"
SLOTS, GIVEN, CHARGED, CROSSED = "layer slots share one pool", "is given up to", "are charged in full", "encoder tokens"
STATE, PADDED, TURBO = "state blocks that each", "states are filled up to", "TurboQuant keeps"
CASES = [
    (model(FULL), {}, RANKS, None),
    (model(FULL), {"tensor_parallel_size": 2}, RANKS, "one of 2 tensor-parallel ranks"),
    (model(FULL, FULL), {}, "pipeline stages together", None),
    (
        model(FULL, FULL, FULL),
        {"pipeline_parallel_size": 2},
        "pipeline stages together",
        "a block takes 131,072, 65,536",
    ),
    (model(MLA, kind="deepseek_v3"), {}, LATENT, None),
    (model(MLA, kind="deepseek_v3"), {"tensor_parallel_size": 2}, LATENT, "tensor-parallel rank"),
    (model(FULL), {"tensor_parallel_size": 2}, LATENT, None),
    (
        model(MLA, kind="deepseek_v3"),
        {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
        LATENT,
        None,
    ),
    (model(FULL), {"tensor_parallel_size": 8}, COPIES, None),
    (model(FULL, HALF), {"tensor_parallel_size": 8}, COPIES, "4 KV heads on 8 ranks"),
    (model(FULL, WINDOW), {}, SLOTS, None),
    (model(*[FULL] * 5, *[WINDOW] * 4), {}, SLOTS, "2 groups of 5 layer slots share one pool"),
    (model(*[FULL] * 5, *[WINDOW] * 4), {}, SLOTS, "which are paid for: 1"),
    (model(FULL), {}, GIVEN, None),
    (model(FULL, WINDOW), {}, GIVEN, "1,024 tokens is given up to 16,384 more, for those of the steps in flight"),
    (model(FULL, WINDOW), {}, GIVEN, "(--max-num-batched-tokens 8,192): room for 8,208 tokens"),
    (model(FULL, CHUNK), {}, GIVEN, "room for 8,192 tokens"),
    (model(FULL, FULL), {"disable_hybrid_kv_cache_manager": True}, CHARGED, None),
    (model(FULL, WINDOW), {"disable_hybrid_kv_cache_manager": True}, CHARGED, "layers with windows beside full"),
    (model(FULL, CHUNK), {"version": "0.8.5"}, CHARGED, "layers with windows beside full"),
    (model(FULL, CHUNK), {}, CHARGED, None),
    (model(FULL), {}, CROSSED, None),
    (model(CROSS, kind="whisper"), {}, CROSSED, "given 8,192 encoder tokens"),
    (model(FULL), {}, STATE, None),
    (model(mamba(64), FULL, kind="jamba"), {}, STATE, "a request: 2 (prefix caching keeps more than the one in use)"),
    (model(mamba(64), FULL, kind="jamba"), {"num_speculative_tokens": 3}, STATE, "a request: 5 (prefix caching"),
    (model(mamba(64), FULL, kind="jamba"), {"enable_prefix_caching": False}, "prefix caching keeps", None),
    (
        model(mamba(64), FULL, kind="jamba"),
        {"enable_prefix_caching": False, "num_speculative_tokens": 3},
        "prefix caching keeps",
        None,
    ),
    (model(mamba(64), FULL, kind="jamba"), {}, PADDED, "a block is 16 tokens"),
    (model(Layer((Recurrent("mamba", (State("recurrent", (32_768,)),)),)), FULL, kind="jamba"), {}, PADDED, None),
    (model(mamba(64), FULL, kind="jamba"), {}, PADDED, "states of 2,432 bytes; states are filled up to 65,536"),
    (model(mamba(64), kind="mamba"), {}, PADDED, None),
    (model(*[FULL] * 5), {"kv": "turboquant_k8v4"}, TURBO, "the first two and the last two layers in bfloat16"),
    (model(mamba(64), FULL, kind="jamba"), {"kv": "turboquant_k8v4"}, TURBO, None),
    (model(FULL), {}, TURBO, None),
    (model(FULL), {}, "printed KV cache size", "concurrency x max_model_len"),
    (model(FULL), {"version": "0.20.0"}, "KV cache size", None),
    (model(FULL, WINDOW), {"version": "0.20.0"}, "KV cache size", "blocks / groups x block size"),
    (model(FULL), {"version": "0.8.5"}, "KV cache size", "prints blocks x block size"),
    (model(FULL, kind="bert"), {}, "runs this model as an encoder", "keeps no KV cache"),
    (model(NOTHING), {}, "runs this model as an encoder", None),
    (model(FULL), {}, "vLLM 0", None),
    (model(FULL), {"version": "0.32.0"}, "vLLM 0", "0.32.0: rules read from its sources, not run"),
    (model(FULL), {"version": "0.33.1"}, "vLLM 0", "0.33.1 is newer than the newest modelled release"),
]


@pytest.mark.parametrize(("geometry", "options", "about", "words"), CASES)
def test_what_is_said(geometry, options, about, words):
    """The sentence about something, or none."""
    said = [note for note in size(geometry, **options).notes if about in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
