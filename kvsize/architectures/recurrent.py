"""Models with states that do not grow: Mamba, delta rules, short convolutions, RWKV; pure and hybrid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsize.architectures.common import (
    Adapter,
    LayerTypes,
    attention_layer,
    every,
    head_dim,
    heads,
    hidden_per_head,
    kv_heads,
    layer_types,
    query_heads,
    span,
)
from kvsize.architectures.latent import indexed_layer, indexer_layers, latent
from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, IndexKey, Latent, Layer, Recurrent, Sliding, State, Store

# A conv state's shape is (channels, kernel): transformers keeps all `kernel` columns, most engines kernel - 1.
# Recurrent states are float32 in the reference code unless said otherwise (`last_state.to(torch.float32)` and kin).

MakeStates = Callable[[ConfigView], Recurrent]


def mamba1(cfg: ConfigView, expand: str, kernel: str, state: str) -> Recurrent:
    """Mamba: conv [d_inner, d_conv], ssm [d_inner, d_state]."""
    return _mamba1_states(_scaled(cfg, expand, cfg.need("hidden_size")), cfg.need(kernel), cfg.need(state))


def _mamba1_states(inner: int, kernel: int, state: int) -> Recurrent:
    return Recurrent("mamba", (State("conv", (inner, kernel)), State("recurrent", (inner, state), "float32")))


def _scaled(cfg: ConfigView, key: str, size: int) -> int:
    factor = cfg.number(key)
    if factor is None:
        raise cfg.missing(key)
    if factor <= 0:
        raise cfg.invalid(key, "positive", factor)
    return int(factor * size)


def mamba2(heads_: int, head: int, state: int, groups: int, kernel: int) -> Recurrent:
    """Mamba-2: conv [d_inner + 2 * groups * d_state, d_conv], ssm [heads, head_dim, d_state]."""
    conv = State("conv", (heads_ * head + 2 * groups * state, kernel))
    return Recurrent("mamba2", (conv, State("recurrent", (heads_, head, state), "float32")), groups=groups)


def mamba(cfg: ConfigView) -> tuple[Layer, ...]:
    """Mamba and Falcon-Mamba: states only; an intermediate_size in the file is set after the class's own."""
    inner = cfg.maybe("intermediate_size") or _scaled(cfg, "expand", cfg.need("hidden_size"))
    states = _mamba1_states(inner, cfg.need("conv_kernel"), cfg.need("state_size"))
    return (Layer((states,), kind="linear_attention"),) * cfg.layers()


def mamba2_only(cfg: ConfigView) -> tuple[Layer, ...]:
    """Mamba-2: states only."""
    inner = _scaled(cfg, "expand", cfg.need("hidden_size"))
    count, width = cfg.need("num_heads"), cfg.need("head_dim")
    if count * width != inner:
        raise ConfigError(f"num_heads x head_dim {count * width} is not expand x hidden_size {inner}", where=cfg.path)
    states = mamba2(count, width, cfg.need("state_size"), cfg.need("n_groups"), cfg.need("conv_kernel"))
    return (Layer((states,), kind="linear_attention"),) * cfg.layers()


def bamba_states(cfg: ConfigView) -> Recurrent:
    """Bamba, Granite-4 hybrid: heads by count, width from mamba_d_head or what is left of expand x hidden_size."""
    count = cfg.need("mamba_n_heads")
    width = _head_or_auto(cfg, "mamba_d_head", _scaled(cfg, "mamba_expand", cfg.need("hidden_size")), count)
    return mamba2(count, width, cfg.need("mamba_d_state"), cfg.need("mamba_n_groups"), cfg.need("mamba_d_conv"))


def _head_or_auto(cfg: ConfigView, key: str, inner: int, count: int) -> int:
    if cfg.get(key) != "auto":
        return cfg.need(key)
    if inner < count:
        raise ConfigError(f"{inner} channels are too few for {count} heads", where=cfg.path)
    return inner // count


def falcon_h1(cfg: ConfigView) -> tuple[Layer, ...]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    inner = cfg.maybe("mamba_d_ssm") or _scaled(cfg, "mamba_expand", cfg.need("hidden_size"))
    count = cfg.need("mamba_n_heads")
    width = _head_or_auto(cfg, "mamba_d_head", inner, count)
    kernel, state, groups = cfg.need("mamba_d_conv"), cfg.need("mamba_d_state"), cfg.need("mamba_n_groups")
    conv = State("conv", (inner + 2 * groups * state, kernel))
    states = Recurrent("mamba2", (conv, State("recurrent", (count, width, state), "float32")), groups=groups)
    return (Layer((Attention(heads(cfg)), states), kind="hybrid"),) * cfg.layers()


NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def nemotron_h(cfg: ConfigView) -> tuple[Layer, ...]:
    """Nemotron-H: one letter a layer. M: Mamba-2, *: attention, - and E: nothing kept."""
    count = cfg.need("mamba_num_heads")
    states = mamba2(
        count,
        cfg.need("mamba_head_dim"),
        cfg.need("ssm_state_size"),
        cfg.maybe("mamba_n_groups") or cfg.need("n_groups"),
        cfg.maybe("mamba_d_conv") or cfg.need("conv_kernel"),
    )
    attention = Attention(heads(cfg))
    stores: dict[str, tuple[Store, ...]] = {
        "linear_attention": (states,),
        "full_attention": (attention,),
        "mlp": (),
        "moe": (),
    }
    layers = []
    for kind in _nemotron_kinds(cfg):
        if kind not in stores:
            raise ConfigError(f"unknown layer type {kind!r}", where=cfg.where("layers_block_type"))
        layers.append(Layer(stores[kind], kind=kind))
    return tuple(layers)


def _nemotron_kinds(cfg: ConfigView) -> Sequence[str]:
    listed = cfg.strings("layer_types")
    if listed:
        return [{"mamba": "linear_attention", "attention": "full_attention"}.get(kind, kind) for kind in listed]
    pattern = cfg.text("hybrid_override_pattern")
    if pattern is None:
        return ["linear_attention", "moe", "full_attention", "mlp"]  # the class's own default
    unknown = set(pattern) - set(NEMOTRON_LETTERS)
    if unknown or not pattern or len(pattern) > 4096:
        raise cfg.invalid("hybrid_override_pattern", "a string of " + " ".join(NEMOTRON_LETTERS), pattern)
    return [NEMOTRON_LETTERS[letter] for letter in pattern]


def jamba_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Attention each attn_layer_period-th layer from attn_layer_offset on."""
    period, offset = cfg.need("attn_layer_period"), cfg.need("attn_layer_offset", at_least=0)
    return ["full_attention" if index % period == offset else "linear_attention" for index in range(count)]


def bamba_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Attention at attn_layer_indices."""
    indices = set(cfg.whole_numbers("attn_layer_indices") or ())
    return ["full_attention" if index in indices else "linear_attention" for index in range(count)]


def all_linear(_cfg: ConfigView, count: int) -> Sequence[str]:
    """Every layer is recurrent."""
    return ["linear_attention"] * count


def hybrid(
    states: MakeStates, default: LayerTypes, attention: Callable[[ConfigView], Heads | Latent] = heads
) -> Adapter:
    """Recurrent layers and full attention layers, by layer type."""

    def adapt(cfg: ConfigView) -> tuple[Layer, ...]:
        kinds = layer_types(cfg, default)
        recurrent = Layer((states(cfg),), kind="linear_attention") if "linear_attention" in kinds else Layer()
        entry = attention(cfg) if "full_attention" in kinds else None
        return tuple(recurrent if k == "linear_attention" else _attention(cfg, k, entry) for k in kinds)

    return adapt


def _attention(cfg: ConfigView, kind: str, entry: Heads | Latent | None) -> Layer:
    if kind in ("moe", "mlp"):
        return Layer(kind=kind)
    if entry is None:
        raise ConfigError(f"{cfg.model_type} has no rule for layer type {kind!r}", where=cfg.where("layer_types"))
    return Layer((Attention(entry, span(cfg, kind)),), kind=kind)


# -- Zamba -------------------------------------------------------------------------------------------------------------


def zamba(cfg: ConfigView) -> tuple[Layer, ...]:
    """Zamba: Mamba in every layer; the hybrid ones also attend, with heads of twice hidden_size // heads."""
    count = cfg.layers()
    mixers = cfg.need("n_mamba_heads")
    inner = _scaled(cfg, "mamba_expand", cfg.need("hidden_size"))
    conv = State("conv", (inner, cfg.need("mamba_d_conv")))
    states = Recurrent(
        "mamba", (conv, State("recurrent", (mixers, inner // mixers, cfg.need("mamba_d_state")), "float32"))
    )
    width = cfg.maybe("attention_head_dim") or 2 * hidden_per_head(cfg)
    return _zamba_layers(cfg, states, Heads(kv_heads(cfg), width, width), _zamba_kinds(cfg, count))


def _zamba_kinds(cfg: ConfigView, count: int) -> Sequence[str]:
    listed = cfg.strings("layers_block_type")
    if listed:
        return listed
    period, offset = cfg.need("attn_layer_period"), cfg.need("attn_layer_offset", at_least=0)
    tail = ["hybrid" if index % period == offset else "linear_attention" for index in range(count - 3)]
    return ["linear_attention", "linear_attention", "hybrid", *tail]


def zamba2(cfg: ConfigView) -> tuple[Layer, ...]:
    """Zamba2: the same with Mamba-2."""
    inner = _scaled(cfg, "mamba_expand", cfg.need("hidden_size"))
    mixers = cfg.need("n_mamba_heads")
    states = mamba2(
        mixers, inner // mixers, cfg.need("mamba_d_state"), cfg.need("mamba_ngroups"), cfg.need("mamba_d_conv")
    )
    width = 2 * cfg.need("hidden_size") // query_heads(cfg)
    default = ["linear_attention", *(["linear_attention"] * 5 + ["hybrid"]) * 7, *["linear_attention"] * 4, "hybrid"]
    default += ["linear_attention"] * 3 + ["hybrid"] + ["linear_attention"] * 2
    kinds = cfg.strings("layers_block_type") or default
    return _zamba_layers(cfg, states, Heads(kv_heads(cfg), width, width), kinds)


def _zamba_layers(cfg: ConfigView, states: Recurrent, entry: Heads, kinds: Sequence[str]) -> tuple[Layer, ...]:
    count = cfg.layers()
    if len(kinds) != count:
        raise ConfigError(f"has {len(kinds)} entries for {count} layers", where=cfg.where("layers_block_type"))
    both = Layer((Attention(entry), states), kind="hybrid")
    linear = Layer((states,), kind="linear_attention")
    return tuple(both if kind == "hybrid" else linear for kind in kinds)


# -- delta rules and short convolutions --------------------------------------------------------------------------------


def gated_delta(cfg: ConfigView) -> Recurrent:
    """Gated DeltaNet: conv over q, k and v together; one [d_k, d_v] matrix a value head."""
    k_heads, v_heads = cfg.need("linear_num_key_heads"), cfg.need("linear_num_value_heads")
    return _delta_states(cfg, k_heads, v_heads, cfg.need("linear_key_head_dim"), cfg.need("linear_value_head_dim"))


def _delta_states(cfg: ConfigView, k_heads: int, v_heads: int, k_dim: int, v_dim: int) -> Recurrent:
    conv = State("conv", (2 * k_heads * k_dim + v_heads * v_dim, cfg.need("linear_conv_kernel_dim")))
    return Recurrent("gated_delta", (conv, State("recurrent", (v_heads, k_dim, v_dim), "float32")))


def olmo_hybrid_states(cfg: ConfigView) -> Recurrent:
    """OLMo hybrid: shapes follow from hidden_size where they are not given."""
    k_heads = cfg.maybe("linear_num_key_heads") or query_heads(cfg)
    v_heads = cfg.maybe("linear_num_value_heads") or query_heads(cfg)
    k_dim = cfg.maybe("linear_key_head_dim") or int(0.75 * cfg.need("hidden_size") / k_heads)
    return _delta_states(cfg, k_heads, v_heads, k_dim, cfg.maybe("linear_value_head_dim") or 2 * k_dim)


def olmo_hybrid_types(_cfg: ConfigView, count: int) -> Sequence[str]:
    """Each fourth layer is full; the last one if there is no fourth."""
    kinds = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(count)]
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]


def kda(count: int, width: int, kernel: int) -> Recurrent:
    """Kimi Delta Attention: conv over q, k and v; one [d, d] matrix a head."""
    conv = State("conv", (3 * count * width, kernel))
    return Recurrent("kda", (conv, State("recurrent", (count, width, width), "float32")))


def _nested_kda(cfg: ConfigView, nested: ConfigView | None) -> Recurrent:
    """KDA's sizes: as published in linear_attn_config, or under the class's own names."""

    def pick(inner: str, outer: str) -> int:
        return (nested.maybe(inner) if nested else None) or cfg.need(outer)

    return kda(
        pick("num_heads", "linear_num_heads"),
        pick("head_dim", "linear_head_dim"),
        pick("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )


def kimi_linear(cfg: ConfigView) -> tuple[Layer, ...]:
    """Kimi Linear: KDA layers between MLA layers, listed from 1 in linear_attn_config."""
    nested = cfg.child("linear_attn_config")
    states = _nested_kda(cfg, nested)
    full = Layer((Attention(latent(cfg)),), kind="full_attention")
    linear = Layer((states,), kind="linear_attention")
    return tuple(full if kind == "full_attention" else linear for kind in _kimi_kinds(cfg, nested))


def _kimi_kinds(cfg: ConfigView, nested: ConfigView | None) -> Sequence[str]:
    count = cfg.layers()
    listed = nested.whole_numbers("full_attn_layers") if nested and cfg.get("layer_types") is None else None
    if listed is not None:
        full = set(listed)
        return ["full_attention" if index + 1 in full else "linear_attention" for index in range(count)]
    return layer_types(
        cfg, lambda _c, n: ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(n)]
    )


def bailing_hybrid(cfg: ConfigView) -> tuple[Layer, ...]:
    """Ling hybrid: KDA in groups of layer_group_size, MLA closing each group."""
    # A saved config names KDA's sizes, and has overwritten head_dim.
    heads = cfg.maybe("linear_num_heads") or query_heads(cfg)
    width = cfg.maybe("linear_head_dim") or cfg.need("head_dim")
    states = kda(heads, width, cfg.maybe("linear_conv_kernel_dim") or cfg.need("short_conv_kernel_size"))
    return hybrid(lambda _cfg: states, every(cfg.need("layer_group_size"), kind="linear_attention"), latent)(cfg)


def glm5_next(cfg: ConfigView) -> tuple[Layer, ...]:
    """GLM-5 next: KDA and indexed MLA; an index entry packs key, gate and a validity bit."""
    nested = cfg.child("linear_attn_config")
    states = _nested_kda(cfg, nested)
    kinds = layer_types(
        cfg, lambda _c, n: ["linear_attention" if i % 4 != 3 else "indexed_attention" for i in range(n)]
    )
    own = indexer_layers(cfg, len(kinds))
    entry, packed = latent(cfg), 2 * cfg.need("index_head_dim") + 1
    linear = Layer((states,), kind="linear_attention")
    return tuple(
        linear if kind == "linear_attention" else indexed_layer(entry, packed if has else None)
        for kind, has in zip(kinds, own, strict=True)
    )


def short_conv(channels: int, kernel: int, *, format: str | None = None) -> State:  # noqa: A002 - the field's name
    """The state of one causal convolution."""
    return State("conv", (channels, kernel), format)


def lfm2_states(cfg: ConfigView) -> Recurrent:
    """LFM2: one short convolution over hidden_size channels."""
    return Recurrent("short_conv", (short_conv(cfg.need("hidden_size"), cfg.need("conv_L_cache")),))


def lfm2_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Attention at full_attn_idxs (all layers where they are not given)."""
    full = cfg.whole_numbers("full_attn_idxs")
    return ["full_attention" if full is None or index in full else "conv" for index in range(count)]


def lfm3_types(_cfg: ConfigView, count: int) -> Sequence[str]:
    """Conv, conv, full, conv, then a window in every group of four."""
    return [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv" for i in range(count)
    ]


def lfm2(default: LayerTypes) -> Adapter:
    """LFM2 and LFM3: convolutions and attention."""

    def adapt(cfg: ConfigView) -> tuple[Layer, ...]:
        conv = Layer((lfm2_states(cfg),), kind="conv")
        return tuple(conv if kind == "conv" else attention_layer(cfg, kind) for kind in layer_types(cfg, default))

    return adapt


def inkling(default: LayerTypes) -> Adapter:
    """Inkling: four float32 short convolutions beside the attention of every layer (K, V, and two over hidden_size)."""

    def adapt(cfg: ConfigView) -> tuple[Layer, ...]:
        wide = cfg.need("hidden_size")
        full = heads(cfg)
        local_dim = cfg.need("swa_head_dim")
        local = Heads(cfg.need("swa_num_key_value_heads"), local_dim, local_dim)
        kernel = cfg.need_any("sconv_kernel_size", "conv_kernel_size")  # two names of one field
        layers = []
        for kind in layer_types(cfg, default):
            entry = local if kind == "hybrid_sliding" else full
            channels = entry.count * entry.k_dim
            states = tuple(short_conv(size, kernel, format="float32") for size in (channels, channels, wide, wide))
            tokens = Sliding(cfg.need("sliding_window")) if kind == "hybrid_sliding" else Full()
            layers.append(Layer((Attention(entry, tokens), Recurrent("short_conv", states)), kind=kind))
        return tuple(layers)

    return adapt


def inkling_types(cfg: ConfigView, count: int) -> Sequence[str]:
    """Windows at local_layer_ids, or in all but each sixth layer."""
    local = cfg.whole_numbers("local_layer_ids") if cfg.declared("local_layer_ids") else None
    windows = {index for index in range(count) if (index + 1) % 6} if local is None else set(local)
    return ["hybrid_sliding" if index in windows else "hybrid" for index in range(count)]


def zaya(cfg: ConfigView) -> tuple[Layer, ...]:
    """Zaya: attention whose q, k pass a short convolution, and a delayed V kept in the activations' format."""
    entry = heads(cfg)
    kernel = (cfg.maybe("cca_time0") or 2) + (cfg.maybe("cca_time1") or 2) - 2
    states = Recurrent(
        "short_conv",
        (
            State("conv", ((query_heads(cfg) + entry.count) * entry.k_dim, kernel)),
            State("recurrent", (entry.count * entry.k_dim // 2,)),
        ),
    )
    return tuple(
        Layer(
            (Attention(entry, Sliding(cfg.need("sliding_window")) if k == "hybrid_sliding" else Full()), states), kind=k
        )
        for k in layer_types(cfg, lambda _c, n: ["hybrid"] * n)
    )


def minimax(cfg: ConfigView) -> tuple[Layer, ...]:
    """MiniMax-01 and M1: lightning attention, one [d, d] matrix a head, in the activations' format."""
    count, width = query_heads(cfg), head_dim(cfg)
    states = Recurrent("lightning", (State("recurrent", (count, width, width)),))
    return hybrid(lambda _cfg: states, _minimax_types)(cfg)


def _minimax_types(cfg: ConfigView, count: int) -> Sequence[str]:
    listed = cfg.whole_numbers("attn_type_list") if cfg.model_type != "minimax" else None  # a remote-code key
    if listed:
        if len(listed) != count:
            raise ConfigError(f"has {len(listed)} entries for {count} layers", where=cfg.where("attn_type_list"))
        return ["full_attention" if kind else "linear_attention" for kind in listed]
    return ["linear_attention" if index % 2 else "full_attention" for index in range(count)]


def qwen4_exp(cfg: ConfigView) -> tuple[Layer, ...]:
    """Qwen4 exp: gated delta and indexed layers; n-gram embeddings with states of their own; positions kept once."""
    kinds = layer_types(cfg, every(4, "full_attention_interval", kind="linear_attention", full="indexed_attention"))
    ple = set(cfg.whole_numbers("ple_layer_ids") or ())
    delta = gated_delta(cfg)
    extra = _ple_states(cfg) if ple else ()
    first = next((index for index, kind in enumerate(kinds) if kind != "linear_attention"), None)
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        if kind == "linear_attention":
            states = (*delta.states, *extra) if index + 1 in ple else delta.states
            layers.append(Layer((Recurrent("gated_delta", states),), kind=kind))
        else:
            layers.append(_qwen4_indexed(cfg, first=index == first))
    return tuple(layers)


def _ple_states(cfg: ConfigView) -> tuple[State, ...]:
    size = cfg.maybe("ngram_size") or 3
    wide = cfg.need("hidden_size") * (cfg.maybe("hc_count") or 4)
    kernel = (cfg.need("ple_conv_kernel_size") - 1) * size
    return (short_conv(wide, kernel), State("conv", (size - 1,), "int64"))


def _qwen4_indexed(cfg: ConfigView, first: bool) -> Layer:
    stores = [Attention(heads(cfg)), Attention(IndexKey(cfg.maybe("indexer_head_dim") or head_dim(cfg)))]
    if first:
        stores.append(Attention(IndexKey(3), format="int64", expanded_view=True))
    return Layer(tuple(stores), kind="indexed_attention")


# -- outside the cache object, or no attention at all ------------------------------------------------------------------


def recurrent_gemma(cfg: ConfigView) -> tuple[Layer, ...]:
    """RecurrentGemma: RG-LRU states live in the modules, not in the cache; attention layers have a window."""
    width = cfg.maybe("lru_width") or cfg.need("hidden_size")
    kernel = cfg.maybe("conv1d_width") or 4
    states = (State("conv", (width, kernel)), State("recurrent", (width,), "float32"))
    linear = Layer((Recurrent("rg_lru", states, rolling=True),), kind="linear_attention")
    side = hidden_per_head(cfg)
    sliding = Layer(
        (Attention(Heads(kv_heads(cfg), side, side), Sliding(cfg.need("sliding_window"))),), kind="sliding_attention"
    )
    blocks = cfg.strings("block_types")
    if not blocks or set(blocks) - {"recurrent", "attention"}:
        raise cfg.invalid("block_types", "a list of recurrent and attention", cfg.get("block_types"))
    return tuple(linear if blocks[index % len(blocks)] == "recurrent" else sliding for index in range(cfg.layers()))


def rwkv4(cfg: ConfigView) -> tuple[Layer, ...]:
    """RWKV-4: two shifted vectors in the activations' format, three float32 accumulators."""
    hidden = cfg.need("hidden_size")
    attention = cfg.maybe("attention_hidden_size") or hidden
    states = (State("conv", (hidden, 1)),) * 2 + (State("recurrent", (attention,), "float32"),) * 3
    return (Layer((Recurrent("rwkv", states),), kind="linear_attention"),) * cfg.layers()


def xlstm(cfg: ConfigView) -> tuple[Layer, ...]:
    """xLSTM: a [d_qk, d_v] matrix, a normaliser and a stabiliser a head, in the activations' format."""
    count = cfg.need("num_heads")
    q_dim, v_dim = (_rounded(cfg, key) // count for key in ("qk_dim_factor", "v_dim_factor"))
    states = (
        State("recurrent", (count, q_dim, v_dim)),
        State("recurrent", (count, q_dim)),
        State("recurrent", (count, 1)),
    )
    total = cfg.layers() if cfg.get("num_hidden_layers") is not None else cfg.layers("num_blocks")
    return (Layer((Recurrent("mlstm", states),), kind="linear_attention"),) * total


def _rounded(cfg: ConfigView, key: str) -> int:
    size = _scaled(cfg, key, cfg.need("hidden_size"))
    return -(-size // 64) * 64


RECURRENT: dict[str, Adapter] = {
    "mamba": mamba,
    "falcon_mamba": mamba,
    "mamba2": mamba2_only,
    "jamba": hybrid(lambda cfg: mamba1(cfg, "mamba_expand", "mamba_d_conv", "mamba_d_state"), jamba_types),
    "bamba": hybrid(bamba_states, bamba_types),
    "granitemoehybrid": hybrid(bamba_states, all_linear),
    "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "zamba": zamba,
    "zamba2": zamba2,
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        hybrid(gated_delta, every(4, "full_attention_interval", kind="linear_attention")),
    ),
    "olmo_hybrid": hybrid(olmo_hybrid_states, olmo_hybrid_types),
    "qwen4_exp_text": qwen4_exp,
    "kimi_linear": kimi_linear,
    "bailing_hybrid": bailing_hybrid,
    "glm5_next_text": glm5_next,
    "lfm2": lfm2(lfm2_types),
    "lfm2_moe": lfm2(lfm2_types),
    "lfm3": lfm2(lfm3_types),
    "inkling_text": inkling(inkling_types),
    "inkling2_text": inkling(inkling_types),
    "zaya": zaya,
    "minimax": minimax,
    "recurrent_gemma": recurrent_gemma,
    "rwkv": rwkv4,
    "xlstm": xlstm,
}
