"""Configs that differ from a class's defaults as published ones do: drawn at random, and by keys of older releases."""

import random
import re

from kvsize.real.twin import read_config, text_config

INTERESTING = re.compile(
    r"head|window|layer|_lora_rank|rope_dim|nope|index|compress|conv|kernel|state|expand|group|linear|pattern|period"
    r"|interval|offset|type|multi_query|new_decoder|shared|sharing|mla|dsa|local|global|every|cycles|stack|block|d_kv"
    r"|kv_channels|chunk|hidden_size|d_model|n_embd|lru|stride|swa|k_eq_v|bidirectional|mamba|alibi"
)
DULL = re.compile(
    r"vision|audio|image|video|dropout|drop$|layerdrop|eps|bias|init|loss|coef|label|norm|scal|multiplier|theta|rope_par"
    r"|std|min$|max$|floor|limit|token|act$|cache$|tie|vocab|ffn|mlp|feed|moe_|expert|router|rank$|time_step|mtp"
    r"|classifier|position_embedding|encoder_layers|encoder_attention|return|output|problem|torch|name|arch|hash|patch"
)
KEEP = re.compile(r"_lora_rank$")


def fields(config):
    """Fields of a config class that may decide a cache's geometry, with their default values."""
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("sub_configs", "id2label", "label2id", "transformers_version"):
            continue
        if INTERESTING.search(name) and (KEEP.search(name) or not DULL.search(name)):
            yield name, value


def alternatives(name, value, rng):
    """Other values that a real file might have."""
    if isinstance(value, bool):
        return [not value]
    if name == "layer_types" or (isinstance(value, list) and value and isinstance(value[0], str)):
        shuffled = rng.sample(value, len(value)) if value else []
        return [shuffled, None] if value else []
    if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
        return [value[::2], [v for v in value if rng.random() < 0.5]]
    if value is None:
        return [rng.choice((1, 2, 3, 4, 8, 64))]
    if isinstance(value, int) and value >= 16:  # a width: a head of one element is no model
        return [None, value // 2, value * 2, value + 8]
    if isinstance(value, int):
        return [None, max(value // 2, 1), value * 2, rng.choice((1, 2, 3, 5, 8))]
    if isinstance(value, float):
        return [value * 2, 1.0]
    return []


def encodes(config):
    """Whether a model has an encoder; no such file has the stray keys of a decoder."""
    return config.is_encoder_decoder or hasattr(config, "encoder_layers")


def variants(raw, count, seed):
    """Configs that differ from the defaults in one to three fields, and in the number of layers."""
    rng = random.Random(seed)  # a reproducible sweep
    config = read_config(raw)
    text = text_config(config)
    nested = next((k for k in ("text_config", "decoder") if getattr(config, k, None) is text), None)
    prefix = f"{nested}." if nested else ""
    depth = (getattr(text, "attribute_map", None) or {}).get("num_hidden_layers", "num_hidden_layers")
    choices = list(fields(text))
    choices += [(name, values) for name, values in EXTRA.items() if name not in dict(choices) and not encodes(config)]
    for _ in range(count):
        edits = {}
        if rng.random() < 0.8:
            edits[prefix + depth] = rng.choice((4, 5, 6, 7, 9, 12))
        for name, value in rng.sample(choices, min(len(choices), rng.choice((1, 1, 2, 3)))):
            options = value if isinstance(value, tuple) else alternatives(name, value, rng)
            if options:
                edits[prefix + name] = rng.choice(options)
        yield edits


# Sizes of a model that a CPU runs at once; lists and patterns stay those of the class.
TINY = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "lru_width"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "attention_heads", "indexer_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "linear_num_key_heads", "index_n_heads"), 2),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "linear_value_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("mamba_head_dim", "kv_channels", "d_kv", "q_lora_rank", "index_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "qk_rope_head_dim", "mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_chunk_size", "chunk_size", "index_topk"), 8),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention"), 8),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "ffn_dim", "d_ff"), 32),
    **dict.fromkeys(("n_inner", "decoder_ffn_dim", "encoder_ffn_dim", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "n_mamba_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "kv_lora_rank": 24,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(raw):
    """Edits that make a text model small, where its class has the keys; none for a model with parts."""
    config = read_config(raw)
    if text_config(config) is not config or config.is_encoder_decoder:
        return {}
    depth = (getattr(config, "attribute_map", None) or {}).get("num_hidden_layers", "num_hidden_layers")
    sizes = {name: size for name, size in TINY.items() if vars(config).get(name) is not None}
    if "kv_lora_rank" in sizes:  # MLA: the rotary embedding is as wide as head_dim
        sizes |= {"num_key_value_heads": sizes.get("num_attention_heads", 4), "head_dim": TINY["qk_rope_head_dim"]}
    return {depth: 6, **sizes} if isinstance(vars(config).get(depth), int) else sizes


# Keys that no field declares, but that files carry.
EXTRA = {"head_dim": (96, None), "num_key_value_heads": (2, None), "sliding_window": (40, None), "v_head_dim": (48,)}

SMALL = {"num_hidden_layers": 6}
KDA = {
    "num_heads": 4,
    "head_dim": 64,
    "short_conv_kernel_size": 3,
    "full_attn_layers": [2, 6],
    "kda_layers": [1, 3, 4, 5],
}
# Keys of earlier releases and of published files, which the classes translate.
LEGACY = {
    "bailing_hybrid": [{"num_hidden_layers": 5, "layer_group_size": 3}, {"num_hidden_layers": 6, "head_dim": 64}],
    "bamba": [{"mamba_d_head": "auto", "mamba_n_heads": 64}, {"attn_layer_indices": [0, 3], "num_hidden_layers": 5}],
    "bloom": [{"n_embed": 512, "n_head": 8}, {"n_embed": 512, "num_attention_heads": 8, "num_hidden_layers": 3}],
    "cohere2": [{**SMALL, "sliding_window_pattern": 3}, {**SMALL, "head_dim": 96}],
    "cohere2_moe": [{**SMALL, "sliding_window_pattern": 3, "first_k_dense_replace": 2}],
    "cohere_compass_text": [{**SMALL, "sliding_window_pattern": 3}, {**SMALL, "head_dim": 96}],
    "dbrx": [{"attn_config": {"kv_n_heads": 4, "clip_qkv": 8.0, "rope_theta": 1e4}, "n_layers": 3}],
    "deepseek_v4": [
        {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4]},
        {"num_hidden_layers": 3, "compress_rate_csa": 8},
    ],
    "dots3_note_text": [
        {**SMALL, "use_dsa": False},
        {**SMALL, "use_sliding_window": False},
        {**SMALL, "sliding_window_size": 64, "swa_kv_lora_rank": 96, "swa_qk_nope_head_dim": 128},
        {**SMALL, "layer_types": ["full_attention", "sliding_attention"] * 3},
    ],
    "exaone4": [
        {**SMALL, "sliding_window_pattern": "LLG"},
        {**SMALL, "sliding_window": None},
        {**SMALL, "sliding_window_pattern": 2},
    ],
    "exaone_moe": [{**SMALL, "sliding_window_pattern": "LLG"}, {**SMALL, "sliding_window_pattern": 2}],
    "falcon": [
        {"n_embed": 512, "num_attention_heads": 8, "num_hidden_layers": 3},
        {"num_hidden_layers": 3, "new_decoder_architecture": True, "num_kv_heads": None},
        {"num_hidden_layers": 3, "multi_query": False, "num_kv_heads": 8},
        {"n_layer": 3, "n_head": 8, "hidden_size": 512},
    ],
    "fuyu": [{"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8}],
    "gemma2": [{**SMALL, "head_dim": None}, {**SMALL, "sliding_window_pattern": 3}],
    "gemma3_text": [
        {**SMALL, "sliding_window_pattern": 2},
        {**SMALL, "use_bidirectional_attention": True, "sliding_window": 64},
    ],
    "gemma3n_text": [
        {"num_hidden_layers": 12, "num_kv_shared_layers": 4},
        {"num_hidden_layers": 10, "num_kv_shared_layers": 0},
    ],
    "gemma4_text": [
        {**SMALL, "global_head_dim": 128},
        {**SMALL, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
        {**SMALL, "num_global_key_value_heads": 1, "attention_k_eq_v": False},
        {"num_hidden_layers": 14, "num_kv_shared_layers": 4},
        {**SMALL, "use_bidirectional_attention": "all", "sliding_window": 64},
        {
            **SMALL,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "per_layer_config": {"5": {"head_dim": 64}},
        },
    ],
    "glm5_next_text": [
        {**SMALL, "linear_attn_config": KDA},
        {"num_hidden_layers": 8, "index_topk_pattern": "SSSFSSSS"},
    ],
    "glm_moe_dsa": [
        {**SMALL, "index_topk_pattern": "FSSFSF"},
        {**SMALL, "index_topk_freq": 2, "index_skip_topk_offset": 3},
    ],
    "gpt_bigcode": [{"multi_query": False, "n_layer": 3}, {"multi_query": True, "num_hidden_layers": 3}],
    "granitemoehybrid": [{"num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "attention"]}],
    "hunyuan_vl": [{"text_config.attention_head_dim": 64}],
    "inkling_text": [{**SMALL, "local_layer_ids": [0, 2]}, {**SMALL, "swa_head_dim": 32, "swa_num_key_value_heads": 2}],
    "jamba": [{"attn_layer_period": 3, "attn_layer_offset": 1, "num_hidden_layers": 6}],
    "kimi_linear": [{**SMALL, "linear_attn_config": KDA}, SMALL],
    "lfm2": [{**SMALL, "full_attn_idxs": [1, 4]}, {**SMALL, "layer_types": ["conv", "full_attention"] * 3}],
    "lfm2_moe": [{**SMALL, "layer_types": ["conv", "full_attention"] * 3}],
    "llama": [{**SMALL, "head_dim": 96}, {**SMALL, "num_key_value_heads": None}, {**SMALL, "sliding_window": 64}],
    "llama4_text": [
        {**SMALL, "no_rope_layer_interval": 3},
        {**SMALL, "no_rope_layers": [1, 0, 1, 0, 1, 0]},
        {**SMALL, "no_rope_layers": []},
    ],
    "mimo_v2_flash": [{**SMALL, "sliding_window_size": 64}, {**SMALL, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 0]}],
    "minimax": [{**SMALL, "attn_type_list": [0, 0, 1, 0, 0, 1]}, SMALL],
    "minimax_m3_vl_text": [
        {**SMALL, "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1, 0, 1, 0], "sparse_index_dim": 64}}
    ],
    "mistral_large4_text": [
        {**SMALL, "no_rope_layer_interval": 3},
        {**SMALL, "kv_source_layers": [0, 0, 2, 2, 4, 5], "no_rope_layers": [1, 1, 0, 0, 1, 1]},
        {**SMALL, "index_topk_pattern": "FSFSFS"},
    ],
    "modernbert-decoder": [{**SMALL, "global_attn_every_n_layers": 2, "local_attention": 64}],
    "mpt": [{"n_layers": 3, "attn_config": {"attn_type": "multiquery_attention"}}, {"n_layers": 3, "n_heads": 4}],
    "nemotron_h": [
        {"hybrid_override_pattern": "M*-ME*", "mamba_d_conv": 3, "mamba_n_groups": 4},
        {"layers_block_type": ["mamba", "attention", "moe", "mamba"]},
        {"hybrid_override_pattern": "M*-", "num_hidden_layers": 3, "n_groups": 2, "conv_kernel": 3},
    ],
    "paddleocr_vl": [
        {"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    ],
    "phi3": [{**SMALL, "sliding_window": 64}],
    "qwen2": [
        {**SMALL, "use_sliding_window": True, "max_window_layers": 3, "sliding_window": 64},
        {**SMALL, "sliding_window": 64},
    ],
    "qwen2_moe": [{**SMALL, "use_sliding_window": True, "max_window_layers": 3, "sliding_window": 64}],
    "qwen2_vl": [{"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}],
    "qwen2_5_vl": [
        {"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2},
        {"num_hidden_layers": 4, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 64},
    ],
    "qwen3_next": [{**SMALL, "full_attention_interval": 3}],
    "qwen3_5_text": [{**SMALL, "full_attention_interval": 2}],
    "qwen4_exp_text": [{"num_hidden_layers": 8, "full_attention_interval": 2}],
    "recurrent_gemma": [
        {**SMALL, "block_types": ["recurrent", "attention"], "attention_window_size": 64},
        {**SMALL, "lru_width": 512},
    ],
    "smollm3": [{**SMALL, "use_sliding_window": True, "sliding_window": 64, "no_rope_layers": [1, 0, 1, 1, 0, 1]}],
    "step3p5": [
        {
            **SMALL,
            "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8},
            "sliding_window": 64,
        },
        {
            **SMALL,
            "num_nextn_predict_layers": 1,
            "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 3,
            "sliding_window": 64,
        },
    ],
    "step3p7": [
        {
            "text_config.num_hidden_layers": 4,
            "text_config.layer_types": ["full_attention", "sliding_attention"] * 2,
            "text_config.sliding_window": 64,
            "text_config.attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8},
        }
    ],
    "t5": [{"num_layers": 3, "num_decoder_layers": 4}, {"num_layers": 3, "d_kv": 32}],
    "t5gemma2": [{"decoder.num_hidden_layers": 6, "decoder.sliding_window_pattern": 2}],
    "unlimited_ocr": [{"language_config": {"num_hidden_layers": 3, "hidden_size": 512}, "sliding_window": 64}],
    "zamba": [{"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1}],
    "zamba2": [{"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]}],
}
