"""Helpers that most adapters share: heads, head widths, and the type of each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Chunked, Full, Heads, Latent, Layer, Sliding, Span

Adapter = Callable[[ConfigView], tuple[Layer, ...]]
LayerTypes = Callable[[ConfigView, int], Sequence[str]]

# Older names that files still carry. transformers@5.23.0 configuration_utils.py _LEGACY_LAYER_TYPE_REMAP
LEGACY_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def reads(cfg: ConfigView, key: str) -> bool:
    """Whether the model's code looks at this key at all; a stray one in a file decides nothing."""
    return cfg.declared(key) or key in cfg.facts.reads


def query_heads(cfg: ConfigView) -> int:
    """Query heads of a layer."""
    return cfg.need("num_attention_heads")


def kv_heads(cfg: ConfigView) -> int:
    """Key and value heads of a layer; a class without GQA, or a null, means one for each query head."""
    given = cfg.maybe("num_key_value_heads") if reads(cfg, "num_key_value_heads") else None
    return given or query_heads(cfg)


def head_dim(cfg: ConfigView) -> int:
    """Width of a head: its own key where the model has one, else hidden_size // num_attention_heads."""
    given = cfg.maybe("head_dim") if reads(cfg, "head_dim") else None
    return given or hidden_per_head(cfg)


def hidden_per_head(cfg: ConfigView) -> int:
    """hidden_size // num_attention_heads, rounded down as the models do."""
    hidden, heads = cfg.need("hidden_size"), query_heads(cfg)
    if hidden < heads:
        raise ConfigError(f"num_attention_heads {heads} exceeds hidden_size {hidden}", where=cfg.path)
    return hidden // heads


def heads(cfg: ConfigView) -> Heads:
    """Keys and values of one attention layer, K and V of one width."""
    width = head_dim(cfg)
    return Heads(kv_heads(cfg), width, width)


# -- layer types -------------------------------------------------------------------------------------------------------


def layer_types(cfg: ConfigView, default: LayerTypes | None = None) -> tuple[str, ...]:
    """The type of each layer: the file's list, else the class's rule, else what windows the file sets.

    Raises:
        ConfigError: the list does not match num_hidden_layers.
    """
    count = cfg.layers()
    given = cfg.strings("layer_types")
    if given is not None:
        if len(given) != count:
            raise ConfigError(
                f"has {len(given)} entries, num_hidden_layers says {count}", where=cfg.where("layer_types")
            )
        return tuple(LEGACY_LAYER_TYPES.get(kind, kind) for kind in given)
    return tuple((default or inferred)(cfg, count))


def inferred(cfg: ConfigView, count: int) -> Sequence[str]:
    """Without layer_types, one window or chunk size goes for every layer. cache_utils.py get_layer_types_and_kwargs"""
    if cfg.maybe("sliding_window") is not None:
        return ["sliding_attention"] * count
    if cfg.maybe("attention_chunk_size") is not None:
        return ["chunked_attention"] * count
    return ["full_attention"] * count


def all_full(_cfg: ConfigView, count: int) -> Sequence[str]:
    """Every layer attends to everything, whatever window the file names."""
    return ["full_attention"] * count


def every(period: int, key: str = "", kind: str = "sliding_attention", full: str = "full_attention") -> LayerTypes:
    """Each `period`-th layer is full, the others `kind`; `key` may hold another period, or a string such as "LLLG"."""

    def rule(cfg: ConfigView, count: int) -> Sequence[str]:
        pattern = cfg.get(key) if key else None
        if isinstance(pattern, str):
            return _from_letters(cfg, key, pattern, count)
        step = (cfg.maybe(key) if key else None) or period
        return [full if (index + 1) % step == 0 else kind for index in range(count)]

    return rule


def _from_letters(cfg: ConfigView, key: str, pattern: str, count: int) -> Sequence[str]:
    if not pattern or set(pattern) - {"L", "G"}:
        raise cfg.invalid(key, "a number, or L and G for local and global layers", pattern)
    return ["full_attention" if pattern[index % len(pattern)] == "G" else "sliding_attention" for index in range(count)]


def first_of(period: int) -> LayerTypes:
    """Layers 0, period, 2*period … are full, the others sliding."""
    return lambda _cfg, count: ["full_attention" if i % period == 0 else "sliding_attention" for i in range(count)]


def from_the_end(period: int) -> LayerTypes:
    """The last layer is full, and each `period`-th before it; the others are sliding."""
    return lambda _cfg, count: [
        "full_attention" if (count - 1 - i) % period == 0 else "sliding_attention" for i in range(count)
    ]


def last_full(rule: LayerTypes) -> LayerTypes:
    """Another rule, with the last layer full."""
    return lambda cfg, count: [*rule(cfg, count)[:-1], "full_attention"]


# -- layers ------------------------------------------------------------------------------------------------------------


def span(cfg: ConfigView, kind: str) -> Span:
    """Which tokens an attention layer of this type keeps.

    Raises:
        ConfigError: a type that stores no plain attention cache.
    """
    match kind:
        case "full_attention":
            return Full()
        case "sliding_attention":
            return Sliding(cfg.need("sliding_window"))
        case "chunked_attention":
            return Chunked(cfg.need("attention_chunk_size"))
        case _:
            raise ConfigError(f"{cfg.model_type} has no rule for layer type {kind!r}", where=cfg.where("layer_types"))


def attention_layer(cfg: ConfigView, kind: str, entry: Heads | Latent | None = None) -> Layer:
    """One layer that caches keys and values (or a latent), or nothing where it is an MLP."""
    if kind in ("moe", "mlp"):
        return Layer(kind=kind)
    return Layer((Attention(entry or heads(cfg), span(cfg, kind)),), kind=kind)


def standard(default: LayerTypes | None = None) -> Adapter:
    """The adapter of most models: equal heads in every layer, `default` naming the layers' types."""
    return lambda cfg: tuple(attention_layer(cfg, kind) for kind in layer_types(cfg, default))


def with_heads(make: Callable[[ConfigView], Heads], default: LayerTypes | None = None) -> Adapter:
    """Like standard, with heads found in another way."""
    return lambda cfg: tuple(attention_layer(cfg, kind, make(cfg)) for kind in layer_types(cfg, default))


def share_last(layers: Sequence[Layer], shared: int) -> tuple[Layer, ...]:
    """The last `shared` layers read the cache of the last earlier layer of their own kind (Gemma-3n, Gemma-4)."""
    first = len(layers) - shared
    own = {layer.kind: index for index, layer in enumerate(layers[:first])}
    tail = []
    for layer in layers[first:]:
        if layer.kind not in own:
            raise ConfigError(f"no layer before the {shared} sharing ones is a {layer.kind} to share")
        tail.append(Layer(layer.stores, shares=own[layer.kind], kind=layer.kind))
    return (*layers[:first], *tail)
