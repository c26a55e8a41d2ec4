"""From values to documents: what a geometry and an engine's answer say, as kvsize.report's plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any, Literal, assert_never

from kvsize.audit.formulas import misleading
from kvsize.documents import (
    CacheDoc,
    EngineDoc,
    FormatDoc,
    FormulaDoc,
    GroupDoc,
    LayerDoc,
    LayerRunDoc,
    LayersDoc,
    ModelDoc,
    OverheadDoc,
    PoolDoc,
    RowDoc,
    SizeDoc,
    StoreDoc,
    WorkloadDoc,
)
from kvsize.engines import CacheSize, Workload
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Entry,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    Span,
    Store,
)
from kvsize.source import ModelFiles
from kvsize.words import RECURRENT_NAMES, describe, entry_words, label, span_words, state_words


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
        describe(geometry),
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


def size_doc(
    files: ModelFiles,
    geometry: Geometry,
    workload: Workload,
    sizes: Sequence[CacheSize],
    rows: list[RowDoc],
    *,
    options: Any = None,
    notes: tuple[str, ...] = (),
) -> SizeDoc:
    """The document of `kvsize MODEL`; `sizes` are the engine's answers for `rows`, under `options`."""
    size = sizes[0]
    settings = engine_settings(options)
    return SizeDoc(
        schema="kvsize.size/1",
        model=model_doc(files, geometry),
        engine=EngineDoc(size.engine, size.version, size.cache, size.evidence, settings),
        workload=WorkloadDoc(
            workload.tokens, workload.sequences, workload.encoder_tokens, settings.get("num_beams") or 1
        ),
        kv_dtype=FormatDoc(size.k_format, size.v_format, size.format_source),
        cache=rows[0].cache,
        layers=layer_docs(geometry, size),
        overheads=[OverheadDoc(part.name, part.bytes) for part in size.overheads],
        rows=rows,
        pool=pool_doc(size),
        formulas=formula_docs(geometry, workload, sizes, rows, settings),
        reads=[str(read) for read in geometry.reads],
        notes=[*geometry.notes, *size.notes, *notes],
    )


def formula_docs(
    geometry: Geometry,
    workload: Workload,
    sizes: Sequence[CacheSize],
    rows: list[RowDoc],
    settings: dict[str, Any],
) -> list[FormulaDoc]:
    """What common formulas say at the longest context, where they are off; they know nothing of ranks."""
    if is_split(settings):
        return []
    longest = max(range(len(rows)), key=lambda index: rows[index].ctx)
    tokens = rows[longest].ctx
    asked = replace(workload, tokens=tokens, sequences=workload.sequences * copies(settings))
    return [FormulaDoc(f.text, tokens, f.bytes, f.misses) for f in misleading(geometry, asked, sizes[longest])]


def copies(settings: dict[str, Any]) -> int:
    """Cached sequences for each one that was asked for: beams, or answers to one request."""
    return max(settings.get("num_beams") or 1, settings.get("num_return_sequences") or 1)


SPLITS = ("tensor_parallel_size", "decode_context_parallel_size", "data_parallel_size")


def is_split(settings: dict[str, Any]) -> bool:
    """Whether figures are those of one rank, which holds a part of each layer."""
    return any((settings.get(name) or 1) > 1 for name in SPLITS)


def engine_settings(options: Any) -> dict[str, Any]:
    """An engine's Options as plain values; its version stands elsewhere."""
    settings: dict[str, Any] = asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
    settings.pop("version", None)
    return settings


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
        LayerRunDoc(list(indices), layer.kind, label(layer), layer.shares, store_docs(layer))
        for layer, indices in geometry.runs()
    ]
    reads = [str(read) for read in geometry.reads]
    return LayersDoc("kvsize.layers/1", model_doc(files, geometry), runs, reads, list(geometry.notes))


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_docs(geometry: Geometry, size: CacheSize) -> list[LayerDoc]:
    """Runs of equal layers with their bytes."""
    docs = []
    for layer, indices in geometry.runs():
        parts = [size.layers[index] for index in indices]
        docs.append(
            LayerDoc(
                indices=list(indices),
                kind=layer.kind,
                label=label(layer),
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
        case Attention(entry=entry, span=span):
            name, tokens = _span(span)
            return StoreDoc(
                entry_words(entry), span_words(span), _entry(entry), name, tokens, entry.elements, True, store.format
            )
        case Recurrent(kind=kind, states=states):
            elements = sum(state.elements for state in states)
            holds = f"{RECURRENT_NAMES[kind]}: {state_words(states)}"
            return StoreDoc(holds, "a constant size", "states", "constant", None, elements, False, None)
        case Compressed(dim=dim, window=window, rate=rate):
            index = f", index {store.index_dim}" if store.index_dim else ""
            keeps = f"the last {window:,} tokens, and one entry for every {rate}"
            return StoreDoc(f"K=V {dim}{index}", keeps, "compressed", "compressed", window, dim, True, None)
        case _ as never:
            assert_never(never)


def _entry(entry: Entry) -> Literal["heads", "latent", "index_key"]:
    match entry:
        case Heads():
            return "heads"
        case Latent():
            return "latent"
        case IndexKey():
            return "index_key"
        case _ as never:
            assert_never(never)


def _span(span: Span) -> tuple[Literal["full", "sliding", "chunked", "reference", "encoder"], int | None]:
    match span:
        case Full():
            return "full", None
        case Sliding(window=window):
            return "sliding", window
        case Chunked(size=size):
            return "chunked", size
        case Reference(window=window):
            return "reference", window
        case Encoder(tokens=tokens):
            return "encoder", tokens
        case _ as never:
            assert_never(never)
