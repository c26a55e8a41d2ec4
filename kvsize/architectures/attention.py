"""Models whose layers are all plain attention: full, sliding or chunked."""

from __future__ import annotations

from collections.abc import Sequence

from kvsize.architectures.common import (
    Adapter,
    all_full,
    attention_layer,
    every,
    first_of,
    from_the_end,
    heads,
    hidden_per_head,
    inferred,
    last_full,
    layer_types,
    query_heads,
    share_last,
    span,
    standard,
    with_heads,
)
from kvsize.config import MAX_LAYERS, ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, Layer, Sliding

# Each rule quotes the __post_init__ of its config class, transformers@5.23.0 models/*/configuration_*.py.


def use_sliding_window(cfg: ConfigView, count: int) -> Sequence[str]:
    """Qwen2 and Qwen3: windows only if use_sliding_window, and only from max_window_layers on."""
    if not cfg.flag("use_sliding_window") or cfg.maybe("sliding_window", at_least=0) is None:
        return ["full_attention"] * count
    start = cfg.need("max_window_layers", at_least=0)
    return ["sliding_attention" if index >= start else "full_attention" for index in range(count)]


def windows_from_layer(cfg: ConfigView, count: int) -> Sequence[str]:
    """dots.llm1: windows from max_window_layers on."""
    if cfg.maybe("sliding_window") is None:
        return ["full_attention"] * count
    start = cfg.need("max_window_layers", at_least=0)
    return ["sliding_attention" if index >= start else "full_attention" for index in range(count)]


def qwen2_moe_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Every other layer below max_window_layers, if windows are used at all."""
    used = cfg.flag("use_sliding_window")
    limit = cfg.need("max_window_layers", at_least=0) if used else 0
    return ["sliding_attention" if i % 2 == 0 and i < limit else "full_attention" for i in range(count)]


def qwen3_moe_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """One window for all layers, if use_sliding_window."""
    return inferred(cfg, count) if cfg.flag("use_sliding_window") else ["full_attention"] * count


def smollm3_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """With use_sliding_window, the layers without rotary embedding have the window."""
    if not cfg.flag("use_sliding_window") or cfg.maybe("sliding_window") is None:
        return ["full_attention"] * count
    return ["full_attention" if rope else "sliding_attention" for rope in rope_layers(cfg, count)]


def rope_layers(cfg: ConfigView, count: int) -> Sequence[int]:
    """1 for each layer with rotary embedding: a list in the file, else all but each `no_rope_layer_interval`-th."""
    given = cfg.whole_numbers("no_rope_layers")
    if given:
        if len(given) != count:
            raise ConfigError(f"has {len(given)} entries for {count} layers", where=cfg.where("no_rope_layers"))
        return given
    interval = cfg.need("no_rope_layer_interval")
    return [int((index + 1) % interval != 0) for index in range(count)]


def llama4_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Chunked where the layer has rotary embedding."""
    return ["chunked_attention" if rope else "full_attention" for rope in rope_layers(cfg, count)]


def exaone4_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Each sliding_window_pattern-th layer is full; no window at all without sliding_window."""
    if cfg.maybe("sliding_window") is None:
        return ["full_attention"] * count
    return every(4, "sliding_window_pattern")(cfg, count)


def cohere2_moe_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Two patterns: one for the dense prefix, one for the rest."""
    dense = min(cfg.maybe("first_k_dense_replace", at_least=0) or 0, count)
    prefix, rest = cfg.need("prefix_dense_sliding_window_pattern"), cfg.need("sliding_window_pattern")
    kinds = [(index + 1) % prefix for index in range(dense)] + [(index + 1) % rest for index in range(count - dense)]
    return ["sliding_attention" if kind else "full_attention" for kind in kinds]


def flint_types(_cfg: ConfigView, count: int) -> Sequence[str]:
    """Layers 0, 1, every fourth from 1 on, and the last are full."""
    return ["full_attention" if i < 2 or i % 4 == 1 or i == count - 1 else "sliding_attention" for i in range(count)]


def mimo_types(_cfg: ConfigView, count: int) -> Sequence[str]:
    """The first layer and each sixth are full."""
    return ["full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)]


def ministral_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """One window for all layers."""
    return ["sliding_attention" if cfg.maybe("sliding_window") else "full_attention"] * count


# -- adapters with heads of their own ----------------------------------------------------------------------------------


def gemma3(cfg: ConfigView) -> tuple[Layer, ...]:
    """Gemma 3: with bidirectional attention the window is halved (flash attention's bounds are exclusive)."""
    entry = heads(cfg)
    return tuple(
        Layer(
            (Attention(entry, Sliding(_gemma_window(cfg)) if kind == "sliding_attention" else span(cfg, kind)),),
            kind=kind,
        )
        for kind in layer_types(cfg, every(6, "sliding_window_pattern"))
    )


def _gemma_window(cfg: ConfigView) -> int:
    window = cfg.need("sliding_window")
    bidirectional = cfg.get("use_bidirectional_attention")
    return window // 2 + 1 if bidirectional is True or bidirectional == "all" else window


def gemma3n(cfg: ConfigView) -> tuple[Layer, ...]:
    """Gemma 3n: each fifth layer is full; the last num_kv_shared_layers keep nothing of their own."""
    layers = standard(every(5))(cfg)
    return share_last(layers, _shared_count(cfg, len(layers)))


def _shared_count(cfg: ConfigView, count: int) -> int:
    shared = cfg.maybe("num_kv_shared_layers", at_least=0) or 0
    if shared >= count:
        raise cfg.invalid("num_kv_shared_layers", f"below the {count} layers", shared)
    return shared


def gemma4(cfg: ConfigView) -> tuple[Layer, ...]:
    """Gemma 4: full layers have a wider head, and heads of their own where K is V; the last layers share."""
    local = heads(cfg)
    full = local if cfg.given("per_layer_config") else _gemma4_global(cfg, local)
    layers = tuple(
        Layer((Attention(full if kind == "full_attention" else local, _gemma4_span(cfg, kind)),), kind=kind)
        for kind in last_full(layer_types_of_gemma4)(cfg, cfg.layers())
    )
    return share_last(layers, _shared_count(cfg, len(layers)))


def _gemma4_global(cfg: ConfigView, local: Heads) -> Heads:
    """Heads of full layers as published; a saved config says the same in per_layer_config."""
    wide = cfg.maybe("global_head_dim") or 512
    k_is_v = cfg.flag("attention_k_eq_v") if cfg.declared("attention_k_eq_v") else True
    count = cfg.maybe("num_global_key_value_heads") if k_is_v else None
    return Heads(count or local.count, wide, wide)


def layer_types_of_gemma4(cfg: ConfigView, _count: int) -> Sequence[str]:
    """The file's list, or each sixth layer full."""
    return layer_types(cfg, every(6))


def _gemma4_span(cfg: ConfigView, kind: str) -> Full | Sliding:
    return Sliding(_gemma_window(cfg)) if kind == "sliding_attention" else Full()


def falcon_heads(cfg: ConfigView) -> Heads:
    """Falcon: one head under multi_query; the new architecture's heads are repeated before they are cached."""
    width, count = _embedded_width(cfg), query_heads(cfg)
    if cfg.flag("new_decoder_architecture"):
        return Heads(cfg.maybe("num_kv_heads") or count, width, width, broadcast=count)
    return Heads(1 if cfg.flag("multi_query") else count, width, width)


def bloom_heads(cfg: ConfigView) -> Heads:
    """BLOOM: one KV head for each query head."""
    width = _embedded_width(cfg)
    return Heads(query_heads(cfg), width, width)


def _embedded_width(cfg: ConfigView) -> int:
    """hidden_size // heads, where an old n_embed overrides hidden_size."""
    hidden, count = cfg.maybe("n_embed") or cfg.need("hidden_size"), query_heads(cfg)
    if hidden < count:
        raise ConfigError(f"num_attention_heads {count} exceeds the hidden size {hidden}", where=cfg.path)
    return hidden // count


def gpt_bigcode_heads(cfg: ConfigView) -> Heads:
    """StarCoder: one head under multi_query."""
    width = hidden_per_head(cfg)
    return Heads(1 if cfg.flag("multi_query") else query_heads(cfg), width, width)


def dbrx_heads(cfg: ConfigView) -> Heads:
    """DBRX: kv_n_heads lies in attn_config; its class default is 1."""
    attention = cfg.child("attn_config")
    count = (attention.maybe("kv_n_heads") if attention else None) or 1
    width = hidden_per_head(cfg)
    return Heads(count, width, width)


def plain_mha(cfg: ConfigView) -> Heads:
    """One KV head for each query head, hidden_size // heads wide, whatever else the file says."""
    width = hidden_per_head(cfg)
    return Heads(query_heads(cfg), width, width)


def jetmoe_heads(cfg: ConfigView) -> Heads:
    """JetMoE: num_key_value_heads heads of kv_channels; only queries are multiplied by the experts."""
    width = cfg.need("head_dim")  # which the class maps to kv_channels
    return Heads(cfg.need("num_key_value_heads"), width, width)


def mimo_v2(cfg: ConfigView) -> tuple[Layer, ...]:
    """MiMo-V2: K wider than V; sliding layers have heads of their own."""
    k_dim, v_dim = cfg.need("head_dim"), cfg.need("v_head_dim")
    full = Heads(cfg.need("num_key_value_heads"), k_dim, v_dim)
    swa = Heads(
        cfg.maybe("swa_num_key_value_heads") or 2 * full.count,  # modeling_mimo_v2_flash.py: twice as many
        cfg.maybe("swa_head_dim") or k_dim,
        cfg.maybe("swa_v_head_dim") or v_dim,
    )
    size = cfg.maybe("sliding_window_size")
    window = cfg.need("sliding_window") if size is None else size + 1
    return tuple(
        Layer((Attention(swa, Sliding(window)),), kind=kind)
        if kind == "sliding_attention"
        else attention_layer(cfg, kind, full)
        for kind in layer_types(cfg, mimo_types)
    )


def step3p5(cfg: ConfigView) -> tuple[Layer, ...]:
    """Step 3.5 and 3.7: the file's lists may run on over the MTP layers, which have a cache of their own."""
    count = cfg.layers()
    given = cfg.strings("layer_types")
    kinds = given[:count] if given and len(given) > count else layer_types(cfg, all_full)
    return tuple(attention_layer(cfg, kind) for kind in kinds)


def modernbert_decoder(cfg: ConfigView) -> tuple[Layer, ...]:
    """ModernBERT decoder: the window is half of local_attention, if the file does not name one."""
    entry = plain_mha(cfg)
    window = cfg.maybe("sliding_window") or cfg.need("local_attention", at_least=2) // 2  # a given one is set last
    kinds = layer_types(cfg, first_of(cfg.maybe("global_attn_every_n_layers") or 3))
    return tuple(
        Layer((Attention(entry, Sliding(window) if k == "sliding_attention" else Full()),), kind=k) for k in kinds
    )


def hrm_text(cfg: ConfigView) -> tuple[Layer, ...]:
    """HRM: each stack runs H_cycles x (L_cycles + 1) times, with a cache for each pass."""
    stack = cfg.maybe("num_layers_per_stack")
    count = cfg.layers() if stack else cfg.layers() * cfg.need("H_cycles") * (cfg.need("L_cycles") + 1)
    if count > MAX_LAYERS:
        raise cfg.invalid("H_cycles", "a plausible number of cycles", cfg.get("H_cycles"))
    return tuple(attention_layer(cfg, kind) for kind in inferred(cfg, count))


def no_cache(cfg: ConfigView) -> tuple[Layer, ...]:
    """Models that recompute everything at each step (GPT-1, XLM): layers, but nothing kept."""
    return (Layer(kind="no_cache"),) * cfg.layers()


def shares_everything(_cfg: ConfigView) -> tuple[Layer, ...]:
    """Assistants that read another model's cache: nothing of their own."""
    return ()


# Assistants whose own text_config describes the layers they read, not layers that they cache.
CACHELESS = ("gemma4_assistant", "gemma4_unified_assistant")

DENSE = standard()
BERT_LIKE = with_heads(plain_mha)

ATTENTION: dict[str, Adapter] = {
    # one window or none for all layers
    **dict.fromkeys(
        """
        apertus arcee aria_text biogpt bitnet chameleon codegen cohere cosmos3_edge_text ctrl deepseek_ocr2_text
        diffllama doge emu3_text_model ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text evolla flex_olmo gemma git glm
        glm4 glm4_moe glm4v_text glm4v_moe_text glm_ocr_text gpt-sw3 gpt2 gptj granite granite4_vision_text
        granite_docling_text granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text
        hy_v3 hyperclovax idefics internlm3 iquestcoder jais2 kyutai_speech_to_text llama minimax_m2 ministral3
        mistral mixtral molmo2_text moshi mpt musicgen_decoder musicgen_melody_decoder nanochat nemotron olmo
        olmo2 olmoe opt paddleocr_vl_text persimmon phi phi3 phi4_multimodal phimoe qwen3_omni_moe_text
        qwen3_vl_text qwen3_vl_moe_text seed_oss solar_open stablelm starcoder2 voxtral_realtime_text xglm
        kosmos_2_text_model
        """.split(),
        DENSE,
    ),
    # BERT-like decoders and their kin
    **dict.fromkeys(
        """
        bert bert-generation big_bird blip_text_model camembert data2vec-text electra ernie gpt_neo gpt_neox
        gpt_neox_japanese kosmos_2_5_text_model megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer
        xlm-roberta xlm-roberta-xl xmod
        """.split(),
        BERT_LIKE,
    ),
    "bloom": with_heads(bloom_heads),
    "falcon": with_heads(falcon_heads),
    "gpt_bigcode": with_heads(gpt_bigcode_heads),
    "dbrx": with_heads(dbrx_heads),
    "jetmoe": with_heads(jetmoe_heads),
    # windows by layer
    "afmoe": standard(every(4, "global_attn_every_n_layers")),
    "beam": standard(last_full(every(6))),
    "cohere2": standard(every(4, "sliding_window_pattern")),
    "cohere2_moe": standard(cohere2_moe_types),
    "cohere_compass_text": standard(all_full),
    "cwm": standard(first_of(4)),
    "diffusion_gemma_text": gemma4,
    "dots1": standard(windows_from_layer),
    "exaone4": standard(exaone4_types),
    "exaone_moe": standard(exaone4_types),
    "flint": standard(flint_types),
    "gemma2": standard(every(2)),
    "gemma3_text": gemma3,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    **dict.fromkeys(CACHELESS, shares_everything),
    "gpt_oss": standard(every(2)),
    "granite_swa": standard(first_of(4)),
    "granitemoe_swa": standard(first_of(4)),
    "kolibri1": standard(every(5)),
    "laguna": standard(all_full),
    "llama4_text": standard(llama4_types),
    "mellum": standard(all_full),
    "mimo_v2_flash": mimo_v2,
    "ministral": standard(ministral_types),
    "modernbert-decoder": modernbert_decoder,
    "muse_glimmer_text": standard(from_the_end(4)),
    "muse_spark_text": standard(from_the_end(4)),
    "olmo3": standard(every(4)),
    "qwen2": standard(use_sliding_window),
    "qwen2_5_omni_text": standard(use_sliding_window),
    "qwen2_5_vl_text": standard(use_sliding_window),
    "qwen2_vl_text": standard(use_sliding_window),
    "qwen2_moe": standard(qwen2_moe_types),
    "qwen3": standard(use_sliding_window),
    "qwen3_moe": standard(qwen3_moe_types),
    "smollm3": standard(smollm3_types),
    "step3p5": step3p5,
    "vaultgemma": standard(every(2)),
    # no per-token cache, or one for each pass
    "hrm_text": hrm_text,
    "openai-gpt": no_cache,
    "xlm": no_cache,
}
