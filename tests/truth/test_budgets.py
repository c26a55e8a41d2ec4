"""Start-up figures that operators posted must lie inside the ranges that fit plans with."""

import json
from collections import Counter
from pathlib import Path

from kvsize.budget import GIB, Launch, Machine, Part, vllm, vllm_graphs
from kvsize.ranges import exactly
from kvsize.shape import ModelShape

TRUTH = Path(__file__).parents[2] / "validate" / "truth" / "budgets-vllm.jsonl"
UNIFIED = ("GB10", "Jetson", "Strix")
PRINTED = 0.005  # the figures have two decimals


def rows():
    return [json.loads(line) for line in TRUTH.read_text().splitlines()[1:]]


def drawn(row):
    machine = Machine(
        exactly(int((row["gpu_total_gib"] or 80) * GIB)),
        unified=any(name in (row["gpu"] or "") for name in UNIFIED),
        a100="A100" in (row["gpu"] or ""),
    )
    launch = Launch(
        version=tuple(row["version"]),
        tensor_parallel_size=row["tp"] or 1,
        pipeline_parallel_size=row["pp"] or 1,
        gpu_memory_utilization=row["gpu_memory_utilization"],
        max_num_seqs=row["max_num_seqs"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        enforce_eager=bool(row["enforce_eager"]),
    )
    shape = ModelShape(**row["shape"])
    budget = vllm(shape, machine, Part("weights", exactly(int((row["weights_gib"] or 0) * GIB)), "exact", ""), launch)
    ranges = {part.name: part.bytes for part in budget.parts}
    ranges.setdefault("cuda_graphs", vllm_graphs(shape, machine, launch).bytes)
    return budget, ranges, machine, launch, shape


def test_nine_in_ten_printed_figures_lie_inside_their_range():
    inside, seen = Counter(), Counter()
    for row in rows():
        budget, ranges, *_ = drawn(row)
        figures = {name: row[f"{key}_gib"] for name, key in FIGURES.items()}
        if row["weights_gib"] and row["gpu_total_gib"] and row["gpu_memory_utilization"]:
            ranges["available"], figures["available"] = budget.room, row["available_kv_gib"]
        for name, value in figures.items():
            if value is None:
                continue
            slack = 4 * PRINTED if name == "available" else PRINTED
            seen[name] += 1
            inside[name] += ranges[name].low / GIB - slack <= value <= ranges[name].high / GIB + slack
    assert dict(seen) == {"activations": 37, "non_torch": 36, "cuda_graphs": 9, "available": 16}
    assert sum(inside.values()) >= 0.9 * sum(seen.values()), dict(inside)


FIGURES = {"activations": "activation_peak", "non_torch": "non_torch", "cuda_graphs": "cuda_graph"}


def test_dense_models_on_one_discrete_gpu_have_a_narrow_range():
    wide, seen = [], 0
    for row in rows():
        budget, _, machine, launch, shape = drawn(row)
        if shape.moe or shape.multimodal or machine.unified or launch.tensor_parallel_size > 1:
            continue
        if not row["gpu_total_gib"]:
            continue
        seen += 1
        if budget.room.width > 0.08 * machine.total.high:
            wide.append((row["model"], row["gpu"], budget.room.width / machine.total.high))
    assert seen > 15
    assert len(wide) <= 1, wide  # a 14.6 GiB T4 with 32,768 batched tokens


def test_graphs_were_outside_the_budget_before_0_20():
    shape = ModelShape(32, 4096, 128_256, 14_336, moe=False, multimodal=False)
    machine, weights = Machine(exactly(80 * GIB)), Part("weights", exactly(15 * GIB), "exact", "")
    old, new = (vllm(shape, machine, weights, Launch(version=version)) for version in ((0, 19), (0, 33)))
    assert "cuda_graphs" not in {part.name for part in old.parts}
    assert "cuda_graphs" in {part.name for part in new.parts}
    assert old.usable.high == 72 * GIB
    assert new.usable.high == -(-80 * GIB * 92 // 100)
