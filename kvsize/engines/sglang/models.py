"""What SGLang makes of a model's class: whose windows and states it pools, whose latents it keeps, what it refuses.

SGLang sizes its pools from the class that `architectures` names and from keys of the config, not from what the layers
store. Tables from sglang@0.5.23 configs/model_config.py, configs/hybrid_arch.py and utils/hf_transformers/common.py.
"""

from __future__ import annotations

from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Chunked, Encoder, Geometry, Heads, IndexKey, Latent, Layer, Recurrent, Sliding

# model_config.py is_hybrid_swa_model: every other class is charged in full, whatever windows its layers have.
# The last row opts in through its own config class.
WINDOWED = frozenset(
    """
    BeamForCausalLM Llama4ForConditionalGeneration GptOssForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM
    IQuestQ1ForCausalLM MiMoV2ForCausalLM MiMoV2FlashForCausalLM Step3p5ForCausalLM Step3p7ForConditionalGeneration
    Gemma4ForCausalLM Gemma4ForConditionalGeneration EmbeddingGemma2Model Gemma4UnifiedForConditionalGeneration
    DiffusionGemmaForBlockDiffusion LagunaForCausalLM MellumForCausalLM MuseGlimmerForCausalLM
    MuseGlimmerForConditionalGeneration UnlimitedOCRForCausalLM
    MuseSparkForConditionalGeneration
    """.split()
)
# Allowed, and charged in full after all where no layer has a window; the others then fail an assertion.
WINDOWS_OPTIONAL = frozenset({"BeamForCausalLM", "LagunaForCausalLM", "MuseSparkForConditionalGeneration"})

# model_config.py _derive_model_shapes: the classes whose latent is cached as it is (MLA).
LATENT = frozenset(
    """
    DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM
    LongcatFlashForCausalLM LongcatCausalLM LongcatFlashNgramForCausalLM HYV4ForCausalLM DotsVLMForCausalLM
    MistralLarge3ForCausalLM PixtralForConditionalGeneration KimiK25ForConditionalGeneration GigaChat35ForCausalLM
    MiniCPM3ForCausalLM DeepseekVL2ForCausalLM KimiVLForConditionalGeneration KimiLinearForCausalLM
    KimiK3LinearForCausalLM KimiK3ForConditionalGeneration BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM
    BailingMoeV3VLForConditionalGeneration SarvamMLAForCausalLM
    """.split()
)
# model_config.py is_deepseek_dsa: the classes with a sparse-attention indexer.
INDEXED = frozenset(
    """
    DeepseekV3ForCausalLM DeepseekV32ForCausalLM MistralLarge3ForCausalLM PixtralForConditionalGeneration
    GlmMoeDsaForCausalLM LongcatFlashForCausalLM HYV4ForCausalLM
    """.split()
)

# hybrid_arch.py mambaish_config: the types whose states live in a pool of slots.
STATE_TYPES = frozenset(
    """
    qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h falcon_h1 granitemoehybrid lfm2 lfm2_moe
    mamba falcon_mamba mamba2 kimi_linear bailing_hybrid
    """.split()
)
# mamba_utils.py mamba2_state_dtype(config): the types whose config's mamba_ssm_dtype is read; else float32.
STATE_DTYPE_TYPES = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "falcon_h1"})

# arg_groups/overrides.py _MAMBA_EXTRA_BUFFER_ARCHS: `auto` picks extra_buffer for these.
EXTRA_BUFFER = frozenset(
    """
    KimiLinearForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM
    Qwen3_5ForCausalLM Qwen3NextForCausalLM InternS2PreviewForConditionalGeneration MiniCPMV4_6ForConditionalGeneration
    MiniCPMV4_7ForConditionalGeneration BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM
    BailingMoeV3VLForConditionalGeneration FalconH1ForCausalLM GraniteMoeHybridForCausalLM NemotronHForCausalLM
    NemotronHPuzzleForCausalLM NemotronH_Omni_Reasoning_V3 KimiK3ForConditionalGeneration
    """.split()
)

# Of these, what the recorded runs hold: windows by class, states by type. Others follow the same rules unseen.
RUN_WINDOWED = frozenset(
    """
    Gemma4ForConditionalGeneration GptOssForCausalLM LagunaForCausalLM Llama4ForConditionalGeneration
    MiMoV2FlashForCausalLM MuseGlimmerForConditionalGeneration
    """.split()
)
RUN_STATE_TYPES = frozenset("kimi_linear lfm2 mamba nemotron_h qwen3_5_moe_text qwen3_5_text qwen3_next".split())

# Types that neither transformers@5.19.0 (which sglang@0.5.23 pins) nor SGLang's own registry has a config class for.
UNKNOWN_TYPES = frozenset(
    """
    RefinedWeb RefinedWebModel aquila baichuan bailing_moe deci deepseek_ref falcon_perception flint
    gpt_neox_reward_model granite_docling_text grok-1 hunyuan inkling2_text internlm internlm2 internlm3 iquestcoder
    kolibri1 lfm3 mimo minicpm minicpmv minimax_m1 minimax_m3 minimax_text_01 mistral_large4_text molmo molmo2_text
    nemotron-nas openelm orion phi-msft phi3_v phi3small pp_formulanet_text qwen rugpt3xl rwkv5 rwkv6 rwkv7 xverse
    """.split()
)
# Types with pools of their own that were not checked, and those whose published configs SGLang cannot load.
REFUSED_TYPES = {
    "deepseek_v4": "its compressed-attention pools are not modelled",
    "minimax_m3_vl_text": "its sparse-attention pools are not modelled",
    "qwen4_exp_text": "its indexer pool is not modelled",
    "glm5_next_text": "its pooled indexer is not modelled",
    "dots3_note_text": "its two latent pools are not modelled",
    "inkling_text": "its convolution slots are not modelled",
    "zaya": "its convolution slots are not modelled",
    "unlimited_ocr_text": "its prompt-and-window pool is not modelled",
    "dbrx": "transformers 5.19, which it pins, rejects ffn_config.ffn_act_fn of the published config",
}
REFUSED_CLASSES = {
    "VibeVoiceForConditionalGeneration": "transformers 5.19, which it pins, rejects the published config",
    "Gemma4ForCausalLM": "a text-only Gemma 4 config raises in ModelConfig; the one with a text_config loads",
}
# configs/internvl.py: the language models that InternVLChatModel can hold.
INTERNVL_TYPES = frozenset({"llama", "internlm2", "qwen2", "qwen3", "qwen3_moe", "gpt_oss"})


def stated(geometry: Geometry, key: str) -> int | None:
    """A size as the file names it, whether or not the model's own class reads that key."""
    return dict(geometry.stated).get(key)


def check(geometry: Geometry) -> None:
    """Refuse what SGLang cannot load, and what no rule covers.

    Raises:
        UnsupportedError: with the reason and a way on.
    """
    reason = _refusal(geometry)
    if reason is not None:
        raise UnsupportedError(
            f"SGLang 0.5.23 on {geometry.architecture or 'no class'} ({geometry.model_type}): {reason}",
            hint="--engine vllm or --engine transformers size this model's cache by rules of their own.",
        )


def _refusal(geometry: Geometry) -> str | None:
    name, kind = geometry.architecture, geometry.model_type
    if name is None:
        return "the config names no class in architectures, by which SGLang picks its model"
    if name == "InternVLChatModel" and kind not in INTERNVL_TYPES:
        return "InternVLChatModel takes " + ", ".join(sorted(INTERNVL_TYPES)) + " as its language model"
    if kind in UNKNOWN_TYPES and name != "InternVLChatModel":
        return "no config class for this type without the repository's own code (--trust-remote-code), not checked"
    if kind == "mamba2" and stated(geometry, "intermediate_size") is None:
        return "its Mamba2Config reads intermediate_size, which the file does not name"
    return REFUSED_TYPES.get(kind) or REFUSED_CLASSES.get(name) or _unfit(geometry, name)


def _unfit(geometry: Geometry, name: str) -> str | None:
    entries = [s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    latent = name in LATENT
    if any(isinstance(entry, Latent) for entry in entries) and not latent:
        return "the class is not among those whose latent SGLang caches"
    if latent and any(isinstance(entry, Heads) for entry in entries) and name != "PixtralForConditionalGeneration":
        return "SGLang takes the class for one with a latent (MLA), and this model caches heads"
    if is_indexed(geometry) and name not in INDEXED:
        return "no rule for the indexer of this class"
    if name in WINDOWED - WINDOWS_OPTIONAL and not any(is_window(layer) for layer in geometry.layers):
        return "SGLang gives this class a window pool, and no layer has a window"
    if not entries and not states_pooled(geometry) and geometry.num_attention_heads is None:
        return "no layer caches keys and values, and SGLang has no state pool for this type"
    return None


def is_window(layer: Layer) -> bool:
    """Whether the layer attends to a window or a chunk only."""
    return any(isinstance(s, Attention) and isinstance(s.span, Sliding | Chunked) for s in layer.stores)


def windows_pooled(geometry: Geometry) -> bool:
    """Whether windows get a pool of their own: for the classes of an allow-list only."""
    return geometry.architecture in WINDOWED and any(is_window(layer) for layer in geometry.layers)


def states_pooled(geometry: Geometry) -> bool:
    """Whether recurrent states get slots; SGLang charges the layers of other types as attention."""
    return geometry.model_type in STATE_TYPES and any(
        isinstance(store, Recurrent) for layer in geometry.layers for store in layer.stores
    )


def is_indexed(geometry: Geometry) -> bool:
    """Whether a layer runs a sparse-attention indexer (DSA)."""
    return any(
        isinstance(s, Attention) and isinstance(s.entry, IndexKey) for layer in geometry.layers for s in layer.stores
    )


def was_run(geometry: Geometry) -> bool:
    """Whether pools like this model's are among the recorded runs."""
    windows = not windows_pooled(geometry) or geometry.architecture in RUN_WINDOWED
    return windows and (not states_pooled(geometry) or geometry.model_type in RUN_STATE_TYPES)


def is_encoder_decoder(geometry: Geometry) -> bool:
    """Whether layers keep a cross-attention cache beside their own."""
    return any(
        len(layer.stores) > 1 and any(isinstance(s, Attention) and isinstance(s.span, Encoder) for s in layer.stores)
        for layer in geometry.layers
    )


def doubtful(geometry: Geometry, charged: int) -> str | None:
    """What a reader must know where SGLang's sizing code and what it can serve part ways."""
    name = geometry.architecture
    if geometry.model_type == "longcat_flash":
        return (
            f"the pool follows a recorded run of SGLang's sizing code with {charged} layers; its server counts both "
            f"attention blocks of each (layer_setup.py), {2 * charged} in all, and holds half of these tokens"
        )
    if name == "WhisperForConditionalGeneration":
        return (
            f"the pool follows a recorded run of SGLang's sizing code with {charged} layers; its server also gives "
            "buffers to the encoder and to cross attention (model_config.py num_attention_layers): about a third of "
            "these tokens"
        )
    if not any(layer.stores for layer in geometry.layers):
        return "the model caches nothing; the figures are what SGLang's sizing code gives: every layer as attention"
    if is_encoder_decoder(geometry):
        return "SGLang serves no model of this class; the figures are what its sizing code makes of the decoder"
    if not states_pooled(geometry) and any(isinstance(s, Recurrent) for ly in geometry.layers for s in ly.stores):
        return (
            "SGLang has no state pool for this type and serves no such model; the figures are what its sizing code "
            "gives: every layer charged as attention"
        )
    return None
