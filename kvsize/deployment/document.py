"""From an outcome to the document of `kvsize fit`."""

from __future__ import annotations

from typing import Any

from kvsize.build import cache_doc, engine_settings, model_doc
from kvsize.deployment.advice import Advice
from kvsize.deployment.budget import Budget, Part
from kvsize.deployment.judge import Case, Outcome, on_one_replica, sized
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
        headroom_bytes=None if outcome.headroom is None else _range(outcome.headroom),
        max_ctx=found.max_tokens if found else None,
        max_batch=found.max_sequences if found else None,
        solved=solved,
        advice=[AdviceDoc(a.what, a.flags, _range(a.headroom), a.cost) for a in advice],
        assumptions=assumptions(outcome),
        notes=[*_spread_note(outcome), *case.geometry.notes, *size.notes, *_weight_notes(case)],
    )


def assumptions(outcome: Outcome) -> list[str]:
    """What the verdict stands on that nobody measured here."""
    lines = [f"GPU memory: {outcome.case.gpus.gpu.source}"]
    if outcome.budget is not None:
        lines += [f"{p.name.replace('_', ' ')}: {p.why}" for p in outcome.budget.parts if p.evidence != "exact"]
    return lines


def _spread_note(outcome: Outcome) -> tuple[str, ...]:
    """Where layers lie, if not all of them on one GPU."""
    held = [share.layers for share in outcome.shares if share.layers is not None]
    count = len(outcome.size.layers)
    if len(held) < 2 and (not held or held[0].start == 0):
        return ()
    spans = [f"{own.start} to {min(own.stop, count) - 1}" if own.start < count and own else "none" for own in held]
    hosted = f"; layers 0 to {held[0].start - 1} and their cache stay in host memory" if held[0].start else ""
    which = "layers on each GPU" if len(held) > 1 else "layers on the GPU"
    return (f"{which}: {', '.join(spans)}; the output on the last{hosted}",)


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
