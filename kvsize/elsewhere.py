"""The same request in every other engine: its bytes, and in a few words why they differ. For people; never in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsize.engines import ENGINES, CacheSize, EngineModule, Workload, engine_options, load_engine
from kvsize.errors import KvsizeError
from kvsize.formats import FORMATS
from kvsize.geometry import Attention, Chunked, Compressed, Encoder, Geometry, Latent, Layer, Recurrent, Sliding, Store
from kvsize.words import RECURRENT_NAMES


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another engine's figure (None: it refuses), and why it differs or refuses."""

    engine: str
    version: str
    total_bytes: int | None
    why: str


SAME = "the same"
PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "data_parallel_size",
)


def elsewhere(geometry: Geometry, workload: Workload, own: CacheSize, options: Any) -> list[Elsewhere]:
    """Every other engine's answer, in the order of ENGINES: under its own defaults, but split over as many ranks.

    An engine that cannot be split is left out where the request is.
    """
    split = {name: count for name in PARALLEL if (count := getattr(options, name, 1) or 1) != 1}
    others = {name: load_engine(name) for name in ENGINES if name != own.engine}
    able = {
        name: module for name, module in others.items() if split.keys() <= module.Options.__dataclass_fields__.keys()
    }
    return [_one(name, module, geometry, workload, own, split) for name, module in able.items()]


def _one(
    name: str, module: EngineModule, geometry: Geometry, workload: Workload, own: CacheSize, settings: dict[str, int]
) -> Elsewhere:
    try:
        size = module.size(geometry, workload, engine_options(name, settings))
    except KvsizeError as error:
        return Elsewhere(name, module.VERSION, None, error.what)
    reason = why(geometry, workload, size, own, split=bool(settings))
    return Elsewhere(name, size.version, size.total_bytes, reason)


def why(geometry: Geometry, workload: Workload, size: CacheSize, own: CacheSize, *, split: bool = False) -> str:
    """What the largest difference between two answers comes from."""
    if size.total_bytes == own.total_bytes:
        return SAME
    gaps: dict[Layer, int] = {}
    for one, there, here in zip(geometry.layers, size.layers, own.layers, strict=True):
        gaps[one] = gaps.get(one, 0) + there.held - here.held
    gap_outside = size.overhead_bytes - own.overhead_bytes
    layer = max(gaps, key=lambda item: abs(gaps[item]), default=Layer())
    if abs(gap_outside) > abs(gaps.get(layer, 0)):
        largest = max(size.overheads or own.overheads, key=lambda part: part.bytes)
        return largest.name if size.overheads else f"without {largest.name}"
    if _widths(size) != _widths(own):
        return f"{size.k_format} cache"
    return _reason(
        layer, size.layers[geometry.layers.index(layer)].held, workload, grows=gaps[layer] > 0, size=size, split=split
    )


def _widths(size: CacheSize) -> tuple[object, ...]:
    """What an element of K and of V takes; an engine's own format stands for itself."""
    found = [FORMATS.get(name) for name in (size.k_format, size.v_format)]
    names = zip(found, (size.k_format, size.v_format), strict=True)
    return tuple((known.block_elements, known.block_bytes) if known else name for known, name in names)


def _reason(layer: Layer, held: int, workload: Workload, *, grows: bool, size: CacheSize, split: bool) -> str:
    more = "more" if grows else "less"
    if layer.shares is not None:
        return "shared layers hold a copy" if grows else "shared layers hold nothing"
    for store in sorted(layer.stores, key=_likeliest):
        match store:
            case Recurrent(kind=kind):
                return f"{more} {RECURRENT_NAMES[kind]} state"
            case Compressed():
                return f"{more} in compressed layers"
            case Attention(span=Encoder()):
                return "the encoder's tokens too" if grows else "not the encoder's tokens"
            case Attention(span=Sliding(window=window) | Chunked(size=window), entry=entry):
                return f"{more} in windows" if split else _window(window, held, entry.elements, workload, size)
            case Attention(entry=Latent()):
                return "more than the latent" if grows else "the latent"
            case Attention(entry=entry):
                tokens = 0 if split else _tokens(held, entry.elements, workload, size)
                if grows and 0 <= tokens - workload.tokens < size.step_tokens > 1:
                    return f"pages of {size.step_tokens:,} tokens"
                return f"holds {tokens:,} tokens" if 0 < tokens != workload.tokens else f"{more} a token"
    return f"{more} in layers without a cache"


def _likeliest(store: Store) -> bool:
    """Where a layer keeps several things, states and encoders are what engines differ in."""
    return isinstance(store, Attention) and not isinstance(store.span, Encoder)


def _window(window: int, held: int, elements: int, workload: Workload, size: CacheSize) -> str:
    tokens = _tokens(held, elements, workload, size)
    if not tokens:
        return "windows of its own"
    return "windows in full" if tokens >= workload.tokens > window else f"windows hold {tokens:,} tokens"


def _tokens(held: int, elements: int, workload: Workload, size: CacheSize) -> int:
    """Tokens of one sequence that a layer's bytes are; 0 where an element's bytes are not known."""
    found = FORMATS.get(size.k_format)
    width = 0 if found is None or found.block_elements > 1 else found.block_bytes * elements * workload.sequences
    return held // width if width else 0
