"""Mistakes that people and tools make with a model's geometry, as changes to it, each with its words and its price.

A mistake belongs to an axis, and two of one axis exclude each other. The price says how readily it is believed: 100 for
a usual mistake, less for what hardly is one, more for what is rarely seen. Nothing here knows a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

from kvsize.audit.folded import (
    Change,
    Facts,
    Folded,
    each_heads,
    each_latent,
    each_layer,
    each_store,
    is_window,
    with_span,
    without,
)
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Full,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    Store,
)
from kvsize.report import DeviationDoc

Kind: TypeAlias = Literal["mistake", "semantics", "unit"]

# The order in which changes are made: which layers attend, what they hold, for which tokens, which of them count.
AXES = ("layers", "sharing", "states", "index", "latent", "heads", "width", "values", "windows", "counted")
MOST = 3  # mistakes at once


@dataclass(frozen=True, slots=True)
class Deviation:
    """One step away from the true figure, in words, and its price."""

    key: str
    kind: Kind
    words: str
    price: int

    def document(self) -> DeviationDoc:
        """Its part in a document."""
        return DeviationDoc(self.key, self.kind, self.words)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A deviation that changes the geometry."""

    axis: str
    deviation: Deviation
    change: Change


# -- combinations ------------------------------------------------------------------------------------------------------


def combined(mistakes: tuple[Mistake, ...], folded: Folded) -> Iterator[tuple[tuple[Deviation, ...], Folded]]:
    """Every set of up to MOST mistakes of different axes, each of which makes a difference; none at all first."""
    seen: set[Folded] = set()
    ordered = sorted(mistakes, key=lambda mistake: AXES.index(mistake.axis))
    for size in range(MOST + 1):
        sets = sorted(combinations(ordered, size), key=lambda chosen: sum(each.deviation.price for each in chosen))
        for chosen in sets:
            changed = _apply(chosen, folded) if len({each.axis for each in chosen}) == size else None
            if changed is not None and changed not in seen:
                seen.add(changed)
                yield tuple(each.deviation for each in chosen), changed


def _apply(chosen: tuple[Mistake, ...], folded: Folded) -> Folded | None:
    for mistake in chosen:
        changed = mistake.change(folded)
        if changed == folded:
            return None
        folded = changed
    return folded


# -- the mistakes ------------------------------------------------------------------------------------------------------


def mistakes(facts: Facts) -> tuple[Mistake, ...]:
    """Those that mean something for this model."""
    return tuple(mistake for rule in RULES for mistake in rule(facts))


def _mistake(axis: str, key: str, price: int, words: str, change: Change, kind: Kind = "mistake") -> Mistake:
    return Mistake(axis, Deviation(key, kind, words, price), change)


def layers_rule(facts: Facts) -> Iterator[Mistake]:
    """Layers that do not attend taken for some that do; MTP layers counted too."""
    total, attend = facts.count(lambda _: True), facts.count(_attends)
    if facts.store is not None and 0 < attend < total:
        attention = Layer((facts.store,))
        words = f"all {total} layers taken as attention; {attend} are"
        change = each_layer(lambda layer: layer if _attends(layer) else attention)
        yield _mistake("layers", "all-attention", 90, words, change)
    if facts.drafts:
        extra = (facts.folded[-1][0], facts.drafts)
        words = f"{_layers(facts.drafts, 'MTP')} counted too"
        yield _mistake("layers", "mtp", 100, words, lambda folded: (*folded, extra), "semantics")


def _attends(layer: Layer) -> bool:
    """Whether it has per-token entries of its own, or reads those of another layer."""
    return layer.shares is not None or any(not isinstance(store, Recurrent) for store in layer.stores)


def sharing_rule(facts: Facts) -> Iterator[Mistake]:
    """Sharing layers given a cache of their own."""
    count = facts.count(lambda layer: layer.shares is not None)
    if count:
        words = f"sharing ignored: {_layers(count)} that read another's cache counted again"
        yield _mistake("sharing", "sharing", 90, words, each_layer(lambda layer: replace(layer, shares=None)))


def states_rule(facts: Facts) -> Iterator[Mistake]:
    """Constant states left out."""
    if facts.count(lambda layer: any(isinstance(store, Recurrent) for store in layer.stores)):
        change = without(lambda store: isinstance(store, Recurrent))
        yield _mistake("states", "states", 60, "recurrent states left out", change)
        words = "convolution states without their oldest column, as vLLM and SGLang keep them"
        yield _mistake("states", "short-conv", 70, words, each_store(_without_a_column), "semantics")


def _without_a_column(store: Store) -> Store:
    if not isinstance(store, Recurrent):
        return store
    states = (
        replace(state, shape=(*state.shape[:-1], state.shape[-1] - 1))
        if state.role == "conv" and state.shape[-1] > 1
        else state
        for state in store.states
    )
    return replace(store, states=tuple(states))


def index_rule(facts: Facts) -> Iterator[Mistake]:
    """Keys of a sparse-attention indexer left out; compressed entries taken one a token."""
    stores = [store for layer, _ in facts.folded for store in layer.stores]
    if any(isinstance(store, Attention) and isinstance(store.entry, IndexKey) for store in stores):
        change = without(lambda store: isinstance(store, Attention) and isinstance(store.entry, IndexKey))
        yield _mistake("index", "index", 80, "index keys left out", change)
    if any(isinstance(store, Compressed) for store in stores):
        words = "compression ignored: one entry for every token"
        yield _mistake("index", "compression", 100, words, each_store(_uncompressed))


def _uncompressed(store: Store) -> Store:
    return Attention(Heads(1, store.dim, 0)) if isinstance(store, Compressed) else store


def latent_rule(facts: Facts) -> Iterator[Mistake]:
    """MLA taken for ordinary heads, or its latent miscounted."""
    latent = facts.latent
    if latent is None:
        return
    heads = latent.expanded
    words = f"the MLA latent expanded to per-head K and V: {heads.count} heads x ({heads.k_dim} + {heads.v_dim})"
    yield _mistake("latent", "expanded", 90, words, each_latent(lambda own: own.expanded))
    twice = f"the latent counted for K and again for V: 2 x ({latent.rank} + {latent.rope_dim})"
    change = each_latent(lambda own: Latent(2 * own.rank, 2 * own.rope_dim, own.expanded))
    yield _mistake("latent", "latent-twice", 110, twice, change)
    if latent.rope_dim:
        bare = each_latent(lambda own: Latent(own.rank, 0, own.expanded))
        yield _mistake("latent", "no-rope", 110, f"the latent without its {latent.rope_dim} rotary elements", bare)
        ranks = each_latent(lambda own: Latent(2 * own.rank, 0, own.expanded))
        yield _mistake(
            "latent", "two-ranks", 115, f"2 x {latent.rank} in place of {latent.rank} + {latent.rope_dim}", ranks
        )
    if facts.hidden:
        whole = Heads(1, facts.hidden, facts.hidden)
        words = f"the MLA latent taken as K and V of hidden_size ({facts.hidden:,})"
        yield _mistake("latent", "latent-hidden", 110, words, each_latent(lambda _: whole))


def heads_rule(facts: Facts) -> Iterator[Mistake]:
    """Another number of heads than is cached."""
    heads, queries = facts.heads, facts.queries
    if heads is None or not queries:
        return
    if heads.broadcast:
        words = f"{heads.count} KV heads, as most engines keep them; transformers repeats them {heads.broadcast} times"
        once = each_heads(lambda own: replace(own, broadcast=None))
        yield _mistake("heads", "kv-once", 60, words, once, "semantics")
    yield _mistake("heads", "query-heads", 100, _query_words(queries, heads.count), each_heads(_counting(queries)))
    group = queries // heads.count
    if group not in (heads.count, queries) and group > 1:
        words = f"the {group} query heads of a group counted as the number of KV heads ({heads.count})"
        yield _mistake("heads", "group-size", 140, words, each_heads(_counting(group)))
    kinds = {s.entry for layer, _ in facts.folded for s in layer.stores if isinstance(s, Attention)}
    if len({kind for kind in kinds if isinstance(kind, Heads)}) > 1:
        words = f"every layer given the heads of most layers ({heads.count} x {heads.k_dim})"
        yield _mistake("heads", "one-kind", 110, words, each_heads(lambda _: heads))
    if facts.hidden and facts.hidden != queries * heads.k_dim:
        words = f"hidden_size ({facts.hidden:,}) in place of KV heads x head_dim ({heads.count} x {heads.k_dim})"
        whole = Heads(1, facts.hidden, facts.hidden)
        yield _mistake("heads", "hidden-size", 105, words, each_heads(lambda _: whole))


def _counting(count: int) -> Callable[[Heads], Heads]:
    return lambda own: replace(own, count=count, broadcast=None)


def _query_words(queries: int, kept: int) -> str:
    if kept == 1:
        return f"multi-query ignored: {queries} query heads counted where 1 KV head is kept ({queries}x)"
    times = f"{queries // kept}" if queries % kept == 0 else f"{queries / kept:.1f}"
    return f"{queries} query heads counted where {kept} KV heads are kept ({times}x)"


def width_rule(facts: Facts) -> Iterator[Mistake]:
    """head_dim worked out from hidden_size where the model has its own."""
    heads = facts.latent.expanded if facts.latent is not None else facts.heads
    if heads is None or not facts.queries or not facts.hidden or facts.hidden < facts.queries:
        return
    width = facts.hidden // facts.queries
    if width not in (heads.k_dim, 0) or heads.v_dim != width:
        words = (
            f"head_dim taken as hidden_size / heads ({facts.hidden:,} / {facts.queries} = {width}), not {heads.k_dim}"
        )
        change = each_heads(lambda own: replace(own, k_dim=width, v_dim=width))
        yield _mistake("width", "hidden-per-head", 100, words, change)


def values_rule(facts: Facts) -> Iterator[Mistake]:
    """V forgotten, or as wide as K where it is not."""
    heads = facts.latent.expanded if facts.latent is not None else facts.heads
    if heads is None:
        return
    yield _mistake(
        "values", "keys-only", 140, "K alone counted, without V", each_heads(lambda own: replace(own, v_dim=0))
    )
    if heads.v_dim != heads.k_dim:
        words = f"V taken as wide as K ({heads.k_dim}), not {heads.v_dim}"
        yield _mistake("values", "wide-v", 70, words, each_heads(lambda own: replace(own, v_dim=own.k_dim)))


def windows_rule(facts: Facts) -> Iterator[Mistake]:
    """Windows ignored, or taken for all layers."""
    if facts.window is None:
        return
    name, size, count = _window(facts)
    words = f"{_layers(count, name)} counted in full, their {facts.window_name} of {size:,} ignored"
    yield _mistake("windows", "in-full", 90, words, with_span(Full(), is_window))
    if facts.count(_is_full):
        words = f"every layer given the {facts.window_name} of {size:,}"
        change = with_span(facts.window, lambda span: isinstance(span, Full))
        yield _mistake("windows", "window-everywhere", 110, words, change)


def counted_rule(facts: Facts) -> Iterator[Mistake]:
    """Layers of one kind left out."""
    if facts.window is None or not facts.count(_is_full):
        return
    name, _, count = _window(facts)
    words = f"{_layers(count, name)} left out: {facts.count(_is_full)} of {facts.count(lambda _: True)} counted"
    yield _mistake(
        "counted", "windows-out", 100, words, without(lambda s: isinstance(s, Attention) and is_window(s.span))
    )
    full = without(lambda store: isinstance(store, Attention) and isinstance(store.span, Full))
    yield _mistake("counted", "full-out", 130, f"{_layers(facts.count(_is_full), 'full')} left out", full)


def _window(facts: Facts) -> tuple[str, int, int]:
    """The usual window: what its layers are called, its tokens, and how many layers have one."""
    count = facts.count(lambda layer: any(isinstance(s, Attention) and is_window(s.span) for s in layer.stores))
    match facts.window:
        case Chunked(size=size):
            return "chunked", size, count
        case Sliding(window=size):
            return "sliding", size, count
        case _:
            return "", 0, 0


def _is_full(layer: Layer) -> bool:
    return any(isinstance(store, Attention) and isinstance(store.span, Full) for store in layer.stores)


def _layers(count: int, name: str = "") -> str:
    return f"{count} {name + ' ' if name else ''}layer{'' if count == 1 else 's'}"


RULES = (
    layers_rule,
    sharing_rule,
    states_rule,
    index_rule,
    latent_rule,
    heads_rule,
    width_rule,
    values_rule,
    windows_rule,
    counted_rule,
)
