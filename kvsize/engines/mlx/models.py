"""Which model modules mlx-lm has, and which cache each of their layers gets.

mlx-lm@0.32.2 mlx_lm/models/*.py. A module with a `make_cache` of its own ignores --max-kv-size; the others get plain
caches for every layer, whatever windows the config names.
"""

from __future__ import annotations

from kvsize.geometry import Geometry

# With make_cache, windows rotating.
ROTATING = frozenset(
    """
    afmoe cohere2 exaone4 exaone_moe gemma3_text gemma3n_text gemma4_text gpt_oss laguna mellum mimo_v2_flash
    muse_glimmer_text muse_spark_text olmo3 recurrent_gemma step3p5
    """.split()
)
# The same, but only where the file lists layer_types; a lone sliding_window is ignored.
ROTATING_IF_LISTED = frozenset({"llama", "mistral", "ministral3", "iquestcoder", "xverse"})
CHUNKED = frozenset({"llama4_text"})

# With make_cache, without windows.
OWN = frozenset(
    """
    deepseek_v32 falcon_h1 falcon_mamba glm_moe_dsa granitemoehybrid jamba kimi_linear lfm2 lfm2_moe longcat_flash mamba
    mamba2 nemotron-nas nemotron_h olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next
    """.split()
)

# Without: KVCache, or RotatingKVCache under --max-kv-size.
PLAIN = frozenset(
    """
    apertus bitnet cohere dbrx deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone gemma gemma2 glm glm4 glm4_moe
    glm4_moe_lite gpt2 gpt_bigcode gpt_neox gptj granite granitemoe helium hunyuan hunyuan_v1_dense internlm2 internlm3
    kimi_k2 mimo minicpm minicpm3 minimax_m2 mistral4 mixtral nanochat nemotron olmo olmo2 olmoe openelm phi phi-msft
    phi3 phi3small phimoe qwen qwen2 qwen2_moe qwen2_vl_text qwen2_5_vl_text qwen3 qwen3_moe qwen3_vl_text
    qwen3_vl_moe_text seed_oss smollm3 solar_open stablelm starcoder2
    """.split()
)

KNOWN = ROTATING | ROTATING_IF_LISTED | CHUNKED | OWN | PLAIN

# Modules whose caches were weighed (validate/truth); the others follow the same classes unseen.
WEIGHED = frozenset(
    """
    cohere2 deepseek_v2 deepseek_v3 deepseek_v32 exaone4 falcon_h1 gemma2 gemma3_text gemma3n_text gemma4_text
    glm4_moe_lite gpt2 gpt_oss granitemoehybrid jamba lfm2 lfm2_moe llama llama4_text mamba mamba2 mimo_v2_flash
    minicpm3 ministral3 mistral nemotron_h olmo3 olmo_hybrid phi3 qwen2 qwen3 qwen3_5_text qwen3_next
    recurrent_gemma smollm3 starcoder2
    """.split()
)

# MLA modules that decompress before they cache.
EXPANDED = frozenset({"deepseek_v2", "minicpm3"})
# Modules that wrap a layer's caches in a CacheList, which quantisation passes over.
LISTED = frozenset({"deepseek_v32", "falcon_h1", "glm_moe_dsa", "longcat_flash"})
# Modules whose attention reads keys and values itself, and fails on quantised ones.
READS_PLAIN = frozenset({"gemma2", "olmo"})
# Every layer runs its indexer here, also those that share one in the reference code.
INDEXED = frozenset({"deepseek_v32", "glm_moe_dsa"})


def makes_its_own_caches(geometry: Geometry) -> bool:
    """Whether the module has a make_cache, so that --max-kv-size does nothing."""
    return geometry.model_type not in PLAIN


def rotates(geometry: Geometry) -> bool:
    """Whether layers with a window get a rotating cache."""
    listed = any(read.path.endswith(".layer_types") for read in geometry.reads)
    return geometry.model_type in ROTATING or (geometry.model_type in ROTATING_IF_LISTED and listed)
