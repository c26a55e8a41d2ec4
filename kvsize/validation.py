"""Predictions held against measurements: which caches of a model to build, and whether the bytes are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvsize.engines import Workload, load_engine
from kvsize.engines.transformers.paged import TRASH_SECTORS
from kvsize.errors import KvsizeError
from kvsize.geometry import Attention, Chunked, Geometry, Sliding
from kvsize.real.measure import CUDA_BLOCK, PAGED, Bench, Measured, Moment, OutOfMemoryError, Run, available_bytes

Status: TypeAlias = Literal["equal", "different", "refused", "not_run", "out_of_memory"]

SHORT = 64
# A window this long is still filled on a CPU in a few seconds; on the meta device any is.
FILLED_ON_CPU = 1100
CACHES = ("dynamic", "static")
SPARE = 5  # a fifth of the memory is left to everything else


@dataclass(frozen=True, slots=True)
class Result:
    """One run: what was predicted and what was measured; `reason` says why one of them is missing, or what differs."""

    run: Run
    status: Status
    predicted: int | None = None
    measured: Measured | None = None
    reason: str | None = None


def runs(
    geometry: Geometry,
    device: str,
    *,
    caches: Sequence[str] = CACHES,
    lengths: Sequence[int] = (),
    sequences: int = 1,
    num_beams: int = 1,
    generate: bool = False,
) -> Iterator[Run]:
    """The caches to build: each kind at each length, after a prefill, a decode step and, if asked, a real generate."""
    for cache in caches:
        for tokens in lengths or default_lengths(geometry, device):
            moments: tuple[Moment, ...] = ("prefill", "decode")
            if cache != "dynamic":
                moments = ("decode",)
            if cache == PAGED:
                moments = ("pool", "prefill", "decode")
            elif num_beams > 1 or cache not in CACHES:
                moments = ("generate",)
            for moment in (*moments, *(("generate",) if generate and "generate" not in moments else ())):
                yield Run(cache, tokens, sequences, moment, num_beams)


def default_lengths(geometry: Geometry, device: str) -> tuple[int, ...]:
    """A short length, and one past each window that can be filled here."""
    most = None if device == "meta" else FILLED_ON_CPU
    windows = sorted(window for window in set(spans(geometry)) if most is None or window <= most)
    return tuple(dict.fromkeys((SHORT, *(window + 1 for window in windows))))


def spans(geometry: Geometry) -> Iterator[int]:
    """Every window and chunk of a geometry, in tokens."""
    for store in (store for layer in geometry.layers for store in layer.stores):
        if isinstance(store, Attention) and isinstance(store.span, Sliding | Chunked):
            yield store.span.window if isinstance(store.span, Sliding) else store.span.size


def predict(geometry: Geometry, run: Run, dtype: str, transformers: str, encoder_tokens: int | None) -> int:
    """Bytes that the transformers engine computes for a run, in that release.

    Beams are put in order after each step, which copies what a growing cache's tensors show, not their storages.

    Raises:
        KvsizeError: it refuses the model, the cache or the release.
    """
    engine = load_engine("transformers")
    prompt = max(run.prompt, 1) if run.moment == "generate" else None
    workload = Workload(run.tokens, run.sequences, dtype, dtype, encoder_tokens, prompt)
    options = engine.Options(
        cache=run.cache,
        version=transformers,
        num_beams=run.num_beams,
        num_blocks=run.num_blocks if run.cache == PAGED else None,
    )
    size = engine.size(geometry, workload, options)
    if run.moment == "pool" and size.pool is not None:
        return int((size.pool.num_blocks + TRASH_SECTORS) * size.pool.bytes_per_block)
    if run.num_beams > 1 and run.cache in ("dynamic", "offloaded"):
        return int(size.logical_bytes)
    return int(size.after_prefill_bytes if run.moment == "prefill" else size.total_bytes)


def judge(geometry: Geometry, bench: Bench, run: Run, transformers: str) -> Result:
    """Predict a run, then measure it, then compare."""
    try:
        predicted = predict(geometry, run, bench.subject.dtype, transformers, bench.encoder_tokens)
    except KvsizeError as error:
        return Result(run, "refused", reason=error.what)
    short = too_little(predicted) if bench.device == "cpu" else None
    if short is not None:
        return Result(run, "out_of_memory", predicted, reason=short)
    try:
        measured = bench.measure(run)
    except OutOfMemoryError as error:
        return Result(run, "out_of_memory", predicted, reason=error.what)
    except KvsizeError as error:
        return Result(run, "not_run", predicted, reason=error.what)
    reason = difference(predicted, measured)
    return Result(run, "equal" if reason is None else "different", predicted, measured, reason)


def too_little(needed: int) -> str | None:
    """Why a cache of so many bytes is not built on this CPU: Linux would end the process instead of refusing memory."""
    available = available_bytes()
    if available is None or needed <= available - available // SPARE:
        return None
    return f"the cache needs {needed:,} bytes; {available:,} are available"


def difference(predicted: int, measured: Measured) -> str | None:
    """What is not as predicted, in words; None if nothing.

    Storages must be equal. torch on CUDA may hold more only by its rounding of each tensor to 512 bytes.
    """
    if predicted != measured.storage:
        return f"{measured.storage - predicted:+,} bytes against the prediction"
    device = measured.device
    if device is not None:
        most = measured.storage + CUDA_BLOCK * measured.tensors
        if not measured.storage <= device.allocated <= most:
            return f"torch allocated {device.allocated:,} bytes, more than its rounding of the tensors to 512"
    return None


def failed(results: Iterable[Result]) -> bool:
    """Whether anything differs, or nothing could be compared at all."""
    statuses = [result.status for result in results]
    return "different" in statuses or "equal" not in statuses
