"""The same request in every other engine: its bytes, and in a few words why they differ. For people; never in JSON."""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import ENGINES, CacheSize, Workload, engine_options, load_engine
from kvsize.errors import KvsizeError
from kvsize.geometry import Attention, Chunked, Compressed, Geometry, Latent, Layer, Recurrent, Sliding
from kvsize.words import RECURRENT_NAMES


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another engine's figure (None: it refuses), and why it differs or refuses."""

    engine: str
    version: str
    total_bytes: int | None
    why: str


def elsewhere(geometry: Geometry, workload: Workload, own: CacheSize) -> list[Elsewhere]:
    """Every other engine's answer under its own defaults, in the order of ENGINES."""
    return [_one(name, geometry, workload, own) for name in ENGINES if name != own.engine]


def _one(name: str, geometry: Geometry, workload: Workload, own: CacheSize) -> Elsewhere:
    module = load_engine(name)
    try:
        size = module.size(geometry, workload, engine_options(name, {}))
    except KvsizeError as error:
        return Elsewhere(name, module.VERSION, None, error.what)
    return Elsewhere(name, size.version, size.total_bytes, _why(geometry, workload, size, own))


def _why(geometry: Geometry, workload: Workload, size: CacheSize, own: CacheSize) -> str:
    """What the largest difference between two answers comes from."""
    if size.total_bytes == own.total_bytes:
        return "the same"
    gaps: dict[Layer, int] = {}
    for one, there, here in zip(geometry.layers, size.layers, own.layers, strict=True):
        gaps[one] = gaps.get(one, 0) + there.held - here.held
    gap_outside = size.overhead_bytes - own.overhead_bytes
    layer = max(gaps, key=lambda item: abs(gaps[item]), default=Layer())
    if abs(gap_outside) > abs(gaps.get(layer, 0)):
        largest = max(size.overheads or own.overheads, key=lambda part: part.bytes)
        return largest.name if size.overheads else f"no {largest.name}"
    if (size.k_format, size.v_format) != (own.k_format, own.v_format):
        return f"{size.k_format} cache"
    return _reason(layer, size.layers[geometry.layers.index(layer)].held, workload, grows=gaps[layer] > 0, size=size)


def _reason(layer: Layer, held: int, workload: Workload, *, grows: bool, size: CacheSize) -> str:
    more = "more" if grows else "less"
    if layer.shares is not None:
        return "shared layers hold a copy" if grows else "shared layers hold nothing"
    for store in layer.stores:
        match store:
            case Recurrent(kind=kind):
                return f"{more} {RECURRENT_NAMES[kind]} state"
            case Compressed():
                return f"{more} in compressed layers"
            case Attention(span=Sliding(window=window) | Chunked(size=window), entry=entry):
                return _window(window, held, entry.elements, workload, size)
            case Attention(entry=Latent()):
                return "the latent" if not grows else "more than the latent"
            case Attention():
                return f"pages of {size.step_tokens} tokens" if grows and size.step_tokens > 1 else f"{more} per token"
    return f"{more} in layers without a cache"


def _window(window: int, held: int, elements: int, workload: Workload, size: CacheSize) -> str:
    from kvsize.formats import FORMATS

    found = FORMATS.get(size.k_format)
    width = 0 if found is None or found.block_elements > 1 else found.block_bytes * elements * workload.sequences
    if not width:
        return "windows of its own"
    tokens = held // width
    return "windows in full" if tokens >= workload.tokens > window else f"windows hold {tokens:,} tokens"
