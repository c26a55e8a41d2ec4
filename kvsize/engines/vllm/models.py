"""What vLLM makes of each kind of model, where that does not follow from the geometry alone: tables.

vllm@0.33.0 model_executor/models/*.py, models/*, transformers_utils/model_arch_config_convertor.py is_deepseek_mla.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from kvsize.engines.vllm.versions import Number, Release
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry, Recurrent

StateDtype: TypeAlias = Literal["conv", "config", "config or float32", "float32"]
Checkpoint: TypeAlias = Literal["none", "mamba2", "gdn", "kda"]


@dataclass(frozen=True, slots=True)
class StateRule:
    """How vLLM keeps a type's recurrent states.

    `dtype` is what `--mamba-ssm-cache-dtype auto` means: the conv state's, or what the config says. `checkpoint`:
    whether prefix caching takes one more block, for a state saved inside a prefill. `until`: the last release that
    has the model.
    """

    dtype: StateDtype = "conv"
    checkpoint: Checkpoint = "none"
    until: Number | None = None


STATES: Mapping[str, StateRule] = {
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba", "lfm2", "lfm2_moe", "olmo_hybrid"), StateRule()),
    **dict.fromkeys(("mamba2", "falcon_h1", "granitemoehybrid", "zamba2"), StateRule(checkpoint="mamba2")),
    "nemotron_h": StateRule("config or float32", "mamba2"),
    "bamba": StateRule(checkpoint="mamba2", until=(0, 23, 0)),
    "qwen3_next": StateRule(checkpoint="gdn"),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), StateRule("config", "gdn")),
    "kimi_linear": StateRule("float32"),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), StateRule(until=(0, 23, 0))),
}
# Classes that keep their states otherwise than their model_type would say: Kimi-K3's gate is bounded, so that FlashKDA
# runs it and saves states inside a prefill. models/kimi_k3/nvidia/kda.py get_kv_cache_spec
STATES_OF_CLASS: Mapping[str, StateRule] = {"KimiK3ForConditionalGeneration": StateRule("float32", "kda")}
# config.py MODELS_CONFIG_MAP: only these classes of that type look at mamba_ssm_dtype (MiniCPM-V 4.6 does not).
READS_STATE_DTYPE = "Qwen3_5"
# Types whose latent vLLM caches as such (is_deepseek_mla), with and without an indexer.
# mistral4 is published with a params.json, which vLLM reads as a deepseek_v3.
MLA = ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "kimi_linear", "longcat_flash", "mistral4")
INDEXED = ("deepseek_v32", "glm_moe_dsa")
# Plain heads with an index key in bfloat16 beside them, in blocks of the sparse pattern. models/minimax_m3/common
INDEXED_HEADS = ("minimax_m3", "minimax_m3_vl_text")
EXPANDED_LATENT = ("minicpm3",)  # minicpm3.py caches all heads, V padded to K's width
SHARING = ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
CROSS_ATTENDING = ("whisper",)
# Bidirectional: a prefill, and no cache. encoder_only_attention.py get_kv_cache_spec
ENCODER_ONLY = ("bert", "roberta", "xlm-roberta")
# falcon.py gives its attention no cache_config: the cache stays in the model's dtype whatever --kv-cache-dtype says.
IGNORES_KV_FORMAT = ("falcon", "RefinedWeb", "RefinedWebModel")
# gpt_oss.py divides the KV heads by the ranks and takes no remainder.
NO_HEAD_REPLICATION = ("gpt_oss",)
# Two attention modules in each pipeline unit. models/longcat_flash.py
CACHES_PER_UNIT: Mapping[str, int] = {"longcat_flash": 2}
GDN_CHECKPOINT_TOKENS = 64  # v1/attention/backends/gdn_attn.py FLASHINFER_GDN_CHECKPOINT_ALIGNMENT
# Multi-token prediction adds one layer like the last attention layer, however many tokens are drafted.
MTP = ("deepseek_v3", "deepseek_v32", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

# Model classes without SupportsPP.
NO_PIPELINE = (
    "AliceAIForCausalLM",
    "AriaForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    "DiffusionGemmaForBlockDiffusion",
    "HrmTextForCausalLM",
    "Idefics3ForConditionalGeneration",
    "Mamba2ForCausalLM",
    "NemotronH_Nano_VL_V2",
    "PaddleOCRVLForConditionalGeneration",
    "Phi4MMForCausalLM",
    "SmolVLMForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "Zamba2ForCausalLM",
)
# Classes that vLLM no longer has, and that the Transformers backend cannot stand in for: the last release with them.
# registry.py _PREVIOUSLY_SUPPORTED_MODELS
LAST_RELEASE: Mapping[str, Number] = {
    "MllamaForConditionalGeneration": (0, 10, 2),
    "Phi3SmallForCausalLM": (0, 9, 2),
    "MotifForCausalLM": (0, 10, 2),
    **dict.fromkeys(("BaiChuanForCausalLM", "BaichuanForCausalLM", "XverseForCausalLM"), (0, 23, 0)),
    **dict.fromkeys(("InternLMForCausalLM", "QWenLMHeadModel", "QwenVLForConditionalGeneration"), (0, 23, 0)),
    **dict.fromkeys(("AquilaModel", "AquilaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM"), (0, 24, 0)),
    "TeleChatForCausalLM": (0, 25, 0),
    "Plamo2ForCausalLM": (0, 26, 0),
    "OuroForCausalLM": (0, 26, 0),
    **dict.fromkeys(("ArcticForCausalLM", "RWForCausalLM", "StableLMEpochForCausalLM", "MPTForCausalLM"), (0, 28, 0)),
}

# Types and classes that neither vLLM nor its Transformers backend can run.
UNKNOWN = (
    "falcon_perception",
    "gpt_neox_reward_model",
    "hunyuan",
    "idefics",
    "rugpt3xl",
    "Step3p7FlashForCausalLM",
)

# Types whose plans were compared with the real planner of 0.33.0 (validate/truth/vllm-0.33.0*.jsonl).
CHECKED = frozenset(
    """
    chatglm cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone4 falcon gemma gemma2 gemma3_text
    gemma3n_text gemma4_text glm4_moe glm4v_moe_text glm_moe_dsa gpt2 gpt_neox gpt_oss gptj granite granitemoe jamba
    kimi_k2 kimi_linear laguna lfm2 llama llama4_text longcat_flash mamba mamba2 mimo_v2_flash minicpm3 minimax_m2
    ministral3 mistral mixtral muse_glimmer_text nemotron nemotron_h olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2
    qwen2_5_vl_text qwen2_vl_text qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl_moe_text
    qwen3_vl_text stablelm starcoder2 whisper
    """.split()
)


def state_rule(geometry: Geometry) -> StateRule | None:
    """How vLLM keeps this model's recurrent states; None where it has no rule for the type."""
    name = geometry.architecture or ""
    rule = STATES_OF_CLASS.get(name) or STATES.get(geometry.model_type)
    if rule and rule.dtype == "config" and name and not name.startswith(READS_STATE_DTYPE):
        return replace(rule, dtype="conv")
    return rule


def caches_per_unit(geometry: Geometry) -> int:
    """Layers of the geometry that pipeline parallelism never parts."""
    return CACHES_PER_UNIT.get(geometry.model_type, 1)


def check_released(geometry: Geometry, rules: Release) -> None:
    """Refuse a model that this release no longer has.

    Raises:
        UnsupportedError: the model left vLLM in an earlier release, or was never in it.
    """
    if geometry.model_type in UNKNOWN or geometry.architecture in UNKNOWN:
        raise UnsupportedError(
            f"vLLM does not know {geometry.architecture or geometry.model_type}", hint="Try --engine transformers."
        )
    last = LAST_RELEASE.get(geometry.architecture or "")
    kinds = {s.kind for layer in geometry.layers for s in layer.stores if isinstance(s, Recurrent)}
    rule = state_rule(geometry) if kinds else None
    last = last or (rule.until if rule else None)
    if last is not None and rules.number > last:
        raise UnsupportedError(
            f"vLLM {rules.name} no longer has {geometry.architecture or geometry.model_type}",
            hint=f"The last release with it is {'.'.join(map(str, last))}: --engine vllm@{'.'.join(map(str, last))}.",
        )
