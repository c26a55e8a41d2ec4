"""From an outcome to the document of `kvsize fit`."""

from __future__ import annotations

from typing import Any

from kvsize.build import cache_doc, engine_settings, model_doc
from kvsize.deployment.advice import Advice
from kvsize.deployment.budget import Budget, Part
from kvsize.deployment.judge import Case, Outcome, on_one_replica, sized
from kvsize.deployment.spread import Share
from kvsize.deployment.support import runs
from kvsize.errors import UnsupportedError
from kvsize.ranges import Range
from kvsize.report import (
    AdviceDoc,
    BudgetDoc,
    CacheDoc,
    DeviceDoc,
    EngineDoc,
    FitDoc,
    FormatDoc,
    ParallelDoc,
    RangeDoc,
    RankDoc,
    UseDoc,
    WorkloadDoc,
)
from kvsize.source import ModelFiles
from kvsize.weights import UnknownWeights


def fit_doc(files: ModelFiles, outcome: Outcome, advice: list[Advice], solved: dict[str, Any] | None) -> FitDoc:
    """The document of `kvsize fit`."""
    case, size, found = outcome.case, outcome.size, outcome.capacity
    workload = case.workload
    return FitDoc(
        schema="kvsize.fit/1",
        verdict=outcome.verdict,
        reason=case.weights.reason if isinstance(case.weights, UnknownWeights) else None,
        model=model_doc(files, case.geometry),
        engine=EngineDoc(size.engine, size.version, size.cache, size.evidence, engine_settings(case.options)),
        workload=WorkloadDoc(
            workload.tokens, workload.sequences, workload.encoder_tokens, getattr(case.options, "num_beams", 1)
        ),
        kv_dtype=FormatDoc(size.k_format, size.v_format, size.format_source),
        gpu=_device(case),
        parallel=ParallelDoc(case.layout.tensor, case.layout.pipeline, case.layout.data, case.layout.expert),
        cache=_cache(outcome),
        budget=None if outcome.budget is None else _budget(outcome.budget, outcome.need_bytes),
        ranks=_ranks(outcome),
        headroom_bytes=None if outcome.headroom is None else _range(outcome.headroom),
        max_ctx=found.max_tokens if found else None,
        max_batch=found.max_sequences if found else None,
        solved=solved,
        advice=[AdviceDoc(a.what, a.flags, _range(a.headroom), a.cost) for a in advice],
        assumptions=assumptions(outcome),
        notes=[*_unsupported(case), *_hosted(outcome), *case.geometry.notes, *size.notes, *_weight_notes(case)],
    )


def assumptions(outcome: Outcome) -> list[str]:
    """What the verdict stands on that nobody measured here."""
    lines = [f"GPU memory: {outcome.case.gpus.gpu.source}"]
    if outcome.budget is not None:
        lines += [f"{p.name.replace('_', ' ')}: {p.why}" for p in outcome.budget.parts if p.evidence != "exact"]
    return lines


def _ranks(outcome: Outcome) -> list[RankDoc]:
    """What each stage or GPU holds, where that differs."""
    kind = "stage" if outcome.case.layout.pipeline > 1 else "GPU"
    ranks = [_rank(f"{kind} {number}", share, outcome) for number, share in enumerate(outcome.shares, start=1)]
    return ranks if len({(r.weights.low, r.weights.high, r.cache_bytes) for r in ranks}) > 1 else []


def _rank(name: str, share: Share, outcome: Outcome) -> RankDoc:
    own = (share.layers or range(0))[: max(len(outcome.size.layers) - (share.layers or range(0)).start, 0)]
    held = sum(outcome.size.layers[index].held - outcome.size.layers[index].host for index in own)
    return RankDoc(name, [own[0], own[-1]] if own else None, _range(share.weights.bytes), held)


def _hosted(outcome: Outcome) -> tuple[str, ...]:
    """Which layers stay in host memory."""
    first = outcome.shares[0].layers.start if outcome.shares and outcome.shares[0].layers else 0
    return (f"layers 0 to {first - 1} and their cache stay in host memory",) if first else ()


def _unsupported(case: Case) -> tuple[str, ...]:
    """Said of a GPU that the engine's own pages do not name."""
    gpu = case.gpus.gpu
    return () if runs(case.engine, gpu) else (f"{case.engine} is not said to run on {gpu.name}",)


def _weight_notes(case: Case) -> tuple[str, ...]:
    if isinstance(case.weights, UnknownWeights):
        return (case.weights.hint,)
    left = tuple(f"not counted as weights: {name}" for name in case.weights.left_out)
    return (*case.weights.notes, *left)


def _device(case: Case) -> DeviceDoc:
    gpu = case.gpus.gpu
    return DeviceDoc(gpu.name, gpu.vendor, case.gpus.count, _range(gpu.usable), gpu.evidence, gpu.source)


def _cache(outcome: Outcome) -> CacheDoc:
    """The cache on one rank, with its slope where a longer request is served at all."""
    case, tokens = outcome.case, outcome.case.workload.tokens
    try:
        more = sized(case, tokens + outcome.size.step_tokens, on_one_replica(case))
    except UnsupportedError:
        more = outcome.size
    return cache_doc(outcome.size, tokens, more)


def _budget(budget: Budget, need: int) -> BudgetDoc:
    return BudgetDoc(
        total_bytes=_range(budget.total),
        usable_bytes=_range(budget.usable),
        usable_why=budget.usable_why,
        weights=_part(budget, "weights") or RangeDoc(0, 0),
        cache_bytes=need,
        room=_range(budget.room),
        activations=_part(budget, "activations"),
        non_torch=_part(budget, "non_torch"),
        cuda_graphs=_part(budget, "cuda_graphs"),
        reserve=_part(budget, "reserve"),
        parts=[_use(part) for part in budget.parts],
    )


def _use(part: Part) -> UseDoc:
    return UseDoc(part.name, part.bytes.low, part.bytes.high, part.evidence, part.why)


def _part(budget: Budget, name: str) -> RangeDoc | None:
    return next((_range(part.bytes) for part in budget.parts if part.name == name), None)


def _range(value: Range) -> RangeDoc:
    return RangeDoc(value.low, value.high)
