"""Every JSON document kvsize prints, as plain values; the only place that knows the schemas.

Stdlib dataclasses, so that printing a document costs no import; `kvsize schema` and the tests derive the JSON Schema
from these very classes with pydantic. Keys end in `_bytes` or `_tokens` where they are such; integers stay integers;
what is unknown is null; the shape of a document never depends on flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kvsize.documents import (
    ArchitectureDoc,
    CacheDoc,
    EngineDoc,
    EntryDoc,
    ErrorDoc,
    FormatDoc,
    FormulaDoc,
    GroupDoc,
    LayerDoc,
    LayerRunDoc,
    LayersDoc,
    ModelDoc,
    ModelsDoc,
    OverheadDoc,
    PoolDoc,
    RowDoc,
    SizeDoc,
    StoreDoc,
    WorkloadDoc,
    to_dict,
)
from kvsize.engines import Evidence

__all__ = [
    "DOCUMENTS",
    "ArchitectureDoc",
    "CacheDoc",
    "EngineDoc",
    "EntryDoc",
    "ErrorDoc",
    "FormatDoc",
    "FormulaDoc",
    "GroupDoc",
    "LayerDoc",
    "LayerRunDoc",
    "LayersDoc",
    "ModelDoc",
    "ModelsDoc",
    "OverheadDoc",
    "PoolDoc",
    "RowDoc",
    "SizeDoc",
    "StoreDoc",
    "WorkloadDoc",
    "to_dict",
]


@dataclass(frozen=True, slots=True)
class ProbeRunDoc:
    """A run of equal layers: bytes after a prefill of each of the document's `tokens`; no rule, no prediction."""

    indices: list[int]
    kind: str
    label: str
    predicted_bytes: list[int] | None
    measured_bytes: list[int]


@dataclass(frozen=True, slots=True)
class ProbeDoc:
    """`kvsize probe MODEL`: kvsize's rule beside the cache of a real model class; `agrees` is null without a rule."""

    schema: Literal["kvsize.probe/1"]
    model: ModelDoc
    transformers: str
    model_class: str
    dtype: str
    encoder_tokens: int | None
    tokens: list[int]
    agrees: bool | None
    layers: list[ProbeRunDoc]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class RangeDoc:
    """Bytes between two ends; equal where they are known."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class DeviceDoc:
    """The GPUs of the question: `usable_bytes` is what one of them offers an engine."""

    name: str
    vendor: str
    count: int
    usable_bytes: RangeDoc
    evidence: str
    source: str


@dataclass(frozen=True, slots=True)
class ParallelDoc:
    """How the model is spread over the GPUs."""

    tensor: int
    pipeline: int
    data: int
    expert: int


@dataclass(frozen=True, slots=True)
class UseDoc:
    """One use of a GPU's memory, with its evidence and its rule."""

    name: str
    low: int
    high: int
    evidence: str
    why: str


@dataclass(frozen=True, slots=True)
class BudgetDoc:
    """One rank's memory. `room` is what `usable_bytes` leaves for the cache; a part that the engine lacks is null."""

    total_bytes: RangeDoc
    usable_bytes: RangeDoc
    usable_why: str
    weights: RangeDoc
    cache_bytes: int
    room: RangeDoc
    activations: RangeDoc | None
    non_torch: RangeDoc | None
    cuda_graphs: RangeDoc | None
    reserve: RangeDoc | None
    parts: list[UseDoc]


@dataclass(frozen=True, slots=True)
class RankDoc:
    """One GPU, or each rank of one stage: its hidden layers, first and last (null: none), their weights and cache."""

    name: str
    layers: list[int] | None
    weights: RangeDoc
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class AdviceDoc:
    """One change that makes it fit, computed: what it leaves free and what it costs."""

    what: str
    flags: str
    headroom_bytes: RangeDoc
    cost: str


@dataclass(frozen=True, slots=True)
class FitDoc:
    """`kvsize fit`: the verdict on one rank, and what it stands on.

    `verdict`: fits, tight (only at the kind end of the estimates), does_not_fit, unknown (with `reason`). `max_ctx` and
    `max_batch` count what fits for certain. `ranks` is empty where all hold as much. `solved` is what --solve asked
    for.
    """

    schema: Literal["kvsize.fit/1"]
    verdict: Literal["fits", "tight", "does_not_fit", "unknown"]
    reason: str | None
    model: ModelDoc
    engine: EngineDoc
    workload: WorkloadDoc
    kv_dtype: FormatDoc
    gpu: DeviceDoc
    parallel: ParallelDoc
    cache: CacheDoc
    budget: BudgetDoc | None
    ranks: list[RankDoc]
    headroom_bytes: RangeDoc | None
    max_ctx: int | None
    max_batch: int | None
    solved: dict[str, Any] | None
    advice: list[AdviceDoc]
    assumptions: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class ComparedDoc:
    """One model in one engine. Null figures where the engine refuses (`refused` says why) or no budget was given."""

    model: str
    engine: str
    version: str
    evidence: Evidence | None
    request_bytes: int | None
    bytes_per_token: int | None
    pool_tokens: int | None
    pool_requests: float | None
    why: str
    refused: str | None


@dataclass(frozen=True, slots=True)
class CompareDoc:
    """`kvsize compare`: models by engines, one request each; `kv_memory_bytes` is the budget of the pools."""

    schema: Literal["kvsize.compare/1"]
    ctx: int
    batch: int
    kv_memory_bytes: int | None
    rows: list[ComparedDoc]


@dataclass(frozen=True, slots=True)
class GpuDoc:
    """One device of the table: `key` is what --gpu takes, `usable_bytes` what torch sees of it."""

    key: str
    name: str
    vendor: str
    kind: str
    memory: str
    driver_bytes: int | None
    usable_bytes: RangeDoc
    bandwidth_bytes_per_second: int | None
    bandwidth_source: str | None
    capability: str | None
    evidence: Evidence
    source: str
    aliases: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class ProcessDoc:
    """A process that holds memory of a device."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class LiveDoc:
    """One device, or MIG instance, of this machine, as its driver reports it now."""

    index: str
    name: str
    vendor: str
    uuid: str | None
    mig: bool
    visible: bool
    driver_bytes: int | None
    usable_bytes: RangeDoc
    free_bytes: int | None
    capability: str | None
    source: str
    processes: list[ProcessDoc]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class GpusDoc:
    """`kvsize gpus`: the table, or with --live this machine's devices."""

    schema: Literal["kvsize.gpus/1"]
    gpus: list[GpuDoc]
    devices: list[LiveDoc]


@dataclass(frozen=True, slots=True)
class PublishedDoc:
    """A published formula: its arithmetic, its source, and what it was meant for."""

    id: str
    name: str
    arithmetic: str
    title: str
    url: str
    published: str
    scope: str


@dataclass(frozen=True, slots=True)
class SaysDoc:
    """What one formula says of one model. `ratio` to the true bytes; without a figure, `reason` says why."""

    formula: str
    bytes: int | None
    ratio: float | None
    verdict: Literal["right", "high", "low", "none"]
    reason: str | None


@dataclass(frozen=True, slots=True)
class AuditedDoc:
    """One model: what its cache really holds while decoding, and what each formula says."""

    model: ModelDoc
    true_bytes: int
    says: list[SaysDoc]


@dataclass(frozen=True, slots=True)
class TallyDoc:
    """One formula over all models of the audit: how often it is right (within 2 %), and how far off it gets."""

    formula: str
    right: int
    high: int
    low: int
    none: int
    least: float | None
    median: float | None
    most: float | None
    least_model: str | None
    most_model: str | None


@dataclass(frozen=True, slots=True)
class AuditDoc:
    """`kvsize audit [MODEL...]`: published formulas against an engine's true figure."""

    schema: Literal["kvsize.audit/1"]
    engine: EngineDoc
    workload: WorkloadDoc
    kv_dtype: FormatDoc
    formulas: list[PublishedDoc]
    models: list[AuditedDoc]
    tallies: list[TallyDoc]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class ClaimedDoc:
    """A figure as it was written, and the bytes that its own precision allows."""

    text: str
    bytes: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class DeviationDoc:
    """One step away from the true figure: a mistake, another meaning, or another unit."""

    key: str
    kind: Literal["mistake", "semantics", "unit"]
    words: str


@dataclass(frozen=True, slots=True)
class ExplanationDoc:
    """Deviations that together give the claimed figure: `bytes`, and what they are in `unit`."""

    bytes: int
    unit: str
    deviations: list[DeviationDoc]


@dataclass(frozen=True, slots=True)
class ClaimDoc:
    """`kvsize audit --claim FIGURE MODEL`: whether it is right, and else what gives it, simplest first.

    `formulas` are the published ones that say the same; `tried` the combinations that were looked at.
    """

    schema: Literal["kvsize.claim/1"]
    model: ModelDoc
    engine: EngineDoc
    workload: WorkloadDoc
    kv_dtype: FormatDoc
    claim: ClaimedDoc
    true_bytes: int
    verdict: Literal["right", "explained", "unexplained"]
    explanations: list[ExplanationDoc]
    formulas: list[str]
    tried: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class MeasuredDoc:
    """One real cache. `predicted_bytes` and `measured_bytes` are those of its storages; null where there is none.

    Of a paged cache they are those of the pool's tensor ("pool"), else of the sectors that the requests take.

    On CUDA also torch's allocated, reserved and peak bytes beyond the twin's own, and NVML's for this process.
    """

    model: str
    model_type: str
    model_class: str
    device: str
    cache: str
    ctx: int
    batch: int
    num_beams: int
    moment: Literal["prefill", "decode", "generate", "pool"]
    status: Literal["equal", "different", "refused", "not_run", "out_of_memory"]
    predicted_bytes: int | None
    measured_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    process_bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class EnvironmentDoc:
    """Where caches were measured."""

    kvsize: str
    python: str
    torch: str
    transformers: str
    device: str
    driver: str | None


@dataclass(frozen=True, slots=True)
class ValidateDoc:
    """`kvsize validate`: real caches held against the prediction."""

    schema: Literal["kvsize.validate/1"]
    environment: EnvironmentDoc
    settings: dict[str, Any]
    rows: list[MeasuredDoc]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class FigureDoc:
    """One printed figure beside its prediction.

    `printed` as it stands in the log; `least` and `most` what its digits leave open, in bytes, tokens or its own unit.
    `difference` is what lies between them and the prediction. `ranks` that printed it, `count` times together.
    """

    line: int
    quantity: str
    label: str
    printed: str
    unit: str
    least: int | float
    most: int | float
    predicted: str | None
    predicted_least: int | float | None
    predicted_most: int | float | None
    difference: int | float
    status: Literal["agrees", "contradicts", "taken", "inside", "outside", "not_predicted"]
    explanation: str
    ranks: list[str]
    count: int


@dataclass(frozen=True, slots=True)
class WasteDoc:
    """Memory that holds nothing, or the same twice. `share` is of one request's cache; null where it is not counted."""

    what: str
    share: float | None
    bytes: int | None
    flag: str | None


@dataclass(frozen=True, slots=True)
class ServerDoc:
    """One start of one server. `version` as the log names it, `sized_as` the release whose rules were used."""

    name: str
    engine: str
    version: str | None
    sized_as: str | None
    evidence: Evidence | None
    model: ModelDoc
    model_source: str
    settings: dict[str, Any]
    verdict: Literal["agrees", "contradicts", "not_predicted"]
    figures: list[FigureDoc]
    waste: list[WasteDoc]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class ReconcileDoc:
    """`kvsize reconcile LOG`: every figure of a start-up log against the prediction."""

    schema: Literal["kvsize.reconcile/1"]
    log: str
    verdict: Literal["agrees", "contradicts", "not_predicted"]
    servers: list[ServerDoc]


DOCUMENTS: dict[str, type[Any]] = {
    "size": SizeDoc,
    "layers": LayersDoc,
    "probe": ProbeDoc,
    "models": ModelsDoc,
    "fit": FitDoc,
    "compare": CompareDoc,
    "gpus": GpusDoc,
    "audit": AuditDoc,
    "claim": ClaimDoc,
    "validate": ValidateDoc,
    "reconcile": ReconcileDoc,
    "error": ErrorDoc,
}
