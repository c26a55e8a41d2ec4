"""From a model's geometry to what each cache of one rank holds: vLLM's KVCacheSpec, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias, assert_never

from kvsize.engines.vllm import models
from kvsize.engines.vllm.formats import KvFormat, index_key_bytes
from kvsize.engines.vllm.setup import Setup
from kvsize.errors import UnsupportedError
from kvsize.formats import format_of
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    Span,
    State,
    Store,
)

Kind: TypeAlias = Literal["full", "mla", "sliding", "chunked", "cross", "states"]
DRAFTED = -1  # the layer index of what a draft adds
BOUNDARY_LAYERS = 2  # turboquant/config.py get_boundary_skip_layers


@dataclass(frozen=True, slots=True)
class Spec:
    """What one cache holds, and in what pages. Caches of equal specs can share a block table.

    `shape` is what tells specs of one kind apart. `token_bytes` is one token on this rank, `state_bytes` one
    sequence's states. `reach`: window, chunk, or the encoder's tokens. `padded`: the page, where it is filled up.
    """

    kind: Kind
    shape: tuple[object, ...]
    token_bytes: int = 0
    state_bytes: int = 0
    reach: int = 0
    checkpoint: bool = False
    block_size: int = 0
    padded: int | None = None

    @property
    def content(self) -> int:
        """Bytes of a page that hold something."""
        return self.state_bytes if self.kind == "states" else self.block_size * self.token_bytes

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return self.content if self.padded is None else self.padded

    @property
    def full_family(self) -> bool:
        """Whether every token keeps its slot."""
        return self.kind in ("full", "mla")


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache: the index of the hidden layer it belongs to, and its spec."""

    layer: int
    spec: Spec


def caches(geometry: Geometry, setup: Setup) -> tuple[Cache, ...]:
    """Every cache of the model on one tensor-parallel rank, blocks not yet chosen.

    Raises:
        UnsupportedError: vLLM has no rule for one of them, or cannot split it over the ranks.
    """
    if geometry.model_type in models.ENCODER_ONLY:
        return ()
    found = [
        Cache(index, _spec(store, geometry, setup, _format(index, geometry, setup)))
        for index, layer in enumerate(geometry.layers)
        for store in _own_stores(index, layer, geometry)
    ]
    return (*found, *_drafted(found, setup))


def _drafted(found: list[Cache], setup: Setup) -> Iterator[Cache]:
    """MTP layers: as the last layer with attention, on the last pipeline stage."""
    last = max((cache.layer for cache in found if cache.spec.kind != "states"), default=None)
    for _ in range(setup.draft_layers):
        yield from (replace(cache, layer=DRAFTED) for cache in found if cache.layer == last)


def _own_stores(index: int, layer: Layer, geometry: Geometry) -> tuple[Store, ...]:
    if layer.shares is None:
        if not layer.stores and layer.kind == "no_cache":
            raise _no_rule(geometry, "a model without a cache")
        return layer.stores
    if geometry.model_type not in models.SHARING:
        raise _no_rule(geometry, f"layer {index} sharing the cache of layer {layer.shares}")
    return ()


def _no_rule(geometry: Geometry, what: str) -> UnsupportedError:
    return UnsupportedError(f"no rule for {geometry.model_type} in vLLM: {what}", hint="Try --engine transformers.")


def _format(index: int, geometry: Geometry, setup: Setup) -> KvFormat:
    """The layer's format: TurboQuant leaves the outermost layers of a model without recurrent layers alone."""
    if not setup.kv.packed or recurrent(geometry):
        return setup.kv
    if setup.device == 10:
        raise UnsupportedError(
            f"vLLM finds no cache layout for {setup.kv.name} beside plain layers on compute capability 10.x",
            hint="Use nvfp4 or fp8.",
        )
    count = len(geometry.layers)
    edge = min(BOUNDARY_LAYERS, count // 2)
    return setup.dense if index < edge or index >= count - edge else setup.kv


def recurrent(geometry: Geometry) -> bool:
    """Whether any layer keeps recurrent states."""
    return any(isinstance(store, Recurrent) for layer in geometry.layers for store in layer.stores)


def _spec(store: Store, geometry: Geometry, setup: Setup, kv: KvFormat) -> Spec:
    match store:
        case Attention():
            return _attention(store, geometry, setup, kv)
        case Recurrent():
            return _states(store, geometry, setup)
        case Compressed():
            raise _no_rule(geometry, "compressed attention is not modelled")
        case _ as never:
            assert_never(never)


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(store: Attention, geometry: Geometry, setup: Setup, kv: KvFormat) -> Spec:
    if store.extra_tokens or store.expanded_view or store.format is not None:
        raise _no_rule(geometry, "a cache of its own kind")
    match store.entry:
        case Heads():
            return _heads(store.entry, store.span, geometry, setup, kv)
        case Latent():
            return _latent(store.entry, store.span, geometry, setup, kv)
        case IndexKey(dim=dim):
            return Spec("mla", ("index", dim), token_bytes=_index_key(dim, geometry))
        case _ as never:
            assert_never(never)


def _heads(entry: Heads, span: Span, geometry: Geometry, setup: Setup, kv: KvFormat) -> Spec:
    if not entry.v_dim:
        raise _no_rule(geometry, "K and V are one")
    count = heads_per_rank(entry.count, setup.tp, geometry)
    kind, reach = _span(span, geometry, setup)
    if kv.head is None or (kv.symmetric and entry.k_dim != entry.v_dim):
        raise UnsupportedError(f"vLLM has no attention kernel for a {kv.name} cache of this model", hint="Use fp8.")
    if kv.packed and kind != "full":
        raise UnsupportedError(f"vLLM's {kv.name} cache refuses layers with windows", hint="Use fp8.")
    if kv.name != setup.dense.name and min(entry.k_dim, entry.v_dim) % 8:
        raise UnsupportedError(
            f"no vLLM kernel takes a {kv.name} cache with heads of {entry.k_dim}", hint="Use --kv-cache-dtype auto."
        )
    shape = (count, entry.k_dim, entry.v_dim, kv.name)
    return Spec(kind, shape, token_bytes=count * kv.head(entry.k_dim, entry.v_dim), reach=reach)


def _index_key(dim: int, geometry: Geometry) -> int:
    if geometry.model_type in models.INDEXED:
        return index_key_bytes(dim)
    if geometry.model_type in models.INDEXED_HEADS:
        return format_of("bfloat16").bytes(dim)
    raise _no_rule(geometry, "its index keys are not modelled")


def heads_per_rank(count: int, tp: int, geometry: Geometry) -> int:
    """KV heads of one rank: split evenly, or one each where there are more ranks than heads (replicas).

    Raises:
        UnsupportedError: neither divides the other.
    """
    if count % tp == 0:
        return count // tp
    if tp % count == 0 and geometry.model_type not in models.NO_HEAD_REPLICATION:
        return 1
    raise UnsupportedError(
        f"vLLM cannot split {count} KV heads over {tp} ranks", hint="Choose a --tensor-parallel-size that divides them."
    )


def _span(span: Span, geometry: Geometry, setup: Setup) -> tuple[Kind, int]:
    match span:
        case Full() | Reference():  # R-SWA keeps the whole prompt and plans as full attention
            return "full", 0
        case Sliding(window=window):
            return "sliding", window
        case Chunked(size=size):
            return "chunked", size
        case Encoder(tokens=tokens):
            if geometry.model_type not in models.CROSS_ATTENDING:
                raise _no_rule(geometry, "it attends to an encoder")
            return "cross", setup.batch_tokens if tokens is None else max(setup.batch_tokens, tokens)
        case _ as never:
            assert_never(never)


def _latent(entry: Latent, span: Span, geometry: Geometry, setup: Setup, kv: KvFormat) -> Spec:
    if geometry.model_type in models.EXPANDED_LATENT:
        wide = replace(entry.expanded, v_dim=entry.expanded.k_dim)
        return _heads(wide, span, geometry, setup, kv)
    if geometry.model_type not in (*models.MLA, *models.INDEXED) or not isinstance(span, Full):
        raise _no_rule(geometry, "its latent attention is not modelled")
    sparse = geometry.model_type in models.INDEXED
    width = kv.indexed if sparse else kv.latent
    if width is None:
        raise UnsupportedError(
            f"vLLM has no MLA kernel for a {kv.name} cache", hint="MLA takes bfloat16, float16, fp8 and fp8_e4m3."
        )
    return Spec("mla", ("latent", entry.elements, kv.name), token_bytes=width(entry.elements))


# -- states ------------------------------------------------------------------------------------------------------------


def _states(store: Recurrent, geometry: Geometry, setup: Setup) -> Spec:
    rule = models.state_rule(geometry)
    if rule is None or not setup.rules.hybrid_manager:
        raise _no_rule(geometry, f"its {store.kind} layers are not among vLLM's")
    shapes = tuple(_rank_shape(state, store, geometry, setup) for state in store.states)
    widths = tuple(_state_width(state, rule, geometry, setup) for state in store.states)
    total = sum(prod(shape) * width for shape, width in zip(shapes, widths, strict=True))
    return Spec("states", (store.kind, shapes, widths), state_bytes=total, checkpoint=_checkpoint(rule, setup))


def _checkpoint(rule: models.StateRule, setup: Setup) -> bool:
    match rule.checkpoint:
        case "none":
            return False
        case "mamba2":
            return setup.rules.mamba2_checkpoint
        case "gdn" | "kda":  # with prefill kernels of Hopper and Blackwell (FlashInfer, FlashKDA)
            return setup.rules.gdn_checkpoint and setup.device in (9, 10, 12)
        case _ as never:
            assert_never(never)


def _rank_shape(state: State, store: Recurrent, geometry: Geometry, setup: Setup) -> tuple[int, ...]:
    """mamba_utils.py MambaStateShapeCalculator: heads and channels are split, the conv keeps kernel - 1 columns."""
    if state.role == "recurrent":
        return (_split(state.shape[0], setup.tp, geometry), *state.shape[1:])
    channels, kernel = state.shape
    widened = setup.speculative if store.kind in ("mamba2", "gated_delta", "kda") else 0
    return _split(channels + _extra_channels(store, geometry, setup), setup.tp, geometry), kernel - 1 + widened


def _extra_channels(store: Recurrent, geometry: Geometry, setup: Setup) -> int:
    """Mamba-2's B and C channels of a single group are copied to each rank; several groups must divide."""
    if not store.groups or store.groups % setup.tp == 0:
        return 0
    if store.groups != 1:
        raise UnsupportedError(
            f"vLLM cannot split the {store.groups} state groups of {geometry.model_type} over {setup.tp} ranks",
            hint="Choose a --tensor-parallel-size that divides them.",
        )
    state = next(s.shape[-1] for s in store.states if s.role == "recurrent")
    return 2 * (setup.tp - 1) * state


def _split(size: int, tp: int, geometry: Geometry) -> int:
    if size % tp:
        raise UnsupportedError(
            f"vLLM cannot split {size} state channels or heads of {geometry.model_type} over {tp} ranks",
            hint="Choose a --tensor-parallel-size that divides them.",
        )
    return size // tp


def _state_width(state: State, rule: models.StateRule, geometry: Geometry, setup: Setup) -> int:
    conv = setup.dense.name if setup.conv_dtype == "auto" else setup.conv_dtype
    name = conv if state.role == "conv" else _recurrent_dtype(conv, rule, geometry, setup)
    return format_of(name).bytes(1)


def _recurrent_dtype(conv: str, rule: models.StateRule, geometry: Geometry, setup: Setup) -> str:
    if setup.ssm_dtype != "auto":
        return setup.ssm_dtype
    match rule.dtype:
        case "conv":
            return conv
        case "config":
            return geometry.state_dtype or conv
        case "config or float32":
            return geometry.state_dtype or "float32"
        case "float32":
            return "float32"
        case _ as never:
            assert_never(never)
