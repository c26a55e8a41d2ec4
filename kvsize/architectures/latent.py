"""Models with multi-head latent attention (MLA), with or without a sparse-attention indexer (DSA)."""

from __future__ import annotations

from collections.abc import Sequence

from kvsize.architectures.common import Adapter, attention_layer, inferred, layer_types, query_heads
from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, IndexKey, Latent, Layer, Sliding


def latent(cfg: ConfigView) -> Latent:
    """The latent of one layer, and the heads that it stands for."""
    nope = cfg.need("qk_nope_head_dim")
    rope = cfg.need("qk_rope_head_dim", at_least=0)
    value = cfg.need("v_head_dim")
    return Latent(cfg.need("kv_lora_rank"), rope, expanded=Heads(query_heads(cfg), nope + rope, value))


def mla(cfg: ConfigView) -> tuple[Layer, ...]:
    """One latent a token in every layer."""
    return _latents(cfg, latent(cfg))


def _latents(cfg: ConfigView, entry: Latent | Heads) -> tuple[Layer, ...]:
    return tuple(attention_layer(cfg, kind, entry) for kind in layer_types(cfg))


def mla_or_heads(cfg: ConfigView) -> tuple[Layer, ...]:
    """DeepSeek-V2 repositories also hold models with `use_mla: false`, whose heads are cached in full."""
    if cfg.get("use_mla") is False or cfg.get("kv_lora_rank") is None:
        width = cfg.need("hidden_size") // cfg.need("num_attention_heads")
        return _latents(cfg, Heads(cfg.need("num_key_value_heads"), width, width))
    return mla(cfg)


def minicpm3(cfg: ConfigView) -> tuple[Layer, ...]:
    """MiniCPM3: without v_head_dim, V is hidden_size // heads wide."""
    rope, nope = cfg.need("qk_rope_head_dim"), cfg.need("qk_nope_head_dim")
    count = cfg.need("num_attention_heads")
    value = cfg.maybe("v_head_dim") or cfg.need("hidden_size") // count
    entry = Latent(cfg.need("kv_lora_rank"), rope, expanded=Heads(count, nope + rope, value))
    return _latents(cfg, entry)


def longcat_flash(cfg: ConfigView) -> tuple[Layer, ...]:
    """LongCat: two attention blocks in each layer. configuration_longcat_flash.py num_hidden_layers = 2 * num_layers"""
    given = cfg.raw.get("num_hidden_layers") is not None  # its setter runs last, and halves
    count = 2 * (cfg.layers() // 2) if given else 2 * cfg.layers("num_layers")
    return tuple(attention_layer(cfg, kind, latent(cfg)) for kind in inferred(cfg, count))


# -- with an indexer ---------------------------------------------------------------------------------------------------


def indexer_layers(cfg: ConfigView, count: int, default: Sequence[bool] | None = None) -> Sequence[bool]:
    """Which layers run their own indexer; the others reuse the choice of an earlier one and keep no index keys."""
    if cfg.get("indexer_types") is not None:
        return _listed_indexers(cfg, "indexer_types", count)
    return _indexers_by_pattern(cfg, count) if default is None else default


def _listed_indexers(cfg: ConfigView, key: str, count: int) -> Sequence[bool]:
    kinds = cfg.strings(key) or ()
    if len(kinds) < count or set(kinds) - {"full", "shared"}:
        raise ConfigError(f"must say full or shared for each of {count} layers", where=cfg.where(key))
    return [kind == "full" for kind in kinds[:count]]


def _indexers_by_pattern(cfg: ConfigView, count: int) -> Sequence[bool]:
    if isinstance(cfg.get("index_topk_pattern"), list):
        return _listed_indexers(cfg, "index_topk_pattern", count)
    pattern = cfg.text("index_topk_pattern")
    if pattern is not None:
        if len(pattern) < count or set(pattern) - {"F", "S"}:
            raise cfg.invalid("index_topk_pattern", f"F or S for each of {count} layers", pattern)
        return [letter == "F" for letter in pattern[:count]]
    frequency = max(cfg.maybe("index_topk_freq", at_least=0) or 1, 1)
    offset = cfg.maybe("index_skip_topk_offset", at_least=0)
    offset = 2 if offset is None else offset
    return [max(index - offset + 1, 0) % frequency == 0 for index in range(count)]


def indexed_layer(entry: Latent, index_dim: int | None, index_format: str | None = None) -> Layer:
    """A latent and, where the layer has its own indexer, one index key a token."""
    stores = (
        (Attention(entry),)
        if index_dim is None
        else (Attention(entry), Attention(IndexKey(index_dim), format=index_format))
    )
    return Layer(stores, kind="indexed_attention")


def dsa(cfg: ConfigView) -> tuple[Layer, ...]:
    """A latent and an index key in every layer (DeepSeek-V3.2)."""
    kinds = layer_types(cfg, _all_indexed)
    plain, indexed = Layer((Attention(latent(cfg)),)), indexed_layer(latent(cfg), cfg.need("index_head_dim"))
    return tuple(indexed if kind == "indexed_attention" else plain for kind in kinds)


def _all_indexed(_cfg: ConfigView, count: int) -> Sequence[str]:
    return ["indexed_attention"] * count


def shared_dsa(default: Sequence[bool] | None = None, every_from_one: int = 0) -> Adapter:
    """DSA whose indexers may be shared between layers (GLM-5, Hunyuan-4)."""

    def adapt(cfg: ConfigView) -> tuple[Layer, ...]:
        count = cfg.layers()
        rule = [i == 0 or (i - 1) % every_from_one == 0 for i in range(count)] if every_from_one else default
        own = indexer_layers(cfg, count, rule)
        entry, index_dim = latent(cfg), cfg.need("index_head_dim")
        return tuple(indexed_layer(entry, index_dim if has else None) for has in own)

    return adapt


def dots3_note(cfg: ConfigView) -> tuple[Layer, ...]:
    """dots.note: sliding layers have a latent of their own; index keys are computed from float32 inputs and stay so."""
    count = cfg.layers()
    published = not cfg.given("per_layer_config")  # a saved config holds the sliding layers' sizes there
    use_dsa = cfg.get("use_dsa") if cfg.given("use_dsa") else (True if published else None)
    use_window = cfg.get("use_sliding_window") is not False
    full = "full_attention" if use_dsa is False else "indexed_attention"
    default = [full if not use_window or i < 2 or i % 4 == 1 else "sliding_attention" for i in range(count)]
    kinds = cfg.strings("layer_types") or default
    if len(kinds) != count:
        raise ConfigError(f"has {len(kinds)} entries for {count} layers", where=cfg.where("layer_types"))
    if use_dsa is not None:
        kinds = [full if kind in ("full_attention", "indexed_attention") else kind for kind in kinds]
    return tuple(_dots3_note_layer(cfg, kind, published=published) for kind in kinds)


def _dots3_note_layer(cfg: ConfigView, kind: str, *, published: bool) -> Layer:
    if kind == "sliding_attention":
        window = cfg.maybe("sliding_window") or cfg.maybe("sliding_window_size") or 512
        entry = _dots3_note_sliding(cfg) if published else latent(cfg)
        return Layer((Attention(entry, Sliding(window)),), kind=kind)
    if kind == "full_attention":
        return Layer((Attention(latent(cfg), Full()),), kind=kind)
    if kind != "indexed_attention":
        raise ConfigError(f"{cfg.model_type} has no rule for layer type {kind!r}", where=cfg.where("layer_types"))
    return indexed_layer(latent(cfg), cfg.need("index_head_dim"), "float32")


def _dots3_note_sliding(cfg: ConfigView) -> Latent:
    """configuration_dots3_note.py sliding_config, with its defaults."""
    nope = cfg.maybe("swa_qk_nope_head_dim") or 192
    rope = cfg.maybe("swa_qk_rope_head_dim") or (cfg.maybe("swa_head_dim") or 256) - nope
    expanded = Heads(cfg.maybe("swa_num_attention_heads") or 64, nope + rope, cfg.maybe("swa_v_head_dim") or 128)
    return Latent(cfg.maybe("swa_kv_lora_rank") or 1024, rope, expanded)


def mistral_large4(cfg: ConfigView) -> tuple[Layer, ...]:
    """Mistral Large 4: no rotary part on some layers, latents shared by kv_source_layers, indexers by indexer_types."""
    count = cfg.layers()
    whole = latent(cfg)
    bare = Latent(whole.rank, 0, Heads(whole.expanded.count, cfg.need("qk_nope_head_dim"), whole.expanded.v_dim))
    sources = cfg.whole_numbers("kv_source_layers") or tuple(range(count))
    ropes = cfg.whole_numbers("no_rope_layers") or [
        int((i + 1) % (cfg.maybe("no_rope_layer_interval") or 4) != 0) for i in range(count)
    ]
    own = indexer_layers(cfg, count)
    if not len(sources) == len(ropes) == count:
        raise ConfigError(f"kv_source_layers and no_rope_layers must have {count} entries", where=cfg.path)
    if any(source > index or sources[source] != source for index, source in enumerate(sources)):
        raise cfg.invalid("kv_source_layers", "a layer's own index or that of an earlier one that has one", sources)
    index_dim = cfg.need("index_head_dim")
    layers = []
    for index, source in enumerate(sources):
        layer = indexed_layer(whole if ropes[index] else bare, index_dim if own[index] else None)
        if source == index:
            layers.append(layer)
        elif own[index]:  # kv_sharing_modes "reuse_but_indexer": another layer's latent, index keys of its own
            layers.append(Layer((Attention(IndexKey(index_dim)),), kind=layer.kind))
        else:
            layers.append(Layer(layer.stores, shares=source, kind=layer.kind))
    return tuple(layers)


LATENT: dict[str, Adapter] = {
    **dict.fromkeys(
        """
        axk1 deepseek_v3 glm4_moe_lite mistral4 youtu
        """.split(),
        mla,
    ),
    "deepseek_v2": mla_or_heads,
    "minicpm3": minicpm3,
    "longcat_flash": longcat_flash,
    "axk2": dsa,
    "deepseek_v32": dsa,
    "glm_moe_dsa": shared_dsa(),
    "hy_v4": shared_dsa(every_from_one=4),
    "dots3_note_text": dots3_note,
    "mistral_large4_text": mistral_large4,
}
