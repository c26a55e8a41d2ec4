"""The JSON documents of sizes, layers, models and errors, as plain values; other commands' stand in kvsize.report.

Stdlib dataclasses, so that printing a document costs no import; `kvsize schema` and the tests derive the JSON Schema
from these very classes with pydantic. Keys end in `_bytes` or `_tokens` where they are such; integers stay integers;
what is unknown is null; the shape of a document never depends on flags.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvsize.engines import Evidence


@dataclass(frozen=True, slots=True)
class ModelDoc:
    """Which model, and where its config came from. `attention` says in words what its layers keep."""

    id: str
    origin: str
    revision: str | None
    model_type: str
    architecture: str | None
    num_layers: int
    max_tokens: int | None
    attention: str


@dataclass(frozen=True, slots=True)
class EngineDoc:
    """Whose cache, of which release, under which settings (its own names), and what the figures stand on."""

    name: str
    version: str
    cache: str
    evidence: Evidence
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkloadDoc:
    """What was asked."""

    ctx: int
    batch: int
    encoder_ctx: int | None
    num_beams: int


@dataclass(frozen=True, slots=True)
class FormatDoc:
    """The cache's element formats and why these."""

    k: str
    v: str
    source: str


@dataclass(frozen=True, slots=True)
class CacheDoc:
    """Bytes of the whole workload. total = fixed + marginal per token x ctx, at this ctx.

    `total_bytes`: storage held in steady decoding; `logical_bytes`: elements only; `after_prefill_bytes`: right after a
    one-shot prefill; `peak_bytes`: the most held at once; `host_bytes`: the part of the total in host memory.
    """

    total_bytes: int
    logical_bytes: int
    after_prefill_bytes: int
    peak_bytes: int
    fixed_bytes: int
    marginal_bytes_per_token: int
    host_bytes: int


@dataclass(frozen=True, slots=True)
class StoreDoc:
    """One cache of a layer: what an entry holds and which tokens stay, in words and in numbers.

    `span_tokens` is the window's or chunk's size, or how many tokens an encoder always yields. `elements` are those of
    one token if `per_token`, else of one sequence. `format` is fixed by the model's code (null: the cache's own).
    """

    holds: str
    keeps: str
    entry: Literal["heads", "latent", "index_key", "states", "compressed"]
    span: Literal["full", "sliding", "chunked", "reference", "encoder", "constant", "compressed"]
    span_tokens: int | None
    elements: int
    per_token: bool
    format: str | None


@dataclass(frozen=True, slots=True)
class LayerDoc:
    """A run of equal layers; bytes are those of the whole run, all sequences. `label` names its kind in a word."""

    indices: list[int]
    kind: str
    label: str
    bytes: int
    logical_bytes: int
    after_prefill_bytes: int
    host_bytes: int
    shares: int | None
    stores: list[StoreDoc]


@dataclass(frozen=True, slots=True)
class LayerRunDoc:
    """A run of equal layers, without bytes."""

    indices: list[int]
    kind: str
    label: str
    shares: int | None
    stores: list[StoreDoc]


@dataclass(frozen=True, slots=True)
class OverheadDoc:
    """Bytes that belong to no layer."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class FormulaDoc:
    """What a formula in common use says at the longest context asked for; listed where it is off by 2 % or more."""

    formula: str
    ctx: int
    bytes: int
    misses: str


@dataclass(frozen=True, slots=True)
class RowDoc:
    """One context length of the list that was asked for."""

    ctx: int
    batch: int
    cache: CacheDoc


@dataclass(frozen=True, slots=True)
class GroupDoc:
    """Layers that an engine pages together."""

    name: str
    layers: int
    block_tokens: int
    page_bytes: int
    request_blocks: int


@dataclass(frozen=True, slots=True)
class PoolDoc:
    """What a given budget holds, as the engine would plan and print it, on one rank."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    tokens: int
    max_concurrency: float
    request_blocks: int
    request_bytes: int
    groups: list[GroupDoc]


@dataclass(frozen=True, slots=True)
class SizeDoc:
    """`kvsize MODEL`: one model, one engine, one or more context lengths."""

    schema: Literal["kvsize.size/1"]
    model: ModelDoc
    engine: EngineDoc
    workload: WorkloadDoc
    kv_dtype: FormatDoc
    cache: CacheDoc
    layers: list[LayerDoc]
    overheads: list[OverheadDoc]
    rows: list[RowDoc]
    pool: PoolDoc | None
    formulas: list[FormulaDoc]
    reads: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class LayersDoc:
    """`kvsize layers MODEL`: what each layer keeps, in runs, and the config keys that decided it."""

    schema: Literal["kvsize.layers/1"]
    model: ModelDoc
    layers: list[LayerRunDoc]
    reads: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class EntryDoc:
    """A model of the catalogue: an answer without the network."""

    id: str
    model_type: str
    attention: str | None
    weight_bytes: int | None
    revision: str | None
    also: list[str]


@dataclass(frozen=True, slots=True)
class ArchitectureDoc:
    """A model_type that kvsize has a rule for, and what the rule stands on."""

    model_type: str
    evidence: Evidence
    models: int


@dataclass(frozen=True, slots=True)
class ModelsDoc:
    """`kvsize models`: the catalogue, or with --architectures every known model_type."""

    schema: Literal["kvsize.models/1"]
    models: list[EntryDoc]
    architectures: list[ArchitectureDoc]


@dataclass(frozen=True, slots=True)
class ErrorDoc:
    """An error under --json: one line on standard error."""

    schema: Literal["kvsize.error/1"]
    code: str
    exit: int
    message: str
    where: str | None
    got: str | None
    hint: str | None


def to_dict(document: Any) -> dict[str, Any]:
    """A document as JSON-ready values, `schema` first."""
    return asdict(document)
