"""Inverse questions of fit: the fewest GPUs of each kind, the widest KV format."""

from __future__ import annotations

from dataclasses import replace

from kvsize.deployment.advice import NARROWER
from kvsize.deployment.judge import LAYERWISE, Case, surely_fits, with_layout, with_option
from kvsize.deployment.support import runs
from kvsize.gpus import Gpu, GpuSet, table

COUNTS = (1, 2, 4, 8, 16)


def fewest_gpus(case: Case) -> dict[str, int]:
    """For each GPU of the table, how many of them it takes (1, 2, 4, 8 or 16); those that never do are left out."""
    found = {}
    for gpu in table():
        if gpu.kind not in ("datacenter", "workstation", "consumer", "unified") or not runs(case.engine, gpu):
            continue
        count = next(
            (count for count in COUNTS if enough(case, gpu, count) and surely_fits(on(case, gpu, count))), None
        )
        if count is not None:
            found[gpu.key] = count
    return found


def enough(case: Case, gpu: Gpu, count: int) -> bool:
    """Whether the weights alone could fit: spares the engine's own work where they cannot."""
    size = getattr(case.weights, "total_bytes", 0)
    return gpu.usable.high * count > size


def on(case: Case, gpu: Gpu, count: int) -> Case:
    """The same case on other GPUs, heads split over all of them."""
    moved = replace(case, gpus=GpuSet(gpu, count))
    if case.engine in LAYERWISE:
        return moved
    one = replace(case.layout, pipeline=1, data=1)
    return with_layout(replace(with_option(moved, pipeline_parallel_size=1), layout=one), count)


def widest_format(case: Case) -> str | None:
    """The first format that fits, from the one asked for to the narrowest; None if none does."""
    asked = case.workload.k_format
    for name in (asked, *(name for name, _ in NARROWER.get(case.engine, ()))):
        narrowed = replace(case, workload=replace(case.workload, k_format=name, v_format=name))
        if surely_fits(with_option(narrowed, cache_type_k=None, cache_type_v=None)):
            return name
    return None
