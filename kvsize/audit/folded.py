"""A geometry by its distinct layers, so that a change to it is made and weighed once for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Sliding,
    Span,
    Store,
)

Folded: TypeAlias = tuple[tuple[Layer, int], ...]  # distinct layers, and how many there are of each
Change: TypeAlias = Callable[[Folded], Folded]


@dataclass(frozen=True, slots=True)
class Facts:
    """A geometry, folded, and what is most common in it. `drafts` are MTP layers that the config names."""

    folded: Folded
    queries: int | None
    hidden: int | None
    store: Attention | None
    window: Span | None
    drafts: int

    @property
    def heads(self) -> Heads | None:
        """The most common heads; None where latents are cached, or nothing."""
        return self.store.entry if self.store is not None and isinstance(self.store.entry, Heads) else None

    @property
    def latent(self) -> Latent | None:
        """The most common latent."""
        return self.store.entry if self.store is not None and isinstance(self.store.entry, Latent) else None

    @property
    def window_name(self) -> str:
        """What the usual window is called."""
        return "chunks" if isinstance(self.window, Chunked) else "window"

    def count(self, holds: Callable[[Layer], bool]) -> int:
        """Layers of which this is so."""
        return sum(count for layer, count in self.folded if holds(layer))


# Keys under which configs count layers for drafting tokens.
DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")


def fold(geometry: Geometry) -> Folded:
    """Equal layers together; which layer a sharing one reads makes no difference."""
    counts: dict[Layer, int] = {}
    for layer in geometry.layers:
        plain = layer if layer.shares is None else replace(layer, shares=0)
        counts[plain] = counts.get(plain, 0) + 1
    return tuple(counts.items())


def facts_of(geometry: Geometry, config: Mapping[str, Any]) -> Facts:
    """What the mistakes below need to know."""
    folded = fold(geometry)
    counts: dict[Attention, int] = {}
    for layer, count in folded:
        for store in layer.stores:
            if isinstance(store, Attention) and not isinstance(store.span, Encoder):
                counts[store] = counts.get(store, 0) + count
    own = {store: count for store, count in counts.items() if not isinstance(store.entry, IndexKey)}
    windows = {store: count for store, count in own.items() if is_window(store.span)}
    most = max(own, key=lambda store: own[store], default=None)
    window = max(windows, key=lambda store: windows[store]).span if windows else None
    nested = config.get("text_config")
    drafts = [text.get(key) for text in (config, nested) if isinstance(text, Mapping) for key in DRAFT_KEYS]
    found = next((n for n in drafts if type(n) is int and 0 < n < 64), len(geometry.drafts))
    return Facts(folded, geometry.num_attention_heads, geometry.hidden_size, most, window, found)


def is_window(span: Span) -> bool:
    """Whether only the newest tokens stay."""
    return isinstance(span, Sliding | Chunked)


# -- changes -----------------------------------------------------------------------------------------------------------


def each_layer(change: Callable[[Layer], Layer]) -> Change:
    """A change of every layer by itself."""
    return lambda folded: tuple((change(layer), count) for layer, count in folded)


def each_store(change: Callable[[Store], Store | None]) -> Change:
    """A change of every store by itself; None drops it."""

    def of(layer: Layer) -> Layer:
        return replace(layer, stores=tuple(kept for store in layer.stores if (kept := change(store)) is not None))

    return each_layer(of)


def each_heads(change: Callable[[Heads], Heads]) -> Change:
    """A change of every store that holds heads."""

    def of(store: Store) -> Store:
        own = isinstance(store, Attention) and isinstance(store.entry, Heads)
        return replace(store, entry=change(store.entry)) if own else store  # type: ignore[union-attr,arg-type]

    return each_store(of)


def each_latent(change: Callable[[Latent], Heads | Latent]) -> Change:
    """A change of every store that holds a latent."""

    def of(store: Store) -> Store:
        own = isinstance(store, Attention) and isinstance(store.entry, Latent)
        return replace(store, entry=change(store.entry)) if own else store  # type: ignore[union-attr,arg-type]

    return each_store(of)


def without(drops: Callable[[Store], bool]) -> Change:
    """No store of this kind at all."""
    return each_store(lambda store: None if drops(store) else store)


def with_span(new: Span, concerns: Callable[[Span], bool]) -> Change:
    """Another span for stores of some spans."""

    def of(store: Store) -> Store:
        return replace(store, span=new) if isinstance(store, Attention) and concerns(store.span) else store

    return each_store(of)
