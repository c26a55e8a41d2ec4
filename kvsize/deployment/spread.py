"""Engines that spread layers over GPUs: which layers lie where, and how much of the weights with them.

llama.cpp deals its layers, and as one more the output, in equal numbers to equal GPUs; those that are not offloaded are
the first, and stay in host memory with the input's tables (llama.cpp@b11739 src/llama-model.cpp load_tensors).
transformers' device_map="auto" evens out weights instead, with room for a block and a quarter more on each GPU
(accelerate@1.12 utils/modeling.py get_balanced_memory): two layers more than an equal number, at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvsize.deployment.budget import Part
from kvsize.engines import CacheSize
from kvsize.ranges import Range, exactly
from kvsize.weights import Weights, per_stage

NATIVE = ("llama.cpp", "ollama")  # read a GGUF's weights as they are, and deal them as it lists them
UNEVEN = {"transformers": 2}  # layers that a GPU may hold beyond an equal number


@dataclass(frozen=True, slots=True)
class Share:
    """What one GPU holds: the hidden layers whose cache lies on it (None: its part of all), and bytes of weights."""

    weights: Part
    layers: range | None = None


def part_of(weights: Weights, held: Range) -> Part:
    """A share of the weights with its evidence: exact where tensors were read and none is unsure."""
    known = weights.evidence != "exact" or held.width == 0
    return Part("weights", held, weights.evidence if known else "derived", weights.source)


def dealt(count: int, gpus: int, offloaded: int | None) -> tuple[range, ...]:
    """The items of each GPU: layers 0 ... count - 1, and `count`, the output; `offloaded` of them, from the last."""
    items = count + 1
    on_gpus = items if offloaded is None or offloaded < 0 else min(offloaded, items)
    first = items - on_gpus
    edges = [first + -(-on_gpus * gpu // gpus) for gpu in range(gpus + 1)]
    return tuple(range(start, end) for start, end in pairwise(edges))


def shares(
    engine: str, weights: Weights, config: Mapping[str, Any], layers: tuple[int, int], gpus: int, offloaded: int | None
) -> tuple[Share, ...]:
    """What each GPU holds; `layers`: hidden layers, and drafting layers after them.

    Raises:
        UnsupportedError: more GPUs than layers.
    """
    hidden, drafts = layers
    items = dealt(hidden + drafts, gpus, offloaded)
    if engine in NATIVE and weights.by_layer is not None and len(weights.by_layer.layers) == hidden + drafts:
        of_item = (*weights.by_layer.layers, weights.by_layer.output)
        return tuple(Share(part_of(weights, exactly(sum(of_item[i] for i in own))), own) for own in items)
    if gpus == 1 and len(items[0]) == hidden + drafts + 1:
        return (Share(part_of(weights, exactly(weights.total_bytes)), items[0]),)
    more = UNEVEN.get(engine, 0)
    sizes = _staged(weights, config, hidden, items)
    per_layer = -(-weights.total_bytes // max(hidden, 1))
    return tuple(
        Share(
            part_of(weights, Range(size.low, min(size.high + more * per_layer, weights.total_bytes))),
            range(own.start, own.stop + more),
        )
        for size, own in zip(sizes, items, strict=True)
    )


def _staged(weights: Weights, config: Mapping[str, Any], hidden: int, items: tuple[range, ...]) -> tuple[Range, ...]:
    """Weights of each GPU where a config and a sum are known: as stages of so many layers, hosted ones before them."""
    counts = [max(min(own.stop, hidden) - min(own.start, hidden), 0) for own in items]
    hosted = hidden - sum(counts)
    if not any(counts):
        return (exactly(0),) * len(items)
    if "general.architecture" in config:  # a GGUF whose tensors are not known, or not by the layers of its metadata
        return (Range(0, weights.total_bytes),) * len(items)
    parts = per_stage(weights, config, layers=(*([hosted] if hosted else []), *counts))
    return parts[1:] if hosted else parts


def need(size: CacheSize, share: Share, *, at_peak: bool) -> int:
    """Bytes of the cache on one GPU: the peak where the cache grows with each token, else what is set aside.

    What belongs to no layer counts on each GPU, since nobody knows on which one it lies.
    """
    if share.layers is None or (share.layers.start == 0 and share.layers.stop >= len(size.layers)):
        return (size.peak_bytes if at_peak else size.total_bytes) - size.host_bytes
    own = size.layers[share.layers.start : share.layers.stop]
    held = sum(layer.held - layer.host for layer in own) + size.overhead_bytes
    if not at_peak:
        return held
    after_prefill = sum(layer.after_prefill - layer.host for layer in own) + size.overhead_bytes
    return max(held, after_prefill) + size.transient_bytes


def heaviest(held: tuple[Share, ...]) -> Share:
    """The GPU with the most weights."""
    return max(held, key=lambda share: share.weights.bytes.high)


def fullest(size: CacheSize, held: tuple[Share, ...], *, at_peak: bool) -> Share:
    """The GPU that this workload fills first."""
    return max(held, key=lambda share: share.weights.bytes.high + need(size, share, at_peak=at_peak))
