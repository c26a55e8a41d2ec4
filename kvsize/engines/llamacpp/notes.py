"""What a person should know beside llama.cpp's figures."""

from __future__ import annotations

from collections.abc import Sequence

from kvsize.engines import Workload
from kvsize.engines.llamacpp.archs import WINDOWED
from kvsize.engines.llamacpp.context import Context
from kvsize.engines.llamacpp.rows import Kept
from kvsize.engines.llamacpp.types import Types
from kvsize.geometry import Attention, Chunked, Geometry, Sliding


def notes(
    geometry: Geometry,
    workload: Workload,
    n_ctx: int | None,
    arch: str,
    cells: Context,
    layers: Sequence[Kept],
    types: Types,
    widened: str | None,
    apart: int,
) -> tuple[str, ...]:
    """Padding, windows, and what flash attention does, each where it matters; `apart` are bytes outside the caches."""
    caches = any(one.rows for one in layers)
    found = [
        _others(workload, cells),
        _padding(workload, n_ctx, cells) if caches else None,
        _too_long(workload, cells) if caches else None,
        _ignored_window(geometry, arch),
        widened,
        _without_flash(geometry, cells, types) if caches else None,
        f"flash attention is off: llama.cpp cannot use it with {arch}" if types.forced else None,
        f"{apart:,} bytes of compressor states are in the peak only: llama.cpp logs them apart" if apart else None,
    ]
    return tuple(note for note in found if note)


def _others(workload: Workload, cells: Context) -> str | None:
    if workload.sequences == cells.sequences:
        return None
    return f"these figures are those of --parallel: {cells.sequences} sequences, not {workload.sequences}"


def _padding(workload: Workload, n_ctx: int | None, cells: Context) -> str | None:
    wanted = workload.tokens * cells.sequences if n_ctx is None else n_ctx
    if cells.cells == wanted or not wanted:
        return None
    split = "" if cells.streams == 1 else f", {cells.per_stream:,} for each of {cells.streams} sequences"
    return f"{wanted:,} tokens take {cells.cells:,} cells{split}: contexts are padded"


def _too_long(workload: Workload, cells: Context) -> str | None:
    if workload.tokens <= cells.per_stream:
        return None
    return f"one sequence has {cells.per_stream:,} cells: a request of {workload.tokens:,} tokens does not fit"


def _ignored_window(geometry: Geometry, arch: str) -> str | None:
    if arch in WINDOWED:
        return None
    spans = [s.span for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    sizes = [span.window for span in spans if isinstance(span, Sliding)]
    sizes += [span.size for span in spans if isinstance(span, Chunked)]
    return f"llama.cpp ignores this model's window of {max(sizes):,} tokens" if sizes else None


def _without_flash(geometry: Geometry, cells: Context, types: Types) -> str | None:
    """The part of the compute buffer that grows with the context: scores of each head, and the mask."""
    if types.flash or geometry.num_attention_heads is None:
        return None
    scores = 4 * cells.ubatch * (geometry.num_attention_heads + 1) * cells.per_stream
    return f"not counted: without flash attention the compute buffer holds about {scores:,} bytes of scores"
