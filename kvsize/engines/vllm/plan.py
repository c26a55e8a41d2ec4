"""Requests and the pool: blocks that one request takes, blocks that a budget holds, and the tokens that vLLM prints.

vllm@0.33.0 v1/kv_cache_interface.py max_memory_usage_bytes; v1/core/kv_cache_utils.py get_kv_cache_capacity;
v1/core/kv_cache_planning.py get_kv_cache_configs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import lcm
from typing import assert_never

from kvsize.engines import Group, Pool
from kvsize.engines.vllm import models
from kvsize.engines.vllm.blocks import with_blocks
from kvsize.engines.vllm.groups import NAMES, CacheGroup, form, stages
from kvsize.engines.vllm.setup import Setup
from kvsize.engines.vllm.specs import DRAFTED, Spec, caches
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: its layers, and the bytes of one block id on it (the widest group's pages)."""

    layers: tuple[int, ...]
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of the model and the stages that hold them."""

    groups: tuple[CacheGroup, ...]
    stages: tuple[Stage, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block id on the stage that pays most for it."""
        return max(stage.block_bytes for stage in self.stages)

    @property
    def step_tokens(self) -> int:
        """Tokens over which a request grows evenly."""
        return lcm(*(group.spec.block_size for group in self.groups if group.spec.kind != "states"))


def make(geometry: Geometry, setup: Setup) -> Plan:
    """How vLLM pages this model's cache on one tensor-parallel rank of each stage.

    Raises:
        UnsupportedError: it refuses to.
    """
    groups = form(with_blocks(caches(geometry, setup), geometry, setup), setup)
    shares = [tuple(layers) for layers in stages(len(geometry.layers), setup.pp, models.caches_per_unit(geometry))]
    shares[-1] = (*shares[-1], DRAFTED)
    return Plan(groups, tuple(Stage(share, _block_bytes(groups, share)) for share in shares))


def _block_bytes(groups: tuple[CacheGroup, ...], layers: tuple[int, ...]) -> int:
    return max((sum(cache.spec.page for cache in group.on(layers)) for group in groups), default=0)


# -- one request -------------------------------------------------------------------------------------------------------


def request_blocks(group: CacheGroup, tokens: int, setup: Setup, encoder_tokens: int | None = None) -> int:
    """Block ids that vLLM sets aside for one request; `encoder_tokens` None is the most that one may bring."""
    if group.spec.kind == "cross" and encoder_tokens is not None:
        return _ceil(min(encoder_tokens, group.spec.reach), group.spec.block_size)
    return _blocks(group.spec, tokens, setup)


def _blocks(spec: Spec, tokens: int, setup: Setup) -> int:
    match spec.kind:
        case "full" | "mla":
            return _ceil(_ceil(tokens, setup.dcp), spec.block_size)
        case "sliding":  # one more: the window need not start at a block's edge
            return _ceil(min(spec.reach - 1 + setup.in_flight_tokens, tokens), spec.block_size) + 1
        case "chunked":
            return _ceil(min(spec.reach + setup.in_flight_tokens, tokens), spec.block_size)
        case "cross":
            return _ceil(spec.reach, spec.block_size)
        case "states":
            return state_blocks(spec, tokens, setup)
        case _ as never:
            assert_never(never)


def state_blocks(spec: Spec, tokens: int, setup: Setup) -> int:
    """State blocks of a request: one, and under prefix caching those that other requests may go on from."""
    match setup.rules.state_blocks:
        case "one":
            return 1
        case "by length":
            return _ceil(tokens, spec.block_size)
        case "by mode":
            cached = 1 + int(spec.checkpoint) if setup.prefix_caching else 0
            return 1 + setup.speculative + cached
        case _ as never:
            assert_never(never)


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


# -- a pool ------------------------------------------------------------------------------------------------------------


def pool(plan: Plan, setup: Setup, budget: int) -> Pool:
    """What `budget` bytes on each rank hold, as vLLM plans and prints it.

    Raises:
        UnsupportedError: not even one request of max_model_len fits, so vLLM does not start.
    """
    if not plan.groups:  # no cache at all: the block pool still has its null block
        return Pool(1, setup.block_size or 16, 0, 0, 0.0, 0, 0)
    request = [request_blocks(group, setup.max_model_len, setup) for group in plan.groups]
    _check_fit(plan, setup, budget, sum(request))
    num_blocks = min(budget // stage.block_bytes for stage in plan.stages if stage.block_bytes)
    tokens, concurrency = _printed(plan, setup, num_blocks, sum(request))
    return Pool(
        num_blocks=num_blocks,
        block_size=min(group.spec.block_size for group in plan.groups),
        bytes_per_block=plan.block_bytes,
        tokens=tokens,
        max_concurrency=concurrency,
        request_blocks=sum(request),
        request_bytes=sum(request) * plan.block_bytes,
        groups=tuple(_group(group, blocks) for group, blocks in zip(plan.groups, request, strict=True)),
    )


def _group(group: CacheGroup, blocks: int) -> Group:
    spec = group.spec
    reach = f" {spec.reach:,}" if spec.kind in ("sliding", "chunked") else ""
    return Group(NAMES[spec.kind] + reach, len(group.caches), spec.block_size, group.pages, blocks)


def _printed(plan: Plan, setup: Setup, num_blocks: int, request: int) -> tuple[int, float]:
    """`GPU KV cache size` and `Maximum concurrency`, in the very floating point of the log line."""
    smallest = min(group.spec.block_size for group in plan.groups)
    concurrency = num_blocks / request
    match setup.rules.printed:
        case "blocks":
            tokens = num_blocks * smallest
            return tokens, tokens / setup.max_model_len
        case "groups":
            return num_blocks // len(plan.groups) * smallest * setup.dcp, concurrency
        case "concurrency":
            return int(concurrency * setup.max_model_len), concurrency
        case _ as never:
            assert_never(never)


def _check_fit(plan: Plan, setup: Setup, budget: int, request: int) -> None:
    """kv_cache_planning.py _check_enough_kv_cache_memory, stage by stage."""
    for stage in plan.stages:
        usable = budget - (stage.block_bytes if setup.rules.usable_blocks else 0)
        needed = stage.block_bytes * request
        if needed > usable:
            longest = _longest(plan, setup, stage, usable)
            raise UnsupportedError(
                f"vLLM does not start: one request of {setup.max_model_len:,} tokens takes {needed:,} bytes "
                f"on a rank, of {max(usable, 0):,} usable",
                hint=f"It would start with --max-model-len {longest}."
                if longest
                else "Not even one token fits: give more --kv-memory, or use more ranks.",
            )


def _longest(plan: Plan, setup: Setup, stage: Stage, usable: int) -> int:
    """The longest request that fits (0: none); requests only grow with their tokens."""

    def taken(tokens: int) -> int:
        return sum(request_blocks(group, tokens, setup) for group in plan.groups) * stage.block_bytes

    return bisect_right(range(1, setup.max_model_len), usable, key=taken)  # max_model_len itself does not fit
