"""What formulas in common use say for the same request, so that an answer can tell how far off they are.

Both multiply one layer's figure by the number of layers, all tokens kept: 2 x layers x query heads x head_dim x tokens
(from before grouped-query attention), and the same with KV heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import CacheSize, Workload
from kvsize.formats import FORMATS
from kvsize.geometry import Attention, Chunked, Compressed, Encoder, Geometry, Heads, Latent, Recurrent, Sliding

TOLERANCE = 50  # off by less than a 50th is near enough


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula's text, what it says for this request, and what it does not know about this model."""

    text: str
    bytes: int
    misses: str

    def is_off(self, true_bytes: int) -> bool:
        """Whether it misses the true figure by 2 % or more."""
        return abs(self.bytes - true_bytes) * TOLERANCE >= true_bytes


def misleading(geometry: Geometry, workload: Workload, size: CacheSize) -> list[Formula]:
    """The formulas that are off for this request; none for an engine's own formats, which they do not cover."""
    if size.k_format not in FORMATS or size.v_format not in FORMATS or not size.total_bytes:
        return []
    return [f for f in formulas(geometry, workload, size) if f.is_off(size.total_bytes)]


def formulas(geometry: Geometry, workload: Workload, size: CacheSize) -> list[Formula]:
    """Each formula with this model's numbers put in."""
    heads = typical_heads(geometry)
    if heads is None:
        return []
    widths = "head_dim" if heads.k_dim == heads.v_dim else "(k_dim + v_dim)"
    two = "2 x " if heads.k_dim == heads.v_dim else ""
    blind = blind_spots(geometry)
    found = []
    queries = geometry.num_attention_heads
    if queries and queries != heads.count:
        missed = ["grouped KV heads", *blind]
        text = f"{two}layers x query heads x {widths}"
        found.append(Formula(text, _bytes(geometry, queries, heads, workload, size), "; ".join(missed)))
    if blind:
        text = f"{two}layers x KV heads x {widths}"
        found.append(Formula(text, _bytes(geometry, heads.count, heads, workload, size), "; ".join(blind)))
    return found


def _bytes(geometry: Geometry, count: int, heads: Heads, workload: Workload, size: CacheSize) -> int:
    times = len(geometry.layers) * workload.tokens * workload.sequences
    key, value = FORMATS[size.k_format], FORMATS[size.v_format]
    per_head = _whole(key.block_elements, key.block_bytes, heads.k_dim) + _whole(
        value.block_elements, value.block_bytes, heads.v_dim
    )
    return times * count * per_head


def _whole(block_elements: int, block_bytes: int, elements: int) -> int:
    return -(-elements // block_elements) * block_bytes


def typical_heads(geometry: Geometry) -> Heads | None:
    """The heads of most attention layers, decompressed where they are a latent."""
    counts: dict[Heads, int] = {}
    for layer in geometry.layers:
        for store in layer.stores:
            entry = store.entry if isinstance(store, Attention) else None
            heads = entry.expanded if isinstance(entry, Latent) else entry
            if isinstance(heads, Heads):
                counts[heads] = counts.get(heads, 0) + 1
                break
    return max(counts, key=lambda heads: counts[heads]) if counts else None


def blind_spots(geometry: Geometry) -> list[str]:
    """What the formulas do not know about this model."""
    stores = [store for layer in geometry.layers for store in layer.stores]
    attention = [store for store in stores if isinstance(store, Attention)]
    seen = {
        "the MLA latent": any(isinstance(store.entry, Latent) for store in attention),
        "windows": any(isinstance(store.span, Sliding | Chunked) for store in attention),
        "the encoder's keys and values": any(isinstance(store.span, Encoder) for store in attention),
        "compressed entries": any(isinstance(store, Compressed) for store in stores),
        "recurrent states": any(isinstance(store, Recurrent) for store in stores),
        "shared caches": any(layer.shares is not None for layer in geometry.layers),
        "layers without a cache": any(not layer.stores for layer in geometry.layers),
        "heads that differ between layers": len({s.entry for s in attention if isinstance(s.entry, Heads)}) > 1,
    }
    return [name for name, there in seen.items() if there]
