"""Offloaded caches: what is on the device at once, and what waits in host memory.

transformers@5.23.0 cache_utils.py Cache.update: while layer i is updated, it and the next offloadable layer are on the
device; the others are on the host. Linear states never leave the device, nor windows under offload_only_non_sliding.
"""

from __future__ import annotations

from kvsize.engines import LayerBytes
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry, Layer

SLIDING = ("sliding_attention", "chunked_attention")


def place(geometry: Geometry, layers: list[LayerBytes], only_non_sliding: bool, static: bool) -> list[LayerBytes]:
    """The same layers with `host` set: all but the two that are on the device in the worst moment.

    Copying to the host takes the tensor, not the storage behind it, so `held` becomes what the tensors show.

    Raises:
        UnsupportedError: no layer can be offloaded, which transformers stumbles over.
    """
    offloadable = [
        index for index, layer in enumerate(geometry.layers) if _offloadable(layer, only_non_sliding, static)
    ]
    if not offloadable:
        raise UnsupportedError(
            f"no layer of {geometry.model_type} can be offloaded, and transformers fails then",
            hint="Use --cache dynamic, or --no-offload-only-non-sliding where windows may move.",
        )
    moved = set(offloadable)
    shown = [_as_shown(layer) if index in moved else layer for index, layer in enumerate(layers)]
    resident = set(_busiest_pair(offloadable, shown))
    return [
        LayerBytes(layer.logical, layer.held, layer.after_prefill, layer.held)
        if index in moved and index not in resident
        else layer
        for index, layer in enumerate(shown)
    ]


def _as_shown(layer: LayerBytes) -> LayerBytes:
    return LayerBytes(layer.logical, layer.logical, min(layer.after_prefill, layer.logical))


def _busiest_pair(offloadable: list[int], layers: list[LayerBytes]) -> tuple[int, int]:
    pairs = zip(offloadable, offloadable[1:] + offloadable[:1], strict=True)
    return max(pairs, key=lambda pair: sum(layers[index].held for index in set(pair)))


def _offloadable(layer: Layer, only_non_sliding: bool, static: bool) -> bool:
    if not layer.stores or layer.shares is not None:
        return False
    if layer.kind in ("linear_attention", "conv", "hybrid_sliding") or (static and layer.kind == "hybrid"):
        return False
    return not (only_non_sliding and layer.kind in SLIDING)
