"""Every JSON document kvsize prints, as plain values; the only place that knows the schemas.

Stdlib dataclasses, so that printing a document costs no import; `kvsize schema` and the tests derive the JSON Schema
from these very classes with pydantic. Keys end in `_bytes` or `_tokens` where they are such; integers stay integers;
what is unknown is null; the shape of a document never depends on flags.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvsize.engines import CacheSize, Evidence, Workload
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    Store,
)
from kvsize.source import ModelFiles


@dataclass(frozen=True, slots=True)
class ModelDoc:
    """Which model, and where its config came from."""

    id: str
    origin: str
    revision: str | None
    model_type: str
    architecture: str | None
    num_layers: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineDoc:
    """Whose cache, of which release, and what the figures stand on."""

    name: str
    version: str
    cache: str
    evidence: Evidence


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
    """One cache of a layer: what an entry holds and which tokens stay."""

    holds: str
    keeps: str
    elements: int
    per_token: bool


@dataclass(frozen=True, slots=True)
class LayerDoc:
    """A run of equal layers; bytes are those of the whole run, all sequences."""

    indices: list[int]
    kind: str
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
    shares: int | None
    stores: list[StoreDoc]


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
    rows: list[RowDoc]
    pool: PoolDoc | None
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
class ModelsDoc:
    """`kvsize models`: ids of the catalogue, or model types with their evidence."""

    schema: Literal["kvsize.models/1"]
    models: list[str]
    architectures: dict[str, str]


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


DOCUMENTS: dict[str, type[Any]] = {
    "size": SizeDoc,
    "layers": LayersDoc,
    "models": ModelsDoc,
    "error": ErrorDoc,
}


def to_dict(document: Any) -> dict[str, Any]:
    """A document as JSON-ready values, `schema` first."""
    return asdict(document)


# -- building ----------------------------------------------------------------------------------------------------------


def model_doc(files: ModelFiles, geometry: Geometry) -> ModelDoc:
    """The model part of every document."""
    return ModelDoc(
        files.id,
        files.origin,
        files.revision,
        geometry.model_type,
        geometry.architecture,
        len(geometry.layers),
        geometry.max_tokens,
    )


def cache_doc(size: CacheSize, tokens: int, one_more: CacheSize) -> CacheDoc:
    """The cache part; `one_more` is the same workload at one step of tokens more, for the slope."""
    slope = (one_more.total_bytes - size.total_bytes) // size.step_tokens
    return CacheDoc(
        total_bytes=size.total_bytes,
        logical_bytes=size.logical_bytes,
        after_prefill_bytes=size.after_prefill_bytes,
        peak_bytes=size.peak_bytes,
        fixed_bytes=size.total_bytes - slope * tokens,
        marginal_bytes_per_token=slope,
        host_bytes=size.host_bytes,
    )


def layer_docs(geometry: Geometry, size: CacheSize) -> list[LayerDoc]:
    """Runs of equal layers with their bytes."""
    docs = []
    for layer, indices in geometry.runs():
        parts = [size.layers[index] for index in indices]
        docs.append(
            LayerDoc(
                indices=list(indices),
                kind=layer.kind,
                bytes=sum(part.held for part in parts),
                logical_bytes=sum(part.logical for part in parts),
                after_prefill_bytes=sum(part.after_prefill for part in parts),
                host_bytes=sum(part.host for part in parts),
                shares=layer.shares,
                stores=store_docs(layer),
            )
        )
    return docs


def store_docs(layer: Layer) -> list[StoreDoc]:
    """What each cache of a layer holds, in words and elements."""
    return [_store_doc(store) for store in layer.stores]


def _store_doc(store: Store) -> StoreDoc:
    match store:
        case Attention():
            return StoreDoc(_entry_words(store.entry), _span_words(store), store.entry.elements, per_token=True)
        case Recurrent():
            shapes = " + ".join(f"{state.role} {list(state.shape)}" for state in store.states)
            return StoreDoc(
                f"{store.kind} {shapes}", "constant", sum(state.elements for state in store.states), per_token=False
            )
        case Compressed():
            index = f", index {store.index_dim}" if store.index_dim else ""
            return StoreDoc(
                f"K=V {store.dim}{index}", f"last {store.window}, and 1 of {store.rate}", store.dim, per_token=True
            )


def _entry_words(entry: Heads | Latent | IndexKey) -> str:
    match entry:
        case Heads(count=count, k_dim=k, v_dim=v):
            return f"{count} KV heads x {k}" if k == v else f"{count} KV heads x ({k} K + {v} V)"
        case Latent(rank=rank, rope_dim=rope):
            return f"latent {rank} + rope {rope}"
        case IndexKey(dim=dim):
            return f"index key {dim}"


def _span_words(store: Attention) -> str:
    match store.span:
        case Full():
            return "all tokens"
        case Sliding(window=window):
            return f"window {window}"
        case Chunked(size=size):
            return f"chunk {size}"
        case Reference(window=window):
            return f"prompt and last {window}"
        case Encoder():
            return "encoder tokens"


def size_doc(
    files: ModelFiles,
    geometry: Geometry,
    workload: Workload,
    size: CacheSize,
    rows: list[RowDoc],
    num_beams: int,
    notes: tuple[str, ...] = (),
) -> SizeDoc:
    """The document of `kvsize MODEL`."""
    return SizeDoc(
        schema="kvsize.size/1",
        model=model_doc(files, geometry),
        engine=EngineDoc(size.engine, size.version, size.cache, size.evidence),
        workload=WorkloadDoc(workload.tokens, workload.sequences, workload.encoder_tokens, num_beams),
        kv_dtype=FormatDoc(size.k_format, size.v_format, size.format_source),
        cache=rows[0].cache,
        layers=layer_docs(geometry, size),
        rows=rows,
        pool=pool_doc(size),
        reads=[str(read) for read in geometry.reads],
        notes=[*geometry.notes, *size.notes, *notes],
    )


def pool_doc(size: CacheSize) -> PoolDoc | None:
    """The pool part, null where no budget was given."""
    if size.pool is None:
        return None
    values = {name: getattr(size.pool, name) for name in PoolDoc.__dataclass_fields__ if name != "groups"}
    groups = [GroupDoc(**asdict(group)) for group in size.pool.groups]
    return PoolDoc(**values, groups=groups)


def layers_doc(files: ModelFiles, geometry: Geometry) -> LayersDoc:
    """The document of `kvsize layers`."""
    runs = [
        LayerRunDoc(list(indices), layer.kind, layer.shares, store_docs(layer)) for layer, indices in geometry.runs()
    ]
    reads = [str(read) for read in geometry.reads]
    return LayersDoc("kvsize.layers/1", model_doc(files, geometry), runs, reads, list(geometry.notes))
