"""What costs, in words."""

from __future__ import annotations

from collections.abc import Iterator

from kvsize.engines.vllm import models
from kvsize.engines.vllm.groups import CacheGroup
from kvsize.engines.vllm.plan import Plan, request_blocks
from kvsize.engines.vllm.setup import Setup
from kvsize.geometry import Attention, Chunked, Geometry, Heads, Sliding


def notes(geometry: Geometry, plan: Plan, setup: Setup, tokens: int) -> tuple[str, ...]:
    """One sentence for each thing that makes the figure differ from tokens x bytes per token."""
    if not plan.groups:
        encoder = geometry.model_type in models.ENCODER_ONLY
        return ("vLLM runs this model as an encoder: it prefills and keeps no KV cache",) if encoder else ()
    return (
        *_ranks(geometry, plan, setup),
        *_slots(plan),
        *_windows(geometry, plan, setup, tokens),
        *_states(plan, setup, tokens),
        *_formats(plan, setup),
        *_printed(plan, setup),
    )


def _ranks(geometry: Geometry, plan: Plan, setup: Setup) -> Iterator[str]:
    if setup.tp > 1:
        yield f"bytes are those of one of {setup.tp} tensor-parallel ranks; each holds as much"
    if setup.pp > 1:
        sizes = ", ".join(f"{stage.block_bytes:,}" for stage in plan.stages)
        yield (
            f"the total is that of one rank of each of the {setup.pp} pipeline stages together; a block takes {sizes} "
            "bytes on them, and the largest sets the pool"
        )
    kinds = {group.spec.kind for group in plan.groups}
    if setup.tp > 1 and "mla" in kinds and setup.dcp == 1:
        yield "the latent is one vector a token and lies whole on every tensor-parallel rank"
    counts = [
        s.entry.count
        for layer in geometry.layers
        for s in layer.stores
        if isinstance(s, Attention) and isinstance(s.entry, Heads)
    ]
    if counts and min(counts) < setup.tp:
        yield f"{min(counts)} KV heads on {setup.tp} ranks: ranks hold copies of the same heads"


def _slots(plan: Plan) -> Iterator[str]:
    widest = max(len(group.caches) for group in plan.groups)
    empty = sum(widest - len(group.caches) for group in plan.groups)
    if empty:
        yield (
            f"{len(plan.groups)} groups of {widest} layer slots share one pool of blocks; slots without a layer, which "
            f"are paid for: {empty}"
        )


def _first(plan: Plan, *kinds: str) -> CacheGroup | None:
    return next((group for group in plan.groups if group.spec.kind in kinds), None)


def _windows(geometry: Geometry, plan: Plan, setup: Setup, tokens: int) -> Iterator[str]:
    group = _first(plan, "sliding", "chunked")
    if group is not None:
        kept = request_blocks(group, tokens, setup) * group.spec.block_size
        yield (
            f"a window of {group.spec.reach:,} tokens is given up to {setup.in_flight_tokens:,} more, for those of the "
            f"steps in flight (--max-num-batched-tokens {setup.batch_tokens:,}): room for {kept:,} tokens a request"
        )
    spans = [s.span for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    if (
        _first(plan, "full", "mla") is not None
        and group is None
        and any(isinstance(s, Sliding | Chunked) for s in spans)
    ):
        yield "without the hybrid KV cache manager, layers with windows beside full attention are charged in full"
    cross = _first(plan, "cross")
    if cross is not None:
        yield (
            f"cross attention is given {cross.spec.reach:,} encoder tokens a request, the step's whole budget, "
            "however few the encoder yields"
        )


def _states(plan: Plan, setup: Setup, tokens: int) -> Iterator[str]:
    group = _first(plan, "states")
    if group is None:
        return
    blocks = request_blocks(group, tokens, setup)
    cached = " (prefix caching keeps more than the one in use)" if blocks > 1 + setup.speculative else ""
    yield f"state blocks that each recurrent layer takes a request: {blocks}{cached}"
    attention = _first(plan, "full", "mla", "sliding")
    spec = group.spec
    if attention is not None and spec.page > spec.content:
        yield (
            f"a block is {attention.spec.block_size:,} tokens, so that attention pages cover a layer's states of "
            f"{spec.content:,} bytes; states are filled up to {spec.page:,}"
        )


def _formats(plan: Plan, setup: Setup) -> Iterator[str]:
    if not setup.kv.packed:
        return
    names = {cache.spec.shape[-1] for group in plan.groups for cache in group.caches if cache.spec.kind == "full"}
    if setup.dense.name in names:
        yield f"TurboQuant keeps the first two and the last two layers in {setup.dense.name}"


def _printed(plan: Plan, setup: Setup) -> Iterator[str]:
    match setup.rules.printed:
        case "blocks":
            yield "this release prints blocks x block size as its KV cache size"
        case "groups":
            if len(plan.groups) > 1:
                yield (
                    "this release prints blocks / groups x block size as its KV cache size, far below what fits: "
                    "trust the concurrency"
                )
        case "concurrency":
            yield "the printed KV cache size is concurrency x max_model_len, so it moves with both"
