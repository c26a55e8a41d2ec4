"""Filter a folder of config.json files into the bundled catalogue, configs/models/<org>--<name>.json.

    python validate/make_catalogue.py --configs DIR --weights FILE --out configs/models [--manifest FILE]

DIR holds one folder a model, <org>--<name>/config.json, as published on the Hub. FILE is JSON lines with
`model_id` and any of `checkpoint_bytes`, `total_parameters`. The manifest is JSON lines with `model_id`,
`confidence` and perhaps `revision`.

A catalogue file is no copy of a config: it keeps the keys of KEYS and nothing else, under their Hub names
and nesting, so that it goes through the same parser as a config.json of the Hub. A key that the publisher
left out stays out, because the class default then decides; a null stays null. Files whose id is not in DIR
(written by hand from published shapes, aliases.json) are left alone.

The tables hold the decisions: MIRRORS (a copy stands in for a gated or missing original), SKIP (repositories
nobody serves), CORRECTIONS (values that a copy had changed), COUNTED and SAME_TENSORS (sizes not listed).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DATE = "2026-11"


def words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Every key that may appear in a catalogue `config`, at any depth (objects of NESTED apart, which have their
# own short lists).
KEYS = words(
    # what it is
    "model_type architectures dtype torch_dtype params_dtype is_encoder_decoder is_decoder",
    # depth
    "num_hidden_layers n_layer n_layers num_layers num_blocks decoder_layers encoder_layers",
    "num_decoder_layers num_encoder_layers",
    # width
    "hidden_size n_embd n_embed d_model dim embedding_dim embedding_size block_dim word_embed_proj_dim",
    "attention_hidden_size",
    # query heads
    "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads",
    "num_attention_heads_per_layer swa_num_attention_heads",
    # key and value heads
    "num_key_value_heads num_kv_heads n_head_kv n_kv_heads num_query_groups num_attention_groups",
    "multi_query multi_query_attention multi_query_group_num new_decoder_architecture",
    "num_global_key_value_heads swa_num_key_value_heads attention_k_eq_v",
    # head sizes
    "head_dim d_kv kv_channels attention_head_dim global_head_dim swa_head_dim swa_v_head_dim head_size",
    "head_size_divisor value_dim",
    # feed-forward
    "intermediate_size ffn_hidden_size n_inner d_ff decoder_ffn_dim encoder_ffn_dim ffn_dim",
    "inner_hidden_size ff_intermediate_size intermediate_size_mlp dense_intermediate_size",
    "shared_intermediate_size feed_forward_proj block_ff_dim block_ffn_dim_multiplier",
    "block_auto_adjust_ff_dim block_multiple_of use_double_wide_mlp",
    # experts
    "num_experts num_local_experts n_routed_experts moe_num_experts num_experts_per_tok",
    "num_experts_per_token experts_per_token moe_top_k moe_topk moe_k top_k_experts moe_intermediate_size",
    "expert_ffn_hidden_size n_shared_experts num_shared_experts num_shared_expert moe_num_shared_experts",
    "share_expert_dim shared_expert_intermediate_size moe_shared_expert_intermediate_size moe_latent_size",
    "routed_expert_hidden_size first_k_dense_replace moe_layer_freq moe_layer_start_index",
    "moe_layer_end_index moe_layer_interval decoder_sparse_step mlp_only_layers mlp_layer_types",
    "interleave_moe_layer_step moe_layers expert_layer_period expert_layer_offset zero_expert_num",
    "enable_moe_block expert_dtype num_hash_layers use_mixed_mlp_moe",
    # vocabulary
    "vocab_size padded_vocab_size decoder_vocab_size vocab_size_per_layer_input",
    "hidden_size_per_layer_input additional_vocab_size tie_word_embeddings weight_tying",
    # positions
    "max_position_embeddings n_positions n_ctx seq_length max_seq_len max_sequence_length",
    "model_max_length max_source_positions max_target_positions context_length max_context_length",
    "initial_context_length original_max_position_embeddings",
    # windows and which layer is what
    "sliding_window sliding_window_size sliding_window_pattern _sliding_window_pattern use_sliding_window",
    "max_window_layers attention_window_size attention_chunk_size window_size layer_types",
    "hybrid_layer_pattern no_rope_layers no_rope_layer_interval layer_switch interleaved",
    "order_of_interleaved_layers cache_implementation attention_types attention_layers alibi",
    "dense_attention_every_n_layers cross_attention_layers cross_layer_interval use_cla cla_share_factor",
    "num_kv_shared_layers full_attn_mod",
    # latent attention
    "kv_lora_rank q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim o_lora_rank",
    "o_groups mla_use_nope use_mla attention_method",
    # sparse and compressed attention
    "index_head_dim index_n_heads index_topk index_topk_freq index_topk_pattern index_skip_topk_offset",
    "index_share_for_mtp_iteration indexer_types use_sparse_attention sparse_attention_freq",
    "sparse_block_size sparse_disable_index_value sparse_index_dim sparse_init_block sparse_local_block",
    "sparse_num_index_heads sparse_score_type sparse_topk_blocks compress_ratios",
    # recurrent layers: mamba, gated delta nets, short convolutions, rwkv, xlstm
    "mamba_d_conv mamba_d_state mamba_d_ssm mamba_d_head mamba_n_heads mamba_n_groups mamba_ngroups",
    "mamba_headdim mamba_head_dim mamba_num_heads mamba_expand mamba_dt_rank mamba_chunk_size",
    "mamba_ssm_dtype mamba_ssm_cache_dtype n_mamba_heads mamba_rms_norm ssm_state_size state_size",
    "conv_kernel expand n_groups chunk_size time_step_rank conv1d_width lru_width block_types",
    "conv_L_cache conv_dim conv_dim_out full_attn_idxs full_attention_interval linear_conv_kernel_dim",
    "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim",
    "layers_block_type hybrid_override_pattern attn_type_list attn_layer_period attn_layer_offset",
    "attn_layer_indices hybrid_layer_ids num_mem_blocks full_attn_layers kda_layers",
    "short_conv_kernel_size qk_dim_factor v_dim_factor",
    # draft layers shipped with the model
    "num_nextn_predict_layers num_mtp_modules num_mtp_layers _num_mtp_layers use_mtp",
    "mtp_num_hidden_layers mtp_transformer_layers mtp_share_layers mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
)

# Objects that are kept, each with the keys kept inside: KEYS itself for the language models, a few names
# for the rest.
MODEL_OBJECTS = words(
    "text_config llm_config language_config decoder_config thinker_config",
    "linear_attn_config sparse_attention_config",
)
# Scalars only: they stretch the context, and transformers refuses a llama3 or proportional rope without its
# own. The tables of longrope (long_factor, short_factor) are left out: such a config sizes, but
# transformers will not build it.
ROPE = words("rope_type type factor original_max_position_embeddings low_freq_factor", "high_freq_factor rope_theta")
NESTED: Mapping[str, frozenset[str]] = {
    "vision_config": words(
        "model_type num_hidden_layers depth layers vt_num_hidden_layers hidden_size vt_hidden_size embed_dim width",
        "intermediate_size mlp_dim",
    ),
    "audio_config": frozenset({"model_type"}),
    "rope_scaling": ROPE | {"full_attention", "sliding_attention"},
    "rope_parameters": ROPE | {"full_attention", "sliding_attention"},
    "full_attention": ROPE,
    "sliding_attention": ROPE,
    "attn_config": words("kv_n_heads alibi attn_type sliding_window"),
    "ffn_config": words("ffn_hidden_size moe_num_experts moe_top_k"),
    "ssm_cfg": words("layer d_state d_conv expand headdim ngroups"),
    "quantization_config": words(
        "quant_method quant_algo bits group_size fmt format weight_block_size",
        "load_in_4bit load_in_8bit kv_cache_scheme kv_cache_quant_algo config_groups",
    ),
    "kv_cache_scheme": words("num_bits type dynamic"),
    "config_groups": frozenset({"group_0", "group_1"}),
    "group_0": frozenset({"weights"}),
    "group_1": frozenset({"weights"}),
    "weights": words("num_bits type group_size"),
    "block_configs": frozenset({"attention"}),
    "attention": words("n_heads_in_group no_op"),
}

# Kept only to say that there is a tower; dropped where that says nothing.
MARKERS = frozenset({"vision_config", "audio_config"})

# A copy under another name stands in for an original that is gated, or was not among the files. Medium
# confidence at best.
MIRRORS: Mapping[str, str] = {
    "AIFunOver/Falcon3-7B-Instruct-openvino-fp16": "tiiuae/Falcon3-7B-Instruct",
    "NarrativAI/Cakrawala-123B": "mistralai/Mistral-Large-Instruct-2411",
    "OpenVINO/starcoder2-15b-int4-ov": "bigcode/starcoder2-15b",
    "alpindale/recurrentgemma-9b": "google/recurrentgemma-9b",
    "auraecosystem/llama-65b-hf": "huggyllama/llama-65b",
    "bertin-project/bertin-gpt-j-6B": "EleutherAI/gpt-j-6b",
    "minchyeom/letta": "mistralai/Mistral-Small-Instruct-2409",
    "mlx-community/LongCat-Flash-Chat-bf16": "meituan-longcat/LongCat-Flash-Chat",
    "onnx-community/OLMo-1B-hf": "allenai/OLMo-1B-hf",
    "reubzdubz/Molmo7B_D_NF4Quant": "allenai/Molmo-7B-D-0924",
    "sgugger/rwkv-7b-pile": "RWKV/rwkv-4-7b-pile",
    "tejSinghDalal/flant5-large-aio": "google/flan-t5-large",
    "underactuated/opt-350m_ft_test": "facebook/opt-350m",
    "unrahul/starcoder2-3b-OpenVINO-asym-int4": "bigcode/starcoder2-3b",
    "ybelkada/falcon-7b-sharded-bf16": "tiiuae/falcon-7b",
}

# Test fixtures, personal fine-tunes, exports of a model that is here under its own name, and repositories
# of no public use.
SKIP = words(
    "6yuru99/MedNLLB-200 Araaa/fypllm BICORP/Test-23 Dahoas/gptneox-sft-static",
    "DracoUnion/Qwen1.5-moe-8x0.5B-Chat FastFlowLM/LFM2-1.2B-NPU2 HuengchI/Atom-7B",
    "HuggingFaceM4/tiny-random-idefics Praha-Labs/LFM-TTS-MALAYALAM",
    "OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5 RandomNameAnd6/DharMamba",
    "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2 TechxGenus/Mistral-Large-Instruct-2411-AWQ",
    "Toastmachine/exaone_CSAT_test breadlicker45/rwkv-musenet-test-untrained",
    "bryce-hoehn/Qwen3.5-25B-REAP-A3B-Coding codefuse-ai/CodeFuse-DevOps-Model-7B-Chat",
    "fxmarty/tiny-random-GemmaForCausalLM hf-internal-testing/LongCat-ShortCat",
    "hf-internal-testing/tiny-random-GraniteForCausalLM hf-internal-testing/tiny-random-Olmo2ForCausalLM",
    "hf-internal-testing/tiny-random-OlmoForCausalLM nvidia/nemotron-ultra-rl-050826",
    "optimum-intel-internal-testing/tiny-random-aya-base sgl-project/DeepSeek-V4-Pro-FP8",
    "sshleifer/tiny-marian-en-de trl-internal-testing/tiny-OPTForCausalLM unsloth/SmolLM2-360M",
    "EvilFreelancer/ruGPT3XL",
    # the first name of Llama-3.1-70B: an alias
    "meta-llama/Meta-Llama-3.1-70B",
    # copies cut down or altered: written by hand instead
    "microsoft/phi-2 databricks/dbrx-instruct",
)

# Values that a copy among the files had plainly changed (a test's 512 positions, say), set to the ones known for
# the model. No published config was at hand to confirm them: medium confidence at best.
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "01-ai/Yi-6B-Chat": {"max_position_embeddings": 4096},
    "OpenGVLab/InternVL2-2B": {"llm_config.max_position_embeddings": 32768},
    "OpenGVLab/InternVL2-4B": {
        "llm_config.max_position_embeddings": 131072,
        "llm_config.original_max_position_embeddings": 4096,
    },
    "Qwen/Qwen1.5-1.8B-Chat": {"max_position_embeddings": 32768},
    "THUDM/chatglm2-6b": {"seq_length": 32768},
    "THUDM/chatglm3-6b-32k": {"seq_length": 32768},
    "THUDM/glm-4-9b-chat": {"seq_length": 131072},
    "mistralai/Ministral-3-3B-Instruct-2512": {"model_type": "mistral3"},
    "openbmb/MiniCPM-V-2_6": {"max_position_embeddings": 32768},
    "stepfun-ai/Step-3.7-Flash": {"max_position_embeddings": 262144},
}

# Parameters counted from the config (transformers 5.23 on the meta device, or by hand where it lacks the
# type): no listing gives them, or the listing contradicts the config by more than 5%. Heads of draft layers
# are not in the count.
COUNTED: Mapping[str, int] = {
    "BAAI/bge-m3": 568_007_826,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "LiquidAI/LFM2-1.2B": 1_170_340_608,
    "OrionStarAI/Orion-14B-Chat": 14_498_703_360,
    "RWKV/rwkv-4-430m-pile": 430_397_440,
    "RWKV/rwkv-4-7b-pile": 7_392_649_216,
    "RWKV/rwkv-4-world-1b5": 1_577_607_168,
    "allenai/OLMo-1B-hf": 1_176_764_416,
    "baichuan-inc/Baichuan2-7B-Chat": 7_505_973_248,
    "bigcode/starcoder2-15b": 15_957_889_024,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "facebook/bart-large-cnn": 406_290_432,
    "facebook/opt-350m": 331_198_464,
    "failspy/Nemotron-4-340B-Instruct-SafeTensors": 341_176_651_776,
    "google-bert/bert-base-uncased": 109_514_298,
    "google/flan-t5-large": 783_150_080,
    "google/flan-t5-xxl": 11_135_332_352,
    "google/medgemma-27b-it": 27_432_406_640,
    "huggyllama/llama-65b": 65_285_660_672,
    "lightonai/mambaoutai": 1_622_361_216,
    "microsoft/WizardLM-2-8x22B": 140_620_634_112,
    "mistralai/Devstral-Small-2507": 23_572_403_200,
    "mistralai/Mistral-Large-Instruct-2411": 122_610_069_504,
    "mistralai/Mistral-Small-Instruct-2409": 22_247_282_688,
    "nvidia/GLM-5-NVFP4": 743_911_199_232,
    "nvidia/GLM-5.2-NVFP4": 743_377_000_704,
    "nvidia/MiniMax-M2.7-NVFP4": 228_689_748_992,
    "nvidia/Minitron-4B-Base": 4_190_509_056,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 549_308_968_960,
    "nvidia/Nemotron-Mini-4B-Instruct": 4_190_509_056,
    "nvidia/Qwen3-30B-A3B-NVFP4": 30_532_122_624,
    "nvidia/Qwen3-32B-NVFP4": 32_762_123_264,
    "openai/gpt-oss-120b": 116_829_156_672,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/whisper-tiny": 37_760_640,
    "openbmb/MiniCPM3-4B": 4_073_875_968,
    "tiiuae/Falcon3-7B-Instruct": 7_455_550_464,
    "togethercomputer/RedPajama-INCITE-Chat-3B-v1": 2_775_864_320,
}

# The model on the right has the same shape, formats and listed parameter count, and its checkpoint bytes are listed:
# an inference, named in `origin`.
SAME_TENSORS: Mapping[str, str] = {
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-ai/DeepSeek-V3",
}

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def keep(config: Mapping[str, Any], keys: frozenset[str] = KEYS) -> dict[str, Any]:
    """The part of a config that decides memory: allowed keys, in the publisher's order and nesting."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in MODEL_OBJECTS and isinstance(value, Mapping) and keys is KEYS:
            kept[key] = keep(value)
        elif key in NESTED and (key in keys or keys is KEYS):
            nested = _keep_nested(key, value)
            if nested or key not in MARKERS:
                kept[key] = nested
        elif key in keys and (keys is not KEYS or not isinstance(value, Mapping)):
            kept[key] = value
    return kept


def _keep_nested(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return keep(value, NESTED[key])
    if isinstance(value, list) and key == "block_configs":  # nemotron-nas: one object a layer
        return [keep(item, NESTED[key]) for item in value]
    return value


def forbidden_keys(config: Mapping[str, Any], keys: frozenset[str] = KEYS, path: str = "$") -> Iterator[str]:
    """Paths in a catalogue config that `keep` would have dropped."""
    for key, value in config.items():
        here = f"{path}.{key}"
        if not (key in keys or (keys is KEYS and (key in MODEL_OBJECTS or key in NESTED))):
            yield here
        elif isinstance(value, Mapping):
            yield from forbidden_keys(value, NESTED.get(key, KEYS), here)
        elif key == "block_configs" and isinstance(value, list):
            for item in value:
                yield from forbidden_keys(item, NESTED[key], here)


def weight_bytes(
    config: Mapping[str, Any], checkpoint_bytes: int | None, parameters: int | None
) -> tuple[int | None, str]:
    """Bytes of the published checkpoint and, in words, where the figure comes from.

    Without a listing, an unquantised checkpoint is parameters x its dtype; a quantised one stays unknown
    (which tensors kept 16 bits is not in the config).
    """
    if checkpoint_bytes:
        return checkpoint_bytes, "weight_bytes as listed"
    nested = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    text: Mapping[str, Any] = next((part for part in nested if isinstance(part, Mapping)), {})
    names = [config.get("torch_dtype"), config.get("dtype"), text.get("torch_dtype"), text.get("dtype")]
    dtype = next((name.removeprefix("torch.") for name in names if isinstance(name, str)), None)
    quantised = any("quantization_config" in part or "expert_dtype" in part for part in (config, text))
    if parameters and dtype in DTYPE_BYTES and not quantised:
        return parameters * DTYPE_BYTES[dtype], f"weight_bytes = parameters x {DTYPE_BYTES[dtype]} ({dtype})"
    return None, ""


def entry(
    model_id: str,
    config: Mapping[str, Any],
    *,
    origin: str,
    confidence: str,
    weights: Mapping[str, Any],
    revision: str | None = None,
    dtype_known: bool = True,
) -> dict[str, Any]:
    """One catalogue file as an object, `config` filtered; without `dtype_known`, bytes only as listed."""
    parameters = weights.get("total_parameters")
    bytes_, note = weight_bytes(config, weights.get("checkpoint_bytes"), parameters if dtype_known else None)
    return {
        "id": model_id,
        "origin": f"{origin}; {note}" if note else origin,
        "revision": revision,
        "date": DATE,
        "confidence": confidence,
        "weight_bytes": bytes_,
        "parameters": parameters,
        "config": keep(config),
    }


def dumps(value: Any, indent: int = 0) -> str:
    """JSON with one key a line and a list of scalars on one line: a diff of the catalogue reads well."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        body = ",\n".join(f"{pad}{json.dumps(key)}: {dumps(item, indent + 1)}" for key, item in value.items())
        return "{\n" + body + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return (
            "[\n"
            + ",\n".join(pad + json.dumps(item, separators=(",", ":")) for item in value)
            + "\n"
            + " " * indent
            + "]"
        )
    return json.dumps(value, ensure_ascii=False)


def write(out: Path, item: Mapping[str, Any]) -> None:
    name = item["id"].replace("/", "--") + ".json"
    (out / name).write_text(dumps(dict(item)) + "\n", encoding="utf-8")


def read_rows(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    rows: Iterable[dict[str, Any]] = (
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    )
    return {row["model_id"]: row for row in rows}


def correct(config: dict[str, Any], corrections: Mapping[str, Any]) -> None:
    """Set dotted paths of a config, in place."""
    for where, value in corrections.items():
        *outer, key = where.split(".")
        target = config
        for name in outer:
            target = target[name]
        target[key] = value


def from_published(
    source: str, config: dict[str, Any], about: Mapping[str, Any], weights: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The catalogue file of one published config; what the tables decided is named in `origin`."""
    model_id = MIRRORS.get(source, source)
    confidence = about.get("confidence", "medium")
    origin = "Hub config as published" if confidence == "high" else "Hub config (a mirror's or an edited copy)"
    if model_id != source:
        origin = f"config of the mirror {source}"
        confidence = "medium" if confidence == "high" else confidence
        # A mirror may be quantised; the original is not.
        config = {key: value for key, value in config.items() if key != "quantization_config"}
    corrections = CORRECTIONS.get(model_id, {})
    correct(config, corrections)
    if corrections:
        origin += f"; set to the value known for the model: {', '.join(corrections)}"
        confidence = "medium"
    row = dict(weights.get(model_id, {}))
    if model_id in COUNTED:
        row["total_parameters"] = COUNTED[model_id]
        origin += "; parameters counted from the config"
    twin = SAME_TENSORS.get(model_id)
    if twin and not row.get("checkpoint_bytes"):
        row["checkpoint_bytes"] = weights.get(twin, {}).get("checkpoint_bytes")
        origin += f"; listed for {twin}, which has the same shape, formats and parameter count"
    return entry(
        model_id,
        config,
        origin=origin,
        confidence=confidence,
        weights=row,
        revision=about.get("revision"),
        dtype_known=model_id == source or config.get("torch_dtype") in {"bfloat16", "float16"},
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--configs", type=Path, required=True, metavar="DIR", help="folder of <org>--<name>/config.json"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="JSON lines: model_id, checkpoint_bytes, total_parameters; given again, later rows win",
    )
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="JSON lines: model_id, confidence, revision")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(argv)

    weights: dict[str, dict[str, Any]] = {}
    for path in options.weights:
        weights.update(read_rows(path))
    manifest = read_rows(options.manifest)
    options.out.mkdir(parents=True, exist_ok=True)
    written = 0
    for path in sorted(options.configs.glob("*/config.json")):
        source = path.parent.name.replace("--", "/", 1)
        if source in SKIP:
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        write(options.out, from_published(source, config, manifest.get(source, {}), weights))
        written += 1
    print(f"{written} files in {options.out}")


if __name__ == "__main__":
    main()
