"""Models unlike any other: one adapter each."""

from __future__ import annotations

from kvsize.architectures.common import Adapter, heads, hidden_per_head, kv_heads, layer_types, query_heads
from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Compressed, Full, Heads, IndexKey, Layer, Reference, Sliding

# transformers@5.23.0 models/deepseek_v4/configuration_deepseek_v4.py _COMPRESS_RATIO_TO_LAYER_TYPE
DEEPSEEK_V4_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def deepseek_v4(cfg: ConfigView) -> tuple[Layer, ...]:
    """DeepSeek-V4: a window of shared K=V, and compressed entries, 1 for 4 tokens (CSA) or for 128 (HCA)."""
    width, window, index_dim = cfg.need("head_dim"), cfg.need("sliding_window"), cfg.need("index_head_dim")
    rates = _deepseek_v4_rates(cfg)
    layers = []
    for kind in _deepseek_v4_kinds(cfg):
        if kind == "sliding_attention":
            layers.append(Layer((Attention(Heads(1, width, width), Sliding(window)),), kind=kind))
            continue
        if kind not in rates:
            raise ConfigError(f"unknown layer type {kind!r}", where=cfg.where("layer_types"))
        overlap = kind == "compressed_sparse_attention"
        store = Compressed(width, window, rates[kind], overlap, index_dim if overlap else 0)
        layers.append(Layer((store,), kind=kind))
    return tuple(layers)


def _deepseek_v4_rates(cfg: ConfigView) -> dict[str, int]:
    given = cfg.child("compress_rates")
    rates = {}
    for kind, default, legacy in (
        ("compressed_sparse_attention", 4, "compress_rate_csa"),
        ("heavily_compressed_attention", 128, "compress_rate_hca"),
    ):
        rates[kind] = cfg.maybe(legacy) or (given.maybe(kind) if given else None) or default
    return rates


def _deepseek_v4_kinds(cfg: ConfigView) -> list[str]:
    count = cfg.layers()
    listed, ratios = cfg.strings("layer_types"), cfg.whole_numbers("compress_ratios")
    if listed is None and ratios is not None:
        unknown = set(ratios) - set(DEEPSEEK_V4_KINDS)
        if unknown:
            raise cfg.invalid("compress_ratios", "a list of 0, 4 and 128", sorted(unknown))
        listed = tuple(DEEPSEEK_V4_KINDS[ratio] for ratio in ratios)
    if listed is None:
        listed = tuple(
            "compressed_sparse_attention" if i >= 3 and i % 2 else "heavily_compressed_attention" for i in range(count)
        )
    if len(listed) < count:
        raise ConfigError(f"has {len(listed)} entries for {count} layers", where=cfg.where("layer_types"))
    return list(listed[:count])


def minimax_m3(cfg: ConfigView) -> tuple[Layer, ...]:
    """MiniMax-M3: full attention, with an index key a token on sparse layers."""
    count = cfg.layers()
    nested = cfg.child("sparse_attention_config")
    listed = cfg.strings("layer_types")
    frequencies = nested.whole_numbers("sparse_attention_freq") if nested and listed is None else None
    if frequencies is not None:
        listed = tuple("minimax_m3_sparse" if sparse else "full_attention" for sparse in frequencies)
    kinds = listed or ("full_attention",) * count
    if len(kinds) != count or set(kinds) - {"minimax_m3_sparse", "full_attention"}:
        raise ConfigError(
            f"must name minimax_m3_sparse or full_attention for each of {count} layers", where=cfg.where("layer_types")
        )
    plain = Layer((Attention(heads(cfg)),))
    if "minimax_m3_sparse" not in kinds:
        return (plain,) * count
    index_dim = (nested.maybe("sparse_index_dim") if nested else None) or cfg.need("index_head_dim")
    sparse = Layer((*plain.stores, Attention(IndexKey(index_dim))), kind="minimax_m3_sparse")
    return tuple(sparse if kind == "minimax_m3_sparse" else plain for kind in kinds)


def unlimited_ocr(cfg: ConfigView) -> tuple[Layer, ...]:
    """Unlimited-OCR: the prompt stays whole, what is generated has a window."""
    width = hidden_per_head(cfg)
    entry = Heads(kv_heads(cfg), width, width)
    default = "reference_sliding_attention" if cfg.maybe("sliding_window") else "full_attention"
    kinds = layer_types(cfg, lambda _cfg, count: [default] * count)
    return tuple(
        Layer(
            (Attention(entry, Reference(cfg.need("sliding_window")) if kind != "full_attention" else Full()),),
            kind=kind,
        )
        for kind in kinds
    )


def cpmant(cfg: ConfigView) -> tuple[Layer, ...]:
    """CPM-Ant: a learned prompt of prompt_length entries stands before every request."""
    width = cfg.need("dim_head")
    store = Attention(Heads(query_heads(cfg), width, width), extra_tokens=cfg.need("prompt_length", at_least=0))
    return (Layer((store,)),) * cfg.layers()


def xlnet(cfg: ConfigView) -> tuple[Layer, ...]:
    """XLNet keeps the hidden states that enter each layer (its memory), not keys and values."""
    memory = cfg.maybe("mem_len")
    kept = Full() if memory is None else Sliding(memory + 1)  # mem_len vectors, a view that grows by one each step
    return (Layer((Attention(Heads(1, cfg.need("hidden_size"), 0), kept),)),) * cfg.layers()


def reformer(cfg: ConfigView) -> tuple[Layer, ...]:
    """Reformer keeps the hidden states of each layer; LSH layers also a bucket number for each head and hash."""
    kinds = cfg.strings("attn_layers")
    if not kinds or set(kinds) - {"local", "lsh"}:
        raise cfg.invalid("attn_layers", "a list of local and lsh", cfg.get("attn_layers"))
    states = Attention(Heads(1, cfg.need("hidden_size"), 0))
    buckets = Attention(IndexKey(query_heads(cfg) * (cfg.maybe("num_hashes") or 1)), format="int64")
    return tuple(Layer((states, buckets) if kind == "lsh" else (states,)) for kind in kinds)


def blt(cfg: ConfigView) -> tuple[Layer, ...]:
    """BLT: byte-level caches of the local encoder and the local decoder; the patch-level model keeps none."""
    layers: list[Layer] = []
    for name in ("encoder_config", "decoder_config"):
        part = cfg.child(name)
        if part is None:
            raise cfg.missing(name)
        count = part.need("num_attention_heads")
        width = part.need("hidden_size") // count
        entry = Heads(part.maybe("num_key_value_heads") or count, width, width)
        layers += [Layer((Attention(entry),))] * part.layers()
    return tuple(layers)


SINGULAR: dict[str, Adapter] = {
    "blt": blt,
    "cpmant": cpmant,
    "deepseek_v4": deepseek_v4,
    "minimax_m3_vl_text": minimax_m3,
    "reformer": reformer,
    "unlimited_ocr_text": unlimited_ocr,
    "xlnet": xlnet,
}
