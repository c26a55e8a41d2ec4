"""What the caches of an older release held: the present geometry, rewritten change by change.

Each row of CHANGES was found by running both neighbouring releases on the same configs (validate/truth/
transformers-releases.jsonl). `first` is the first release with the present behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvsize.engines.transformers.versions import FIRST_RELEASE, OLDEST, Number, Release
from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Full, Geometry, Heads, IndexKey, Latent, Layer, Recurrent, Sliding, Store

Rewrite = Callable[[Geometry], tuple[Layer, ...]]


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the first release that has it, whom it concerns, and what a layer held before (from `since` on)."""

    first: Number
    concerns: Callable[[Geometry], bool]
    before: Rewrite
    note: str
    since: Number = OLDEST
    dynamic_only: bool = False


def as_of(geometry: Geometry, release: Release, *, static: bool) -> tuple[Geometry, tuple[str, ...]]:
    """The geometry as that release cached it, and what is different from today.

    Raises:
        UnsupportedError: the release does not have this model, or keeps its cache elsewhere.
    """
    born = FIRST_RELEASE.get(geometry.model_type)
    if born is not None and not release.has(born):
        since = f"{born[0]}.{born[1]}"
        raise UnsupportedError(
            f"transformers {release.full_name} does not have {geometry.model_type} yet",
            hint=f"It came with {since}: --engine transformers@{since}",
        )
    if geometry.model_type == "recurrent_gemma" and not release.has((5, 4, 0)):
        raise UnsupportedError(
            "before 5.4 RecurrentGemma kept its windows in module buffers", hint="Use @5.4 or newer."
        )
    if geometry.model_type == "gemma3n_text" and static and not release.has((5, 6, 0)):
        raise UnsupportedError(
            "before 5.6 Gemma-3n's static cache held its source layers twice", hint="Use @5.6 or newer."
        )
    notes = []
    geometry = replace(geometry, layers=each(_repeated)(geometry))
    for change in CHANGES:
        past = not release.has(change.first) and release.has(change.since)
        if past and change.concerns(geometry) and not (static and change.dynamic_only):
            geometry = replace(geometry, layers=change.before(geometry))
            notes.append(f"before {change.first[0]}.{change.first[1]} {change.note}")
    return geometry, tuple(notes)


def each(rewrite: Callable[[Store], Store]) -> Rewrite:
    """A rewrite of every store by itself."""

    def before(geometry: Geometry) -> tuple[Layer, ...]:
        return tuple(
            replace(layer, stores=tuple(rewrite(store) for store in layer.stores)) for layer in geometry.layers
        )

    return before


def _repeated(store: Store) -> Store:
    """Every release caches Falcon's heads after repeating them for the query heads."""
    if isinstance(store, Attention) and isinstance(store.entry, Heads) and store.entry.broadcast:
        return replace(store, entry=Heads(store.entry.broadcast, store.entry.k_dim, store.entry.v_dim))
    return store


def _expanded(store: Store) -> Store:
    if isinstance(store, Attention) and isinstance(store.entry, Latent):
        return replace(store, entry=store.entry.expanded)
    return store


def _in_activation_format(store: Store) -> Store:
    if isinstance(store, Recurrent) and store.kind in ("mamba", "mamba2", "gated_delta"):
        states = tuple(replace(s, format=None) if s.role == "recurrent" else s for s in store.states)
        return replace(store, states=states)
    return store


def _rolling(store: Store) -> Store:
    return replace(store, rolling=True) if isinstance(store, Recurrent) else store


def _without_window(store: Store) -> Store:
    return replace(store, span=Full()) if isinstance(store, Attention) else store


def _narrower_window(store: Store) -> Store:
    if isinstance(store, Attention) and isinstance(store.span, Sliding) and store.span.window > 1:
        return replace(store, span=Sliding(store.span.window - 1))
    return store


def _index_keys_everywhere(geometry: Geometry) -> tuple[Layer, ...]:
    key = next(s for layer in geometry.layers for s in layer.stores if _is_index(s))
    return tuple(
        layer if any(_is_index(s) for s in layer.stores) else replace(layer, stores=(*layer.stores, key))
        for layer in geometry.layers
    )


def _conv_state_everywhere(geometry: Geometry) -> tuple[Layer, ...]:
    state = next((s for layer in geometry.layers for s in layer.stores if isinstance(s, Recurrent)), None)
    if state is None:
        return geometry.layers
    return tuple(
        layer if state in layer.stores else replace(layer, stores=(*layer.stores, state)) for layer in geometry.layers
    )


def _is_index(store: Store) -> bool:
    return isinstance(store, Attention) and isinstance(store.entry, IndexKey)


def _of(*types: str) -> Callable[[Geometry], bool]:
    return lambda geometry: geometry.model_type in types


def _latent(indexed: bool) -> Callable[[Geometry], bool]:
    def concerns(geometry: Geometry) -> bool:
        stores = [store for layer in geometry.layers for store in layer.stores]
        has_latent = any(isinstance(s, Attention) and isinstance(s.entry, Latent) for s in stores)
        return has_latent and any(_is_index(s) for s in stores) == indexed

    return concerns


def _shares_nothing(geometry: Geometry) -> bool:
    types = ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
    return geometry.model_type in types and all(layer.shares is None for layer in geometry.layers)


COMMON_STATES = ("mamba", "mamba2", "falcon_mamba", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "zamba2")
# These kept float32 states in cache classes of their own, before they moved to the common one.
OWN_STATES = ("jamba", "zamba", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
IN_ACTIVATIONS = "recurrent states were in the activations' format"

CHANGES: tuple[Change, ...] = (
    Change(
        (5, 15, 0), _latent(indexed=False), each(_expanded), "MLA models cached every head's K and V, not the latent"
    ),
    Change(
        (5, 18, 0), _latent(indexed=True), each(_expanded), "MLA models with an indexer cached every head's K and V"
    ),
    Change((5, 14, 0), _of(*COMMON_STATES), each(_in_activation_format), IN_ACTIVATIONS),
    Change((5, 14, 0), _of(*OWN_STATES), each(_in_activation_format), IN_ACTIVATIONS, since=(5, 5, 0)),
    Change((5, 15, 0), _of("olmo_hybrid"), each(_rolling), "convolution states had a column less"),
    Change(
        (5, 14, 0),
        _shares_nothing,
        each(_without_window),
        "a model that shares no layers lost its windows",
        dynamic_only=True,
    ),
    Change((5, 20, 0), _of("mimo_v2_flash"), each(_narrower_window), "windows were one token narrower"),
    Change((5, 6, 0), _of("glm_moe_dsa"), _index_keys_everywhere, "every layer kept index keys"),
    Change((5, 5, 0), _of("lfm2", "lfm2_moe"), _conv_state_everywhere, "attention layers kept a convolution state too"),
)
