"""vLLM's rules one by one: formats, releases, block sizes, groups, refusals, and laws that every plan keeps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize.architectures import geometry
from kvsize.cli.size import measure
from kvsize.engines import Workload
from kvsize.engines import vllm as engine
from kvsize.engines.vllm import versions
from kvsize.engines.vllm.formats import KV_FORMATS
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
)

GIB = 2**30


def dense(layers=32, heads=8, k=128, v=None, span=None, model_type="llama", queries=32, **fields):
    layer = Layer((Attention(Heads(heads, k, v or k), span or Full()),))
    values = {"dtype": "bfloat16", "max_tokens": 131_072, "num_attention_heads": queries, **fields}
    return Geometry(model_type, (layer,) * layers, **values)


def windows(full=10, sliding=52, window=1024, heads=16, model_type="gemma3_text", **fields):
    entry = Heads(heads, 128, 128)
    layers = (Layer((Attention(entry, Sliding(window)),)),) * sliding + (Layer((Attention(entry),)),) * full
    values = {"dtype": "bfloat16", "max_tokens": 131_072, "num_attention_heads": 32, **fields}
    return Geometry(model_type, layers, **values)


def mamba2_hybrid(attention=4, states=24, groups=8, model_type="nemotron_h", **fields):
    """Nemotron-H-8B's layers that keep something."""
    mixer = Recurrent(
        "mamba2", (State("conv", (8192 + 2 * groups * 128, 4)), State("recurrent", (128, 64, 128))), groups=groups
    )
    layers = (Layer((mixer,)),) * states + (Layer((Attention(Heads(8, 128, 128)),)),) * attention
    return Geometry(model_type, layers, dtype="bfloat16", max_tokens=8192, num_attention_heads=32, **fields)


def latent(layers=61, model_type="deepseek_v3", index=None):
    entry = Attention(Latent(512, 64, Heads(128, 192, 128)))
    stores = (entry,) if index is None else (entry, Attention(IndexKey(index)))
    return Geometry(
        model_type, (Layer(stores),) * layers, dtype="bfloat16", max_tokens=163_840, num_attention_heads=128
    )


DSA = {"model_type": "deepseek_v32", "index": 128}


def size(model, tokens=8192, kv="auto", sequences=1, encoder=None, **options):
    return engine.size(model, Workload(tokens, sequences, kv, kv, encoder), engine.Options(**options))


def pool(model, tokens=8192, kv="auto", **options):
    return size(model, tokens, kv, **{"kv_memory": 60 * GIB, **options}).pool


# -- formats -----------------------------------------------------------------------------------------------------------

# Bytes of one token of one KV head, K and V together, for heads of 64, 128 and 256; the 128 column was measured.
PAGES = {
    "bfloat16": (256, 512, 1024),
    "float16": (256, 512, 1024),
    "fp8": (128, 256, 512),
    "fp8_e4m3": (128, 256, 512),
    "fp8_e5m2": (128, 256, 512),
    "int8_per_token_head": (136, 264, 520),
    "fp8_per_token_head": (136, 264, 520),
    "int4_per_token_head": (72, 136, 264),
    "nvfp4": (72, 144, 288),
    "nvfp4_4over6": (72, 144, 288),
    "turboquant_k8v4": (100, 196, 388),
    "turboquant_4bit_nc": (70, 134, 262),
    "turboquant_k3v4_nc": (62, 118, 230),
    "turboquant_3bit_nc": (54, 102, 198),
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("column", "width"), list(enumerate((64, 128, 256))))
def test_bytes_of_a_head(name, column, width):
    assert KV_FORMATS[name].head(width, width) == PAGES[name][column]


def test_every_format_with_heads_is_in_the_table():
    assert {name for name, entry in KV_FORMATS.items() if entry.head} == set(PAGES)


@pytest.mark.parametrize(("name", "bytes_"), [("bfloat16", 640), ("fp8", 320), ("int4_per_token_head", 168)])
def test_k_and_v_of_different_widths(name, bytes_):
    assert KV_FORMATS[name].head(192, 128) == bytes_


@pytest.mark.parametrize(
    ("kv", "device", "per_token", "kept"),
    [
        ("auto", None, 1152 + 132, "bfloat16"),
        ("fp8", "9.0", 656 + 132, "fp8_ds_mla"),
        ("fp8_e4m3", "9.0", 576 + 132, "fp8_e4m3"),
        ("fp8", "10.0", 576 + 132, "fp8"),
        ("fp8_ds_mla", "10.0", 656 + 132, "fp8_ds_mla"),
        ("nvfp4_ds_mla", None, 352 + 132, "nvfp4_ds_mla"),
        ("auto", "12.0", 656 + 132, "fp8_ds_mla"),
    ],
)
def test_sparse_latents_by_gpu(kv, device, per_token, kept):
    found = size(latent(**DSA), 64, kv, device_capability=device, kv_memory=60 * GIB)
    assert (found.pool.bytes_per_block, found.k_format) == (61 * 64 * per_token, kept)


def test_index_keys_beside_plain_heads():
    """MiniMax-M3: bfloat16 keys whatever the cache's format, in blocks of the sparse pattern."""
    stores = (Attention(Heads(4, 128, 128)), Attention(IndexKey(128)))
    model = Geometry("minimax_m3", (Layer(stores[:1]),) * 3 + (Layer(stores),) * 57, dtype="bfloat16")
    found = pool(model, kv="fp8")
    assert (found.block_size, found.bytes_per_block) == (128, 128 * (60 * 4 * 256 + 57 * 256))


def test_glm_defaults_to_fp8_on_blackwell_only():
    model = latent(model_type="glm_moe_dsa", index=128)
    assert size(model, device_capability="10.0").k_format == "fp8_e4m3"
    assert size(model).k_format == "bfloat16"


def test_turboquant_leaves_the_outermost_layers_alone():
    found = pool(dense(), kv="turboquant_k8v4")
    assert (found.block_size, found.bytes_per_block) == (32, 32 * 8 * (4 * 512 + 28 * 196))


@pytest.mark.parametrize(
    ("dtype", "model_type", "name"),
    [
        ("float16", "llama", "float16"),
        ("float32", "llama", "bfloat16"),
        (None, "llama", "bfloat16"),
        ("float32", "bert", "float16"),
    ],
)
def test_auto_is_sixteen_bits(dtype, model_type, name):
    assert size(dense(model_type=model_type, dtype=dtype), 512).k_format == name


def test_auto_follows_the_checkpoint_s_own_scheme():
    found = size(dense(kv_scheme="fp8"))
    assert (found.k_format, found.format_source) == ("fp8", "the checkpoint's own KV cache scheme")
    assert size(dense(kv_scheme="nvfp4")).k_format == "nvfp4"
    assert size(dense(kv_scheme="fp8"), kv="bf16").k_format == "bfloat16"


@pytest.mark.parametrize(
    ("quantization", "scheme"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, None),
        ({"quant_method": "gptq"}, None),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": [8], "type": "float"}}, None),
        ("int8", None),
    ],
)
def test_kv_scheme_of_a_quantised_checkpoint(quantization, scheme):
    config = {"model_type": "llama", "quantization_config": quantization}
    assert geometry(config).kv_scheme == scheme


def test_falcon_ignores_the_kv_format():
    model = dense(model_type="falcon", heads=1, k=64)
    assert pool(model, kv="fp8").bytes_per_block == pool(model).bytes_per_block
    assert size(model, kv="fp8").k_format == "bfloat16"


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "tokens"), [("0.33.0", 437_488), ("0.20.1", 552_810), ("0.20.0", 112_336), ("0.19", 112_336)]
)
def test_gemma_3_27b_in_60_gib(version, tokens):
    """49,152 blocks either way: the log line's tokens are what changed."""
    found = pool(windows(), 131_072, version=version)
    assert (found.num_blocks, found.tokens) == (49_152, tokens)


@pytest.mark.parametrize(
    ("version", "settings", "sliding_blocks"),
    [
        ("0.25.0", {}, (1023 + 8192 + 15) // 16 + 1),
        ("0.26.0", {}, (1023 + 16_384 + 15) // 16 + 1),
        ("0.26.0", {"async_scheduling": False}, (1023 + 8192 + 15) // 16 + 1),
        ("0.33.0", {"pipeline_parallel_size": 2}, (1023 + 24_576 + 15) // 16 + 1),
        ("0.33.0", {"max_num_batched_tokens": 2048}, (1023 + 4096 + 15) // 16 + 1),
    ],
)
def test_windows_are_given_the_tokens_in_flight(version, settings, sliding_blocks):
    groups = pool(windows(), 131_072, version=version, **settings).groups
    assert {group.request_blocks for group in groups if "window" in group.name} == {sliding_blocks}


@pytest.mark.parametrize(
    ("version", "full", "largest", "groups"),
    [
        ("0.11.0", 25, 25, 3),
        ("0.12.0", 25, 30, 2),
        ("0.17.0", 24, 24, 3),
        ("0.18.0", 24, 30, 2),
        ("0.18.0", 20, 20, 3),
    ],
)
def test_groups_by_release(version, full, largest, groups):
    """30 layers with windows beside fewer without: the fewer set the group, or the more where that wastes less."""
    found = pool(windows(full=full, sliding=30), version=version)
    assert (found.bytes_per_block, len(found.groups)) == (largest * 16 * 16 * 512, groups)


@pytest.mark.parametrize(
    ("version", "prefix_caching", "blocks"),
    [
        ("0.10.0", True, 1),
        ("0.12.0", True, 8),
        ("0.12.0", None, 1),
        ("0.25.0", None, 1),
        ("0.26.0", None, 2),
        ("0.31.0", None, 2),
        ("0.32.0", None, 3),
        ("0.33.0", False, 1),
    ],
)
def test_state_blocks_of_a_request(version, prefix_caching, blocks):
    found = pool(mamba2_hybrid(), 8192, version=version, enable_prefix_caching=prefix_caching)
    assert {group.request_blocks for group in found.groups if group.name == "recurrent states"} == {blocks}


def test_without_a_hybrid_manager_windows_are_charged_in_full():
    old = pool(windows(), 32_768, version="0.8.5")
    assert (len(old.groups), old.bytes_per_block, old.tokens) == (1, 62 * 16 * 16 * 512, old.num_blocks * 16)
    off = pool(windows(), 32_768, disable_hybrid_kv_cache_manager=True)
    assert off.bytes_per_block == old.bytes_per_block


@pytest.mark.parametrize(
    ("device", "version", "tokens"),
    [("9.0", "0.33.0", 8192), ("10.0", "0.33.0", 16_384), ("10.0", "0.27.0", 8192), ("8.0", "0.33.0", 2048)],
)
def test_default_batch_tokens(device, version, tokens):
    notes = size(windows(), 131_072, version=version, device_capability=device, async_scheduling=False).notes
    assert any(f"--max-num-batched-tokens {tokens:,})" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0.33.0", (0, 33, 0)), ("v0.20.1", (0, 20, 1)), ("0.19", (0, 19, 0)), ("0.11.0rc2", (0, 11, 0))],
)
def test_version_numbers(text, number):
    assert versions.parse(text) == number


def test_versions_outside_what_is_modelled():
    with pytest.raises(UnsupportedError, match="older"):
        size(dense(), version="0.8.4")
    with pytest.raises(UsageError, match="release such as"):
        size(dense(), version="latest")
    newer = size(dense(), version="0.40.0")
    assert (newer.version, newer.evidence) == ("0.40.0", "derived")
    assert "the rules of 0.33.0 are used" in newer.notes[0]


def test_evidence_is_exact_only_where_plans_were_compared():
    assert size(dense()).evidence == "exact"
    assert size(dense(), version="0.32.0").evidence == "derived"
    assert size(dense(model_type="granite_swa")).evidence == "derived"


@pytest.mark.parametrize(
    ("architecture", "last", "later"), [("RWForCausalLM", "0.28.0", "0.29.0"), ("QWenLMHeadModel", "0.23.0", "0.24.0")]
)
def test_models_that_left(architecture, last, later):
    model = dense(architecture=architecture)
    assert size(model, version=last).total_bytes
    with pytest.raises(UnsupportedError, match=f"no longer has {architecture}"):
        size(model, version=later)


# -- blocks and groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "kv", "device", "block"),
    [
        (dense(), "auto", None, 16),
        (latent(), "auto", None, 16),
        (latent(), "fp8", None, 64),
        (latent(), "fp8", "10.0", 32),
        (latent(), "fp8", "8.9", 16),
        (latent(**DSA), "auto", None, 64),
        (dense(k=512), "fp8", None, 64),
        (dense(k=512), "fp8", "10.0", 16),
        (dense(k=512), "fp8_e5m2", None, 16),
    ],
)
def test_block_size_of_the_kernels(model, kv, device, block):
    assert pool(model, kv=kv, device_capability=device).block_size == block


@pytest.mark.parametrize(
    ("settings", "kv", "block"),
    [
        ({}, "auto", 1040),
        ({}, "fp8", 2080),
        ({"block_size": 64}, "auto", 1088),
        ({"num_speculative_tokens": 3}, "auto", 1056),
        ({"tensor_parallel_size": 8}, "auto", 1040),
        ({}, "turboquant_k8v4", 2720),
        ({}, "nvfp4", 3696),
    ],
)
def test_hybrid_blocks_cover_the_states(settings, kv, block):
    """Nemotron-H-8B, as measured."""
    found = pool(mamba2_hybrid(), kv=kv, **settings)
    assert {group.block_tokens for group in found.groups} == {block}


def test_smaller_pages_take_more_tokens_or_are_filled_up():
    half = Layer((Attention(Heads(4, 128, 128), Full()),))
    odd = Layer((Attention(Heads(3, 128, 128), Full()),))
    wide = Layer((Attention(Heads(8, 128, 128), Sliding(512)),))
    divides = Geometry("llama", (half, wide), dtype="bfloat16")
    pads = Geometry("llama", (odd, wide), dtype="bfloat16")
    assert {group.block_tokens for group in pool(divides).groups} == {16, 32}
    assert {group.block_tokens for group in pool(pads).groups} == {16}
    waste = {part.name: part.bytes for part in size(pads, 8192).overheads}
    assert waste == {"pages filled up to the widest layer's": 512 * (8 - 3) * 16 * 512}


def test_slots_without_a_layer_are_paid_for():
    """52 layers with windows in 6 groups of 10 slots: 8 slots are empty."""
    found = size(windows(), 131_072)
    slots = {part.name: part.bytes for part in found.overheads}
    assert slots == {"layer slots without a layer": 8 * 1089 * 16 * 16 * 512}


def test_chunked_attention_has_no_spare_block():
    found = pool(dense(span=Chunked(8192), model_type="llama4_text"), 131_072)
    assert found.request_blocks == (8192 + 16_384) // 16


def test_pipeline_stages_split_by_layers():
    model = latent()
    found = pool(model, pipeline_parallel_size=2)
    assert found.num_blocks == 60 * GIB // (31 * 16 * 1152)
    assert size(model, pipeline_parallel_size=2).total_bytes == size(model).total_bytes


def test_context_parallel_ranks_share_tokens():
    model = latent()
    one, eight = pool(model), pool(model, tensor_parallel_size=8, decode_context_parallel_size=8)
    assert eight.tokens == 8 * one.tokens
    assert pool(dense(), tensor_parallel_size=16, decode_context_parallel_size=2).request_blocks == 256


def test_drafted_tokens_cost_states_and_mtp_a_layer():
    plain, drafting = pool(mamba2_hybrid()), pool(mamba2_hybrid(), num_speculative_tokens=3)
    assert drafting.groups[0].request_blocks == plain.groups[0].request_blocks + 3
    mtp = {"num_speculative_tokens": 1, "speculative_method": "mtp"}
    assert pool(latent(), **mtp).bytes_per_block == 62 * 16 * 1152
    drafted = size(latent(**DSA), 64, **mtp)
    assert [(part.name, part.bytes) for part in drafted.overheads] == [("drafted layers", 64 * 1284)]
    with pytest.raises(UnsupportedError, match="MTP"):
        size(dense(), **mtp)


def test_state_formats():
    mixer = Recurrent("mamba", (State("conv", (5120, 4)), State("recurrent", (5120, 16))))
    model = Geometry("mamba", (Layer((mixer,)),) * 64, dtype="bfloat16")
    plain = 64 * (5120 * 3 * 2 + 5120 * 16 * 2)
    assert pool(model).bytes_per_block == plain
    assert pool(model, mamba_cache_dtype="float32").bytes_per_block == 2 * plain
    assert pool(model, mamba_ssm_cache_dtype="float32").bytes_per_block == plain + 64 * 5120 * 16 * 2
    assert pool(model).tokens == pool(model).num_blocks * 8192  # states alone hold any length


def test_only_qwen_s_own_classes_read_the_state_dtype():
    mixer = Recurrent("gated_delta", (State("conv", (8192, 4)), State("recurrent", (32, 128, 128))))
    layers = (Layer((mixer,)),) * 3 + (Layer((Attention(Heads(2, 256, 256)),)),)
    model = Geometry("qwen3_5_text", layers, dtype="bfloat16", state_dtype="float32", num_attention_heads=16)
    other = replace(model, architecture="MiniCPMV4_6ForConditionalGeneration")
    states = {
        name: next(g.page_bytes for g in pool(m, enable_prefix_caching=False).groups if "states" in g.name)
        for name, m in (("own", model), ("other", other))
    }
    assert states["own"] > 32 * 128 * 128 * 4 > states["other"]


def test_whisper_is_given_the_step_s_budget_of_encoder_tokens():
    both = Layer((Attention(Heads(20, 64, 64)), Attention(Heads(20, 64, 64), Encoder(tokens=1500))))
    model = Geometry("whisper", (both,) * 32, dtype="bfloat16", max_tokens=448, num_attention_heads=20)
    found = pool(model, 448)
    assert (found.tokens, found.request_blocks) == (20_388, 28 + 512)
    assert pool(model, 448, max_num_batched_tokens=1024).request_blocks == 28 + 94
    block = 32 * 16 * 20 * 256
    assert size(model, 448, encoder=1500).total_bytes == (28 + 94) * block
    assert size(model, 448).total_bytes == (28 + 512) * block


def test_encoders_keep_nothing():
    model = dense(model_type="bert", max_tokens=512)
    found = size(model, 512, kv_memory=GIB)
    assert (found.total_bytes, found.pool.num_blocks, found.pool.tokens) == (0, 1, 0)


# -- refusals ----------------------------------------------------------------------------------------------------------

SHARED = Layer((Attention(Heads(2, 256, 256)),), shares=0)
REFUSED = {
    "no divisor of the KV heads": (dense(heads=10, queries=40), {"tensor_parallel_size": 4}, "10 KV heads"),
    "no divisor of the query heads": (dense(queries=28), {"tensor_parallel_size": 8}, "28 attention heads"),
    "gpt-oss replicates no heads": (
        dense(model_type="gpt_oss", queries=64),
        {"tensor_parallel_size": 16},
        "8 KV heads over 16 ranks",
    ),
    "state groups": (mamba2_hybrid(), {"tensor_parallel_size": 16}, "8 state groups"),
    "hybrid manager off": (mamba2_hybrid(), {"disable_hybrid_kv_cache_manager": True}, "as one type"),
    "too long": (dense(max_tokens=4096), {}, "the config says 4,096 tokens"),
    "longer than max_model_len": (dense(), {"max_model_len": 4096}, "longer than --max-model-len 4,096"),
    "too little memory": (dense(), {"kv_memory": GIB}, "does not start"),
    "no pipeline": (
        dense(architecture="Mamba2ForCausalLM"),
        {"pipeline_parallel_size": 2},
        "does not support pipeline parallelism",
    ),
    "more stages than layers": (dense(layers=2), {"pipeline_parallel_size": 4}, "too few for 4"),
    "sharing across stages": (
        Geometry("gemma3n_text", (Layer((Attention(Heads(2, 256, 256)),)), SHARED), dtype="bfloat16"),
        {"pipeline_parallel_size": 2},
        "on another pipeline stage",
    ),
    "sharing that vLLM does not have": (
        Geometry("llama", (Layer((Attention(Heads(2, 256, 256)),)), SHARED), dtype="bfloat16"),
        {},
        "layer 1 sharing",
    ),
    "context parallel windows": (
        windows(),
        {"tensor_parallel_size": 32, "decode_context_parallel_size": 2},
        "for windows",
    ),
    "context parallel without copies": (
        dense(),
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
        "1 copies",
    ),
    "context parallel no divisor": (
        latent(),
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
        "3 context-parallel ranks of 8",
    ),
    "context parallel sparse bfloat16": (
        latent(**DSA),
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
        "fp8_ds_mla cache",
    ),
    "block size": (dense(), {"block_size": 24}, "multiple of 16"),
    "sparse block size": (latent(**DSA), {"block_size": 32}, "multiple of 64"),
    "unknown recurrence": (mamba2_hybrid(model_type="zaya"), {}, "layers are not among"),
    "unknown latents": (latent(model_type="youtu"), {}, "latent attention is not modelled"),
    "unknown index keys": (latent(model_type="deepseek_v3", index=128), {}, "index keys are not modelled"),
    "an encoder": (dense(span=Encoder(), model_type="bart"), {}, "attends to an encoder"),
    "never in vLLM": (dense(model_type="idefics"), {}, "does not know idefics"),
    "compute capability": (dense(), {"device_capability": "hopper"}, "compute capability"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    model, options, words = REFUSED[case]
    with pytest.raises(UnsupportedError, match=words):
        size(model, **options)


@pytest.mark.parametrize(
    ("model", "kv", "device", "words"),
    [
        (latent(), "int8_per_token_head", None, "no MLA kernel"),
        (latent(), "fp8_e5m2", None, "no MLA kernel"),
        (latent(), "fp8_ds_mla", None, "no MLA kernel"),
        (latent(**DSA), "nvfp4", None, "no MLA kernel"),
        (dense(), "fp8_ds_mla", None, "no attention kernel"),
        (dense(), "fp8_inc", None, "no CUDA kernel"),
        (dense(), "octave_k3v4", None, "no CUDA kernel"),
        (dense(), "nvfp4", "9.0", "compute capability 10"),
        (dense(), "q8_0", None, "does not know"),
        (dense(), "float32", None, "does not know"),
        (dense(), "turboquant_k8v4", "10.0", "no cache layout"),
        (windows(), "turboquant_k8v4", None, "refuses layers with windows"),
        (dense(v=64), "nvfp4", None, "no attention kernel"),
        (dense(k=4), "fp8", None, "heads of 4"),
    ],
)
def test_formats_refused(model, kv, device, words):
    with pytest.raises(UnsupportedError, match=words):
        size(model, kv=kv, device_capability=device)


def test_k_and_v_have_one_format():
    with pytest.raises(UnsupportedError, match="one format"):
        engine.size(dense(), Workload(16, 1, "fp8", "bfloat16"), engine.Options())


def test_a_server_that_does_not_start_says_what_would():
    """Gemma-3-27B without the hybrid manager: vLLM itself estimates 126,816 tokens."""
    with pytest.raises(UnsupportedError) as caught:
        size(windows(), 131_072, kv_memory=60 * GIB, disable_hybrid_kv_cache_manager=True)
    assert caught.value.hint == "It would start with --max-model-len 126816."
    with pytest.raises(UnsupportedError) as caught:
        size(dense(), kv_memory=2 * 2**20)
    assert "Not even one token" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 0},
        {"kv_memory": 0},
        {"kv_memory": "60GiB"},
        {"tensor_parallel_size": -1},
        {"num_speculative_tokens": -1},
        {"mamba_ssm_cache_dtype": "int8"},
        {"speculative_method": "medusa"},
    ],
)
def test_settings_that_mean_nothing(options):
    with pytest.raises(UsageError):
        engine.Options(**options)


def rope(**scaling):
    return geometry({"model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": scaling})


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        ({"type": "linear", "factor": 4.0}, 16_384),
        ({"rope_type": "dynamic", "factor": 2}, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "linear", "factor": None}, 4096),
    ],
)
def test_rope_scaling_stretches_the_limit(scaling, limit):
    model = rope(**scaling)
    assert size(model, limit).total_bytes
    with pytest.raises(UnsupportedError, match=f"the config says {limit:,} tokens"):
        size(model, limit + 1)


def test_gemma_3_states_its_length_with_the_factor_in_it():
    model = windows(context_factor=8.0)
    assert size(model, 131_072).total_bytes
    with pytest.raises(UnsupportedError, match="131,072"):
        size(model, 131_073)


def test_slope_at_the_longest_request_is_that_of_the_step_before():
    model = dense(max_tokens=4096)
    options = engine.Options()
    _, row = measure("vllm", model, Workload(4096), options)
    assert row.cache.marginal_bytes_per_token == 32 * 8 * 512
    assert row.cache.fixed_bytes == 0


# -- laws --------------------------------------------------------------------------------------------------------------


@st.composite
def models(draw):
    """Any mix of layers that vLLM can run, small enough to plan quickly."""
    spans = st.sampled_from([Full(), Sliding(64), Sliding(1000), Sliding(4096)])
    heads = st.builds(lambda n, w: Heads(n, w, w), st.sampled_from([1, 2, 8]), st.sampled_from([64, 128, 256]))
    layers = draw(st.lists(st.tuples(heads, spans, st.integers(1, 12)), min_size=1, max_size=3))
    found = [Layer((Attention(entry, span),)) for entry, span, count in layers for _ in range(count)]
    if draw(st.booleans()):
        mixer = Recurrent("mamba2", (State("conv", (2304, 4)), State("recurrent", (32, 64, 128))), groups=1)
        found += [Layer((mixer,))] * draw(st.integers(1, 20))
    return Geometry("nemotron_h", tuple(found), dtype="bfloat16", num_attention_heads=32)


SETTINGS = st.fixed_dictionaries(
    {
        "tensor_parallel_size": st.sampled_from([1, 2, 4]),
        "max_num_batched_tokens": st.sampled_from([512, 8192]),
        "enable_prefix_caching": st.booleans(),
        "version": st.sampled_from(["0.11.0", "0.19.0", "0.26.0", "0.33.0"]),
    }
)


@given(models(), SETTINGS, st.integers(1, 30_000), st.integers(1, 3000), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_requests_only_grow_and_parts_add_up(model, options, tokens, more, sequences):
    one, longer = size(model, tokens, **options), size(model, tokens + more, **options)
    assert one.total_bytes <= longer.total_bytes
    several = size(model, tokens, sequences=sequences, **options)
    assert several.total_bytes == sequences * one.total_bytes
    assert one.total_bytes == sum(layer.held for layer in one.layers) + sum(part.bytes for part in one.overheads)
    assert all(layer.logical <= layer.held for layer in one.layers)


@given(models(), SETTINGS, st.integers(16, 8192), st.integers(2**28, 2**38))
@settings(max_examples=80, deadline=None)
def test_pools_fill_their_memory_and_no_more(model, options, tokens, memory):
    needed = size(model, tokens, **options).total_bytes
    if needed + 2**26 > memory:  # nor the null block
        with pytest.raises(UnsupportedError, match="does not start"):
            size(model, tokens, kv_memory=min(memory, needed - 1), **options)
        return
    found = size(model, tokens, kv_memory=memory, **options)
    held = found.pool
    assert held.num_blocks * held.bytes_per_block <= memory < (held.num_blocks + 1) * held.bytes_per_block
    assert held.request_bytes == found.total_bytes
    assert held.request_blocks == sum(group.request_blocks for group in held.groups)
    assert held.max_concurrency >= 1
    assert sum(group.layers for group in held.groups) == len(model.layers)


@given(models(), SETTINGS.filter(lambda s: not (s["version"] == "0.11.0" and s["enable_prefix_caching"])))
@settings(max_examples=40, deadline=None)
def test_the_slope_is_even_over_a_step(model, options):
    """Past every window, each step of tokens costs the same (0.11 kept states for each block of tokens)."""
    start = 300_000 + 4096
    first = size(model, start, **options)
    step = first.step_tokens
    sizes = [size(model, start + n * step, **options).total_bytes for n in range(3)]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1]
