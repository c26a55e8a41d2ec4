"""llama.cpp's architectures: which one a model becomes, and how each differs from plain full attention.

llama.cpp@b11434 src/models/*.cpp, src/llama-model.cpp create_memory, and conversion/*.py for what becomes what.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry
from kvsize.gguf_names import NAMES

# transformers' types that become an architecture under another name, besides those in NAMES
_ALSO = {
    "llama": "mistral mixtral internlm3 iquestcoder",
    "bert": "bert camembert roberta xlm-roberta",
    "chatglm": "glm",
    "deepseek2": "deepseek_v2 kimi_k2 glm4_moe_lite youtu",
    "deepseek2-ocr": "unlimited_ocr_text",
    "deepseek4": "deepseek_ref",
    "deci": "deci",
    "falcon": "RefinedWebModel RefinedWeb",
    "gemma4": "gemma4_unified_text",
    "gemma4-assistant": "gemma4_assistant gemma4_unified_assistant",
    "glm4": "glm4v_text glm_ocr_text",
    "glm4moe": "glm4v_moe_text solar_open",
    "gpt2": "rugpt3xl",
    "granite_swa": "granitemoe_swa",
    "granitehybrid": "bamba",
    "granitemoe": "granitemoeshared",
    "mamba": "falcon_mamba",
    "minimax-01": "minimax_text_01 minimax_m1",
    "minimax-m3": "minimax_m3",
    "nemotron_h": "nemotron_h",
    "olmo2": "olmo3",
    "qwen2vl": "qwen2_5_vl_text qwen2_5_omni_text",
    "qwen3vlmoe": "qwen3_omni_moe_text",
    "t5": "mt5 umt5",
}
# architectures that transformers has no type for, so that a GGUF keeps the name
_OWN = """
    arctic arwkv7 baichuan bailingmoe2 clef codeshell cogvlm deepseek deepseek2-ocr dream eagle3 eurobert
    gemma-embedding gemma4-assistant graniteswitch grovemoe jais jina-bert-v2 jina-bert-v3 kimi-k3 llada llada-moe
    llama-embed maincoder maple modern-bert nanbeige neo-bert nomic-bert nomic-bert-moe pangu-embedded plamo plamo2
    plamo3 plm pockettts qwen3tts refact rnd1 rwkv6qwen2 smallthinker spark2_5 t5encoder talkie wavtokenizer-dec
    """.split()

ARCH_OF: Mapping[str, str] = {
    **{name: name for name in _OWN},
    **{model_type: arch for arch, (model_type, _) in NAMES.items()},
    **{name: arch for arch, names in _ALSO.items() for name in names.split()},
}

# load_arch_hparams of all others leaves swa_type at none, whatever window the file names
WINDOWED = frozenset(
    """
    afmoe cohere2 cohere2moe deepseek4 dots3note exaone-moe exaone4 gemma2 gemma3 gemma3n gemma4 gpt-oss granite_swa
    laguna lfm2 llama4 maple mellum mimo2 muse-glimmer olmo2 plamo3 smallthinker spark2_5 step35
    """.split()
)
FIXED_WINDOW = {"llama4": 8192, "smallthinker": 4096}
FIXED_OWNERS = {"gemma3n": 20}  # n_layer_kv_from_start, whatever the file says

# create_memory returns nothing: encoders and diffusion models
NO_CACHE = frozenset(
    """
    bert clef dream eurobert gemma-embedding gemma4-assistant jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert
    neo-bert nomic-bert nomic-bert-moe rnd1 wavtokenizer-dec
    """.split()
)
# llm_arch_is_recurrent and llm_arch_is_hybrid: a layer without heads is no part of the attention cache
STATEFUL = frozenset(
    """
    arwkv7 bailingmoe3 deepseek4 falcon-h1 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe mamba mamba2
    minimax-01 nemotron_h plamo2 qwen35 qwen35moe qwen3next qwen4exp rwkv6 rwkv6qwen2 rwkv7
    """.split()
)
# filter_attn is "not recurrent", so that layers for drafting get a place in the model's own cache
DRAFTS_INSIDE = frozenset("bailingmoe3 deepseek4 granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe plamo2".split())
# llm_arch_supports_rs_rollback: states are kept once more for each token drafted ahead
ROLLS_BACK = frozenset(
    "bailingmoe3 deepseek4 glm5-next kimi-k3 lfm2 lfm2moe nemotron_h qwen35 qwen35moe qwen4exp".split()
)
EXPANDED = frozenset(("deepseek2-ocr", "minicpm3", "plm"))  # no MLA: heads are cached in full
INDEXED = frozenset("deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 minimax-m3 qwen4exp".split())
NO_VALUE_LENGTH = frozenset(("bailingmoe3", "kimi-linear"))  # conversion/kimi_linear.py, bailingmoe3.py
NO_FLASH = frozenset(("grok",))  # llama_init_from_model: "flash_attn is not compatible with Grok"

# Architectures whose caches were read off real loads of llama.cpp (validate/truth/llamacpp-*.jsonl).
MEASURED = frozenset(
    """
    afmoe baichuan bloom chatglm cohere2 command-r dbrx deci deepseek2 deepseek4 dots1 ernie4_5 exaone4 falcon-h1 gemma
    gemma-embedding gemma2 gemma3 gemma3n gemma4 glm-dsa glm4 glm4moe gpt-oss granite granitehybrid grok hunyuan-moe
    internlm2 jais jamba llama llama4 mamba mamba2 mimo2 minimax-m2 minimax-m3 mistral3 mpt nemotron_h olmo2 olmoe
    openelm phi2 phi3 plamo2 qwen2 qwen35moe qwen3moe rwkv6 rwkv7 seed_oss smallthinker smollm3 step35 t5
    """.split()
)


def arch_of(geometry: Geometry) -> str:
    """The architecture that llama.cpp loads this model as.

    Raises:
        UnsupportedError: its converter knows no such model.
    """
    arch = ARCH_OF.get(geometry.model_type)
    if arch is None:
        hint = "Is there a GGUF of it? `kvsize FILE.gguf` reads what it is. Else try --engine transformers."
        raise UnsupportedError(f"llama.cpp has no architecture for {geometry.model_type}", hint=hint)
    return arch
