"""Forming KV cache groups: caches that share a block table, and what one block of the pool costs.

vllm@0.33.0 v1/core/kv_cache_planning.py get_kv_cache_groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvsize.engines.vllm.setup import Setup
from kvsize.engines.vllm.specs import Cache, Spec
from kvsize.errors import UnsupportedError

NAMES = {
    "full": "full attention",
    "mla": "latent attention",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "cross": "cross attention",
    "states": "recurrent states",
}


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Caches with one block table. A block id of the group is a page of each of them."""

    caches: tuple[Cache, ...]

    @property
    def spec(self) -> Spec:
        """The first cache's; equal to the others but for page sizes in a group of one type."""
        return self.caches[0].spec

    @property
    def pages(self) -> int:
        """Bytes of one block id, all caches together."""
        return sum(cache.spec.page for cache in self.caches)

    def on(self, layers: Sequence[int]) -> tuple[Cache, ...]:
        """The caches of one pipeline stage's layers; drafted layers (-1) are on the last."""
        return tuple(cache for cache in self.caches if cache.layer in layers)


def form(caches: tuple[Cache, ...], setup: Setup) -> tuple[CacheGroup, ...]:
    """The groups of the whole model.

    Raises:
        UnsupportedError: vLLM cannot bring the caches to one page size, or not without its hybrid manager.
    """
    if not caches:
        return ()
    if not setup.hybrid_manager:
        caches = _promoted(caches)
    if one_type(caches):
        return (CacheGroup(caches),)
    return _equal_groups(_unified(caches), setup)


def one_type(caches: Sequence[Cache]) -> bool:
    """Whether all caches need the same slots for the same tokens, so that one block table serves them all."""
    specs = [cache.spec for cache in caches]
    first = specs[0]
    match first.kind:
        case "full" | "mla":
            return all(spec.full_family for spec in specs)
        case "states":
            return all(
                (spec.kind, spec.page, spec.checkpoint) == (first.kind, first.page, first.checkpoint) for spec in specs
            )
        case _:
            return all((spec.kind, spec.reach) == (first.kind, first.reach) for spec in specs)


def _promoted(caches: tuple[Cache, ...]) -> tuple[Cache, ...]:
    """Without the hybrid manager, windows beside full attention are charged in full."""
    if one_type(caches):
        return caches
    if any(cache.spec.full_family for cache in caches):
        caches = tuple(
            replace(cache, spec=replace(cache.spec, kind="full"))
            if cache.spec.kind in ("sliding", "chunked")
            else cache
            for cache in caches
        )
    if not one_type(caches):
        raise UnsupportedError(
            "without its hybrid KV cache manager vLLM cannot treat these layers as one type",
            hint="Leave --disable-hybrid-kv-cache-manager off.",
        )
    return caches


def _unified(caches: tuple[Cache, ...]) -> tuple[Cache, ...]:
    """One page size for all: smaller pages take more tokens where that fits, else they are filled up."""
    largest = max(cache.spec.page for cache in caches)
    return tuple(replace(cache, spec=_grown(cache.spec, largest)) for cache in caches)


def _grown(spec: Spec, page: int) -> Spec:
    if spec.page == page:
        return spec
    if spec.kind != "states" and page % spec.page == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page))
    if spec.kind == "mla":
        raise UnsupportedError(
            "vLLM cannot pad a latent's page to that of the model's other caches", got=f"{spec.page} and {page} bytes"
        )
    return replace(spec, padded=page)


def _equal_groups(caches: tuple[Cache, ...], setup: Setup) -> tuple[CacheGroup, ...]:
    """Each kind split into groups of one size; the last of a kind may hold fewer caches than it is charged for."""
    kinds: dict[Spec, list[Cache]] = {}
    for cache in caches:
        kinds.setdefault(cache.spec, []).append(cache)
    counts = [len(members) for members in kinds.values()]
    size = _group_size(min(counts), max(counts), setup.rules.group_ratio)
    groups = []
    for members in kinds.values():
        parts = -(-len(members) // size)
        groups += [CacheGroup(tuple(members[part::parts])) for part in range(parts)]
    return tuple(groups)


def _group_size(fewest: int, most: int, ratio: tuple[int, int] | None) -> int:
    """The fewest caches of a kind, or the most where that wastes less."""
    if ratio is not None and most * ratio[1] < fewest * ratio[0]:
        return most
    return fewest


def stages(layers: int, pp: int, per_unit: int) -> list[range]:
    """Which layers each pipeline stage runs. distributed/utils.py get_pp_indices: what is left over goes to the
    middle, the last stage last."""
    units = layers // per_unit
    counts = [units // pp] * pp
    for back in range(2, units % pp + 2):
        counts[-back] += 1
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count * per_unit)
    return [range(start, end) for start, end in pairwise(bounds)]
