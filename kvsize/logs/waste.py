"""What ranks hold more than once."""

from __future__ import annotations

from kvsize.geometry import Attention, Geometry, Heads, Latent


def copies(geometry: Geometry, ranks: int) -> tuple[str, int] | None:
    """(in words, how often) the same cache lies on `ranks` tensor-parallel ranks; None where it lies on one each."""
    if ranks < 2:
        return None
    entries = [store.entry for layer in geometry.layers for store in layer.stores if isinstance(store, Attention)]
    if any(isinstance(entry, Latent) for entry in entries):
        return f"each of {ranks} ranks holds the whole latent cache", ranks
    counts = [entry.count for entry in entries if isinstance(entry, Heads)]
    if not counts or max(counts) >= ranks:
        return None
    return f"{max(counts)} KV heads on {ranks} ranks: the same heads lie on {ranks // max(counts)}", ranks // max(
        counts
    )
