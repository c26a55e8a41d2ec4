"""Who pays for a request's blocks: each layer its pages, and by name what the pages and blocks waste."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsize.engines import LayerBytes, Overhead, Workload
from kvsize.engines.vllm.plan import Plan, Stage, request_blocks
from kvsize.engines.vllm.setup import Setup
from kvsize.engines.vllm.specs import DRAFTED, Spec

DRAFT = "drafted layers"
PAGES = "pages filled up to the widest layer's"
SLOTS = "layer slots without a layer"


@dataclass(slots=True)
class _Bill:
    """Running sums: by layer, and by kind of waste."""

    held: dict[int, int] = field(default_factory=dict)
    logical: dict[int, int] = field(default_factory=dict)
    waste: dict[str, int] = field(default_factory=dict)

    def add_waste(self, name: str, size: int) -> None:
        self.waste[name] = self.waste.get(name, 0) + size


def charged(
    count: int, workload: Workload, plan: Plan, setup: Setup
) -> tuple[tuple[LayerBytes, ...], tuple[Overhead, ...]]:
    """Bytes of the workload's blocks by hidden layer (of `count`), and the rest of them by name."""
    bill = _Bill()
    for stage in plan.stages:
        _charge_stage(bill, stage, workload, plan, setup)
    layers = tuple(LayerBytes(bill.logical.get(i, 0), bill.held.get(i, 0), bill.held.get(i, 0)) for i in range(count))
    return layers, tuple(Overhead(name, size) for name, size in bill.waste.items() if size)


def _charge_stage(bill: _Bill, stage: Stage, workload: Workload, plan: Plan, setup: Setup) -> None:
    for group in plan.groups:
        blocks = workload.sequences * request_blocks(group, workload.tokens, setup, workload.encoder_tokens)
        here = group.on(stage.layers)
        for cache in here:
            held = blocks * cache.spec.content
            bill.add_waste(PAGES, blocks * (cache.spec.page - cache.spec.content))
            if cache.layer == DRAFTED:
                bill.add_waste(DRAFT, held)
                continue
            bill.held[cache.layer] = bill.held.get(cache.layer, 0) + held
            kept = workload.sequences * _kept(cache.spec, workload, setup)
            bill.logical[cache.layer] = bill.logical.get(cache.layer, 0) + kept
        bill.add_waste(SLOTS, blocks * (stage.block_bytes - sum(cache.spec.page for cache in here)))


def _kept(spec: Spec, workload: Workload, setup: Setup) -> int:
    """Bytes of one request that its attention can still reach."""
    match spec.kind:
        case "states":
            return spec.state_bytes
        case "sliding" | "chunked":
            return min(spec.reach, workload.tokens) * spec.token_bytes
        case "cross":
            tokens = spec.reach if workload.encoder_tokens is None else min(workload.encoder_tokens, spec.reach)
            return tokens * spec.token_bytes
        case _:
            return -(-workload.tokens // setup.dcp) * spec.token_bytes
