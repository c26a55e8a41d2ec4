"""One question put to everything at once: does this workload fit on these GPUs, under this engine?

Brings together what each part knows: the engine its cache, the weights their share of a rank, the budget what is left.
plan decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

from kvsize.deployment.budget import Budget, Launch, Machine, Part, budget, vllm_steps
from kvsize.deployment.plan import Capacity, Question, Verdict, capacity, largest, verdict
from kvsize.deployment.spread import Share, fullest, heaviest, need, part_of, shares
from kvsize.engines import CacheSize, Workload, load_engine
from kvsize.errors import KvsizeError, UnsupportedError
from kvsize.geometry import Geometry
from kvsize.gpus import GpuSet
from kvsize.ranges import Range, exactly
from kvsize.shape import ModelShape
from kvsize.weights import UnknownWeights, Weights, as_loaded
from kvsize.weights.layout import Layout as Ranks
from kvsize.weights.layout import partition
from kvsize.weights.ranks import beside, per_stage

# Engines that cut a budget into blocks beforehand, and can be asked what it holds.
POOLED = ("vllm", "sglang", "trtllm")
# Engines that spread whole layers over GPUs; MLX runs on one.
LAYERWISE = ("llama.cpp", "ollama", "transformers", "mlx")
MOST_CACHE = 2**50
WHOLE = Share(Part("weights", exactly(0), "assumed", "unknown"))


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
    """What one rank answers: the fullest. `budget` and `headroom` are None where the weights are unknown."""

    case: Case
    size: CacheSize
    need_bytes: int
    verdict: Verdict = "unknown"
    shares: tuple[Share, ...] = ()
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
    tokens, sequences = case.workload.tokens, on_one_replica(case)
    size = sized(case, tokens, sequences)
    if isinstance(case.weights, UnknownWeights):
        return Outcome(case, size, needed(case, size, WHOLE))
    held = shares_of(case, case.weights)
    share = heaviest(held) if case.engine in POOLED else fullest(size, held, at_peak=at_peak(case))
    budget = drawn(case, share, size, tokens * sequences)
    return Outcome(case, size, needed(case, size, share), verdict(question(case, held)), shares=held, budget=budget)


def evaluate(case: Case) -> Outcome:
    """As judge, with the longest context and the most sequences (of all replicas) that fit for certain."""
    outcome = judge(case)
    if not outcome.shares:
        return outcome
    found = capacity(question(case, outcome.shares))
    return replace(outcome, capacity=replace(found, max_sequences=found.max_sequences * case.layout.data))


def surely_fits(case: Case) -> bool:
    """Whether it fits for certain, which is one question; a layout that the engine refuses does not."""
    if isinstance(case.weights, UnknownWeights):
        return False
    try:
        asked = question(case, shares_of(case, case.weights))
        return asked.fits(asked.tokens, asked.sequences)
    except KvsizeError:
        return False


def question(case: Case, held: tuple[Share, ...]) -> Question:
    """What plan asks of a rank, or of GPUs that hold these shares."""
    return Question(
        case.workload.tokens,
        on_one_replica(case),
        fits=lambda tokens, sequences: holds(case, held, tokens, sequences, kind=False),
        may_fit=lambda tokens, sequences: holds(case, held, tokens, sequences, kind=True),
        max_tokens=case.geometry.max_tokens or 2**24,
    )


def on_one_replica(case: Case) -> int:
    """Sequences that one data-parallel replica serves."""
    return -(-case.workload.sequences // case.layout.data)


def sized(case: Case, tokens: int, sequences: int, cache_bytes: int | None = None) -> CacheSize:
    """The engine's own answer on one rank; with `cache_bytes`, also what a pool of that size holds."""
    options = case.options if case.engine != "vllm" else on_this_gpu(case)
    if cache_bytes is not None:
        options = replace(options, kv_memory=cache_bytes)
    workload = replace(case.workload, tokens=tokens, sequences=sequences)
    return load_engine(case.engine).size(case.geometry, workload, options)


def on_this_gpu(case: Case) -> Any:
    """vLLM's options with what it reads off the GPU: kernels by compute capability, the step by memory."""
    options, capability = case.options, case.gpus.gpu.capability or ""
    known = capability if capability.replace(".", "").isdecimal() else None
    return replace(
        options,
        device_capability=options.device_capability or known,
        max_num_batched_tokens=options.max_num_batched_tokens or vllm_steps(machine_of(case), case.launch)[0],
    )


def machine_of(case: Case) -> Machine:
    """One GPU as its budget sees it."""
    gpu = case.gpus.gpu
    return Machine(
        gpu.usable,
        free=gpu.free_bytes,
        unified=gpu.kind in ("unified", "jetson"),
        a100="a100" in f"{gpu.key} {gpu.name}".lower(),
        cuda=gpu.vendor in ("nvidia", "any"),
    )


def needed(case: Case, size: CacheSize, share: Share) -> int:
    """Bytes of the cache on one GPU; of an engine that cuts pools, the least that makes them large enough."""
    if case.engine not in POOLED:
        return need(size, share, at_peak=at_peak(case))
    tokens, sequences = case.workload.tokens, on_one_replica(case)

    def short(cache_bytes: int) -> bool:
        return not _pool_holds(case, tokens, sequences, cache_bytes)

    likely = (guess for guess in _likely(case, tokens, sequences, size.total_bytes) if not short(guess))
    guess = next(likely, MOST_CACHE)
    if guess <= 1 or (guess < MOST_CACHE and short(guess - 1)):
        return guess
    least = 1 + largest(short, MOST_CACHE)
    return least if least <= MOST_CACHE else size.total_bytes


def _likely(case: Case, tokens: int, sequences: int, whole: int) -> Iterator[int]:
    """Bytes that are often the least: the blocks of all requests, and one more that stays empty."""
    try:
        pool = sized(case, tokens, sequences, 2 * whole + 2**30).pool
    except UnsupportedError:
        return
    if pool is not None:
        yield pool.request_bytes * sequences
        yield pool.request_bytes * sequences + pool.bytes_per_block


def at_peak(case: Case) -> bool:
    """Whether the cache is not set aside beforehand, so that what is held at most decides."""
    return case.engine == "transformers"


def holds(case: Case, held: tuple[Share, ...], tokens: int, sequences: int, *, kind: bool) -> bool:
    """Whether the engine keeps that many requests, at the kind or at the unkind end of what is estimated."""
    if case.engine in POOLED:
        return _pooled(case, heaviest(held), tokens, sequences, kind=kind)
    try:
        size = sized(case, tokens, sequences)
    except UnsupportedError:  # a longer request than it serves
        return False
    share = fullest(size, held, at_peak=at_peak(case))
    room = drawn(case, share, size, tokens * sequences).room
    return need(size, share, at_peak=at_peak(case)) <= (room.high if kind else room.low)


def _pooled(case: Case, share: Share, tokens: int, sequences: int, *, kind: bool) -> bool:
    room = drawn(case, share, None, tokens * sequences).room
    left = room.high if kind else room.low
    return left > 0 and _pool_holds(case, tokens, sequences, left)


def _pool_holds(case: Case, tokens: int, sequences: int, cache_bytes: int) -> bool:
    try:
        pool = sized(case, tokens, sequences, cache_bytes).pool
    except UnsupportedError:  # too little to start with, or a longer request than it serves
        return False
    return pool is not None and pool.max_concurrency >= sequences


def shares_of(case: Case, weights: Weights) -> tuple[Share, ...]:
    """Weights of a rank of each stage, at their fullest; of each GPU, where an engine spreads layers.

    Servers load 32-bit checkpoints as 16 bits, and hold more beside the weights of a checkpoint.
    """
    layout, geometry = case.layout, case.geometry
    if case.engine in LAYERWISE:
        layers = len(geometry.layers), len(geometry.drafts)
        offloaded = getattr(case.options, "n_gpu_layers", None)
        return shares(case.engine, weights, case.config, layers, case.gpus.count, offloaded)
    if "general.architecture" in case.config:  # a GGUF: between split and repeated
        share = Range(-(-weights.total_bytes // (layout.tensor * layout.pipeline)), weights.total_bytes)
        return (Share(part_of(weights, share)),)
    loaded = as_loaded(weights, case.config, served_dtype(geometry.dtype))
    stages = per_stage(loaded, case.config, tp=layout.tensor, pp=layout.pipeline, ep=layout.expert)
    if weights.evidence != "assumed":
        stages = tuple(stage + beside(case.config, stage.high) for stage in stages)
    if len(stages) == 1:
        return (Share(part_of(weights, stages[0])),)
    ends = accumulate(partition(len(geometry.layers), Ranks(pipeline=layout.pipeline)), initial=0)
    return tuple(
        Share(part_of(weights, stage), range(*ends)) for stage, ends in zip(stages, pairwise(ends), strict=True)
    )


def served_dtype(stated: str | None) -> str:
    """What a server runs a checkpoint in by default: its own 16 bits, else bfloat16 (vllm@0.33.0 config/model.py)."""
    return stated if stated in ("bfloat16", "float16") else "bfloat16"


def drawn(case: Case, share: Share, size: CacheSize | None, prefilled: int) -> Budget:
    """The engine's budget of one GPU; `prefilled` tokens pass through transformers at once."""
    launch = case.launch
    if case.engine == "transformers" and launch.max_num_batched_tokens is None:
        launch = replace(launch, max_num_batched_tokens=prefilled)
    if size is not None and size.scratch is not None:
        launch = replace(launch, scratch=size.scratch, devices=case.gpus.count)
    return budget(case.engine, case.shape, machine_of(case), share.weights, launch)


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
