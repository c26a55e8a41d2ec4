"""One question put to everything at once: does this workload fit on these GPUs, under this engine?

Brings together what each part knows: the engine its cache, the weights their share of a rank, the budget what is left.
plan.py decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvsize.budget import Budget, Launch, Machine, Part, budget
from kvsize.engines import CacheSize, Workload, load_engine
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry
from kvsize.gpus import GpuSet
from kvsize.plan import Capacity, Question, Verdict, capacity, verdict
from kvsize.ranges import Range
from kvsize.shape import ModelShape
from kvsize.weights import UnknownWeights, Weights, as_loaded
from kvsize.weights.ranks import beside, per_rank

# Engines that cut a budget into blocks beforehand, and can be asked what it holds.
POOLED = ("vllm", "sglang", "trtllm")
# Engines that take several GPUs as one large device, layer by layer.
LAYERWISE = ("llama.cpp", "ollama", "transformers", "mlx")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the model is spread: ranks that split heads, stages, replicas, experts' ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of all replicas."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that decides the answer; changing one field asks another question."""

    geometry: Geometry
    shape: ModelShape
    config: Mapping[str, Any]
    weights: Weights | UnknownWeights
    gpus: GpuSet
    engine: str
    options: Any
    workload: Workload
    launch: Launch
    layout: Layout


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank answers. `budget` and `headroom` are None where the weights are unknown."""

    case: Case
    size: CacheSize
    need_bytes: int
    verdict: Verdict = "unknown"
    budget: Budget | None = None
    capacity: Capacity | None = None

    @property
    def headroom(self) -> Range | None:
        """What the cache leaves free: negative where it does not fit."""
        if self.budget is None:
            return None
        return Range(self.budget.room.low - self.need_bytes, self.budget.room.high - self.need_bytes)


def judge(case: Case) -> Outcome:
    """Size the cache, draw up the budget, and decide; how much more would fit is left open.

    Raises:
        UnsupportedError: the engine refuses this model, format or layout.
    """
    size = sized(case, case.workload.tokens, on_one_replica(case))
    need = needed(case, size)
    if isinstance(case.weights, UnknownWeights):
        return Outcome(case, size, need)
    share = weights_on_a_rank(case, case.weights)
    asked = question(case, share)
    return Outcome(case, size, need, verdict(asked), drawn(case, share, asked.tokens, asked.sequences))


def evaluate(case: Case) -> Outcome:
    """As judge, with the longest context and the most sequences (of all replicas) that fit for certain."""
    outcome = judge(case)
    if isinstance(case.weights, UnknownWeights):
        return outcome
    found = capacity(question(case, weights_on_a_rank(case, case.weights)))
    return replace(outcome, capacity=replace(found, max_sequences=found.max_sequences * case.layout.data))


def question(case: Case, share: Part) -> Question:
    """What plan.py asks of one rank that holds this share of the weights."""
    return Question(
        case.workload.tokens,
        on_one_replica(case),
        holds=lambda tokens, sequences, left: holds(case, tokens, sequences, left),
        room=lambda tokens, sequences: drawn(case, share, tokens, sequences).room,
        max_tokens=case.geometry.max_tokens or 2**24,
    )


def on_one_replica(case: Case) -> int:
    """Sequences that one data-parallel replica serves."""
    return -(-case.workload.sequences // case.layout.data)


def sized(case: Case, tokens: int, sequences: int, cache_bytes: int | None = None) -> CacheSize:
    """The engine's own answer on one rank; with `cache_bytes`, also what a pool of that size holds."""
    options = case.options
    if cache_bytes is not None and case.engine in POOLED:
        options = replace(options, kv_memory=cache_bytes)
    workload = replace(case.workload, tokens=tokens, sequences=sequences)
    return load_engine(case.engine).size(case.geometry, workload, options)


def needed(case: Case, size: CacheSize) -> int:
    """Bytes on the device: the peak where the cache grows with each token, else what is set aside."""
    return (size.peak_bytes if case.engine == "transformers" else size.total_bytes) - size.host_bytes


def holds(case: Case, tokens: int, sequences: int, cache_bytes: int) -> bool:
    """Whether the engine keeps that many requests in that many bytes."""
    try:
        size = sized(case, tokens, sequences, cache_bytes)
    except UnsupportedError:  # too little to start with, or a longer request than it serves
        return False
    if size.pool is None:
        return needed(case, size) <= cache_bytes
    return size.pool.max_concurrency >= sequences


def weights_on_a_rank(case: Case, weights: Weights) -> Part:
    """Weights of the fullest rank. Layer-wise engines spread them over all GPUs, which count as one device.

    Servers load 32-bit checkpoints as 16 bits, and hold more beside the weights of a checkpoint.
    """
    layout = case.layout
    if case.engine in LAYERWISE:
        share = Range(weights.total_bytes, weights.total_bytes)
    else:
        weights = as_loaded(weights, case.config, served_dtype(case.geometry.dtype))
        share = per_rank(weights, case.config, tp=layout.tensor, pp=layout.pipeline, ep=layout.expert)
        if weights.evidence != "assumed":
            share += beside(case.config, share.high)
    known = share.width == 0 and weights.evidence == "exact"
    return Part("weights", share, "exact" if known else weights.evidence, weights.source)


def served_dtype(stated: str | None) -> str:
    """What a server runs a checkpoint in by default: its own 16 bits, else bfloat16 (vllm@0.33.0 config/model.py)."""
    return stated if stated in ("bfloat16", "float16") else "bfloat16"


def drawn(case: Case, weights: Part, tokens: int, sequences: int) -> Budget:
    """The engine's budget for that many requests of that length."""
    gpu = case.gpus.gpu
    devices = case.gpus.count if case.engine in LAYERWISE else 1
    machine = Machine(
        Range(gpu.usable.low * devices, gpu.usable.high * devices),
        free=None if gpu.free_bytes is None else gpu.free_bytes * devices,
        unified=gpu.kind in ("unified", "jetson"),
        a100="a100" in gpu.key.lower(),
    )
    launch = case.launch
    if case.engine == "transformers" and launch.max_num_batched_tokens is None:
        launch = replace(launch, max_num_batched_tokens=tokens * sequences)
    return budget(case.engine, case.shape, machine, weights, launch)


def with_option(case: Case, **changes: Any) -> Case:
    """The same case with other engine options; fields that this engine does not have are left out."""
    known = {item.name for item in fields(case.options)}
    return replace(case, options=replace(case.options, **{k: v for k, v in changes.items() if k in known}))


def with_layout(case: Case, tensor: int) -> Case:
    """The same case on `tensor` times pipeline times replicas GPUs, heads split over `tensor` of them."""
    layout = replace(case.layout, tensor=tensor)
    moved = replace(
        case,
        layout=layout,
        gpus=replace(case.gpus, count=layout.ranks),
        launch=replace(case.launch, tensor_parallel_size=tensor),
    )
    return with_option(moved, tensor_parallel_size=tensor)
