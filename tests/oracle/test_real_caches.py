"""Real caches of the installed transformers on this CPU, tiny models of many families, held against the engine."""

import pytest

REASON = "the oracle runs real transformers caches: pip install 'kvsize[probe]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

from kvsize.architectures import geometry  # noqa: E402
from kvsize.engines import Workload  # noqa: E402
from kvsize.engines.transformers import Options, size  # noqa: E402
from kvsize.errors import ConfigError, UnknownArchitectureError, UnsupportedError  # noqa: E402
from kvsize.real.measure import Bench, Run  # noqa: E402
from kvsize.real.paging import admit, build_pool  # noqa: E402
from kvsize.real.probe import probe, weigh  # noqa: E402
from kvsize.real.twin import read_config, subject, thin  # noqa: E402
from kvsize.validation import judge  # noqa: E402

pytestmark = pytest.mark.oracle

RELEASE = transformers.__version__
DTYPE = "float32"  # every CPU computes in it
WINDOW = 8
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MLA = {"kv_lora_rank": 24, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1}
EXPERTS |= {"topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
SEQ2SEQ = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 3, "decoder_attention_heads": 4, "vocab_size": 64}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
FAMILIES = {
    "full": {"model_type": "llama", **TINY},
    "every layer sliding": {"model_type": "mistral", **TINY, "sliding_window": WINDOW},
    "full and sliding": {"model_type": "gemma3_text", **TINY, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "window of one": {"model_type": "gemma2", **TINY, "sliding_window": 1},
    "chunked": {
        "model_type": "llama4_text",
        **TINY,
        **EXPERTS,
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 32,
    },
    "sinks": {"model_type": "gpt_oss", **TINY, **EXPERTS, "sliding_window": WINDOW},
    "shared layers": {
        "model_type": "gemma3n_text",
        **TINY,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "sliding_window": WINDOW,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 64,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 6,
    },
    "sizes by layer": {
        "model_type": "gemma4_text",
        **TINY,
        "sliding_window": WINDOW,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 64,
    },
    "latent": {"model_type": "deepseek_v3", **TINY, **MLA, **EXPERTS, "num_key_value_heads": 4, "head_dim": 8},
    "repeated heads": {
        "model_type": "falcon",
        **{key: value for key, value in TINY.items() if key != "head_dim"},
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
    },
    "one head": {
        "model_type": "gpt_bigcode",
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 64,
        "vocab_size": 64,
        "eos_token_id": 2,
    },
    "Mamba": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8},
    "Mamba-2 and attention": {
        "model_type": "bamba",
        **TINY,
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
    "delta rule and attention": {
        "model_type": "qwen3_next",
        **TINY,
        **EXPERTS,
        **DELTA,
        "shared_expert_intermediate_size": 32,
    },
    "short convolutions": {"model_type": "lfm2", **TINY, "full_attn_idxs": [1, 3], "block_multiple_of": 8},
    "encoder and decoder": {
        "model_type": "bart",
        **SEQ2SEQ,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
    "encoder of audio": {
        "model_type": "whisper",
        **SEQ2SEQ,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    },
    "encoder and decoder, wide heads": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 32,
        "num_heads": 4,
        "num_layers": 2,
        "d_ff": 64,
        "vocab_size": 64,
    },
}
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW)


@pytest.fixture(scope="module")
def models():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return {}


def tiny(models, name):
    if name not in models:
        models[name] = subject(read_config(FAMILIES[name]), DTYPE, ("cpu",))
    return models[name]


def measured(found, plan, cache, length, sequences=2):
    layers = weigh(found.feed(plan, sequences, cache, length), found.model)
    return sum(layer.logical for layer in layers), sum(layer.storage for layer in layers)


def predicted(found, raw, tokens, cache, sequences=2):
    encoder = found.encoder_tokens if found.reads_encoder else None
    workload = Workload(tokens, sequences, DTYPE, DTYPE, encoder)
    return size(geometry(raw), workload, Options(cache=cache, version=RELEASE))


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_dynamic_cache_right_after_the_prefill_and_while_decoding(models, name, tokens):
    found = tiny(models, name)
    answer = predicted(found, FAMILIES[name], tokens, "dynamic")
    assert measured(found, (tokens,), "dynamic", None) == (answer.logical_bytes, answer.after_prefill_bytes)
    if tokens > 2:
        steady = (answer.logical_bytes, answer.total_bytes)
        assert measured(found, (tokens - 1, 1), "dynamic", None) == steady
        assert measured(found, (tokens - 2, 1, 1), "dynamic", None) == steady


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, 4 * WINDOW])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_static_cache_holds_its_slots_at_once(models, name, length):
    found = tiny(models, name)
    _, storage = measured(found, (WINDOW - 2,), "static", length)
    assert predicted(found, FAMILIES[name], length, "static").total_bytes == storage


def test_the_peak_while_a_token_is_added(models):
    """Old and new tensor of one layer's K (or V), seen through an allocator that counts."""
    found = tiny(models, "full")
    cache = found.feed((WINDOW,), 2)
    held = sum(layer.storage for layer in weigh(cache))
    layer = cache.layers[0]
    grown = torch.cat([layer.keys, layer.keys[:, :, :1]], dim=-2)
    after = predicted(found, FAMILIES["full"], WINDOW + 1, "dynamic")
    assert grown.untyped_storage().nbytes() == after.peak_bytes - after.total_bytes
    assert held == predicted(found, FAMILIES["full"], WINDOW, "dynamic").total_bytes


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_real_generate_leaves(models, name, cache):
    """Four new tokens after a prompt that fills a window: the cache object that generate builds itself."""
    found = judge(geometry(FAMILIES[name]), Bench(tiny(models, name)), Run(cache, 13, 2, "generate"), RELEASE)
    assert (found.status, found.reason) == ("equal", None)
    assert found.measured.tensors >= 2


def test_states_are_weighed_after_a_step():
    """RecurrentGemma's are bfloat16 after the prefill and float32 after a step: 2 x 64 x 2 bytes were missing."""
    raw = {"model_type": "recurrent_gemma", **TINY, "num_hidden_layers": 3, "lru_width": 64, "num_key_value_heads": 1}
    raw |= {"attention_window_size": WINDOW, "block_types": ["recurrent", "recurrent", "attention"]}
    found = subject(read_config(raw), "bfloat16", ("meta",))
    for run in (Run("dynamic", 13, 1, "prefill"), Run("dynamic", 13, 1), Run("static", 13, 1)):
        result = judge(geometry(raw), Bench(found), run, RELEASE)
        assert (result.status, result.reason) == ("equal", None)
    early, late = (sum(x.storage for x in weigh(found.feed(plan), found.model)) for plan in ((6,), (5, 1)))
    assert late - early == 2 * 64 * 2


# -- continuous batching -----------------------------------------------------------------------------------------------

PAGED = {
    "full": FAMILIES["full"],
    "every layer sliding": FAMILIES["every layer sliding"],
    "full and sliding": FAMILIES["full and sliding"],
    "four sliding, one full": {**FAMILIES["full and sliding"], "num_hidden_layers": 5, "sliding_window_pattern": 5},
}


@pytest.mark.parametrize("moment", ["pool", "prefill", "decode", "generate"])
@pytest.mark.parametrize("name", PAGED)
def test_a_real_paged_cache(models, name, moment):
    """256 tokens fill a page, the next one takes another; three requests share sectors."""
    models.setdefault(f"paged, {name}", subject(read_config(PAGED[name]), DTYPE, ("cpu",)))
    for tokens in (257,) if moment == "generate" else (256, 257):
        run = Run("paged", tokens, 3, moment)
        found = judge(geometry(PAGED[name]), Bench(models[f"paged, {name}"]), run, RELEASE)
        assert (found.status, found.reason) == ("equal", None)


def test_requests_that_a_pool_holds_at_once():
    """100 pages in 25 sectors of 4; a request takes one sector and half of one: 16, where 25 / 2 were counted."""
    raw = PAGED["four sliding, one full"]
    model = subject(read_config(raw), DTYPE, ("meta",)).model
    pool = build_pool(model, 20, 256)
    workload, options = Workload(300, 1, DTYPE, DTYPE), Options(cache="paged", num_blocks=20, version=RELEASE)
    predicted = size(geometry(raw), workload, options).pool
    assert (pool.num_sectors, predicted.num_blocks, predicted.max_concurrency) == (25, 25, 16)
    admit(pool, 16, (300,))
    with pytest.raises(UnsupportedError, match="no room"):
        admit(build_pool(model, 20, 256), 17, (300,))


# -- the probe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_probe_sees_what_the_rule_says(name):
    raw = FAMILIES[name]
    found = probe(raw)
    encoder = found.encoder_tokens
    for weighed in found.weighed:
        workload = Workload(weighed.tokens, 1, found.dtype, found.dtype, encoder)
        options = Options(version=found.transformers)
        by_rule, by_probe = size(geometry(raw), workload, options), size(found.geometry, workload, options)
        assert by_rule.after_prefill_bytes == by_probe.after_prefill_bytes == sum(x.storage for x in weighed.layers)
        assert by_rule.total_bytes == by_probe.total_bytes


def test_a_probe_knows_models_that_have_no_rule():
    raw = {"model_type": "csm", **TINY, "depth_decoder_config": {**TINY, "backbone_hidden_size": 64}}
    with pytest.raises(UnknownArchitectureError):
        geometry(raw)
    found = probe(raw)
    assert [layer.stores[0].entry.elements for layer in found.geometry.layers] == [2 * 2 * 16] * 4
    assert found.model_class == "CsmForConditionalGeneration"


def test_a_repository_s_own_code_is_never_run():
    raw = {"model_type": "acme", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    with pytest.raises(UnknownArchitectureError, match="does not know the architecture"):
        probe(raw)


def test_a_config_that_its_class_refuses():
    with pytest.raises(ConfigError, match="refuses this config"):
        probe({"model_type": "llama", "num_hidden_layers": "many"})


def test_a_text_model_that_the_class_passes_over_is_no_twin():
    """VibeVoice's class reads text_config; of a file with decoder_config it built 33,554,432 bytes, not 1,835,008."""
    inner = {"model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12}
    with pytest.raises(ConfigError, match="does not read decoder_config of a vibevoice"):
        read_config({"model_type": "vibevoice", "decoder_config": inner})
    assert read_config({"model_type": "vibevoice", "text_config": inner}).get_text_config().num_hidden_layers == 28


def test_a_cache_of_a_kind_of_its_own_is_not_generalised():
    raw = {"model_type": "deepseek_v4", "num_hidden_layers": 2, "compress_ratios": [4, 128]}
    with pytest.raises(UnsupportedError, match="a probe cannot generalise"):
        probe(raw)


def test_a_thin_twin_keeps_what_a_cache_is_made_of():
    config = read_config({"model_type": "mixtral", "sliding_window": 4096})
    twin = thin(config)
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "sliding_window")
    assert [getattr(twin, name) for name in kept] == [getattr(config, name) for name in kept]
    assert (twin.vocab_size, twin.num_local_experts) == (256, 4)
    assert config.vocab_size == 32000


def test_a_thin_twin_cuts_what_is_left_out_listed_or_looks():
    """GPT-Neo leaves out four times its hidden size; Gemma 3n lists widths; Qwen2-VL's tower has 32 layers."""
    assert thin(read_config({"model_type": "gpt_neo"})).intermediate_size == 32
    assert thin(read_config({"model_type": "gemma3n_text"})).intermediate_size == [32] * 35
    seeing = read_config({"model_type": "qwen2_vl"})
    twin = thin(seeing)
    assert (seeing.vision_config.depth, twin.vision_config.depth) == (32, 1)
    assert twin.text_config.num_hidden_layers == seeing.text_config.num_hidden_layers == 80
