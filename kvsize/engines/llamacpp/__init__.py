"""llama.cpp: the caches it allocates for a context, from a GGUF's metadata or from a Hub config.

Everything is allocated at the start, for the whole context and all sequences: held is what the log prints as
"KV buffer size" and "RS buffer size". Checked against real loads of b11739, b11434, b8560 and b6173 (validate/truth).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsize.engines import CacheSize, Evidence, LayerBytes, Overhead, Pool, Scratch, Workload
from kvsize.engines.llamacpp import archs, notes, versions
from kvsize.engines.llamacpp.archs import arch_of
from kvsize.engines.llamacpp.context import Context, context
from kvsize.engines.llamacpp.pool import pool
from kvsize.engines.llamacpp.rows import Kept, Reading, Rows, alone, check_stores, drafts, is_latent, kept, reading
from kvsize.engines.llamacpp.types import Types, check_latent, check_widths, settle
from kvsize.engines.llamacpp.versions import VERSION, Build
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format, format_of
from kvsize.geometry import Geometry

__all__ = ["VERSION", "Options", "size"]

SLOTS = 4  # what llama-server makes of --parallel -1, with one pool for all. tools/server/server.cpp
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
F32 = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a llama.cpp context, under its own flags' names.

    `n_ctx`: cells for all sequences together (0: what the model was trained on; not given: the request's tokens for
    each sequence). `n_parallel`: sequences (-1: four, sharing one pool; not given: the workload's). `n_gpu_layers`: not
    given or negative puts every layer on the GPU. `num_speculative_tokens`: drafted ahead by layers of the model's own
    (--spec-draft-n-max). `kv_memory`: bytes for the caches; how long a context do they hold?
    """

    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int | None = None
    kv_unified: bool | None = None
    flash_attn: str | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    swa_full: bool = False
    n_gpu_layers: int | None = None
    kv_offload: bool = True
    num_speculative_tokens: int = 0
    kv_memory: int | None = None
    version: str = VERSION


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides a layer's bytes."""

    arch: str
    rules: Build
    types: Types
    cells: Context
    swa_full: bool
    snapshots: int  # states to roll back to, beside the current one


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of a llama.cpp context's caches.

    Raises:
        UsageError: a setting that means nothing.
        UnsupportedError: llama.cpp refuses this model or these settings, or nobody knows that build's rules.
    """
    plan = plan_of(geometry, workload, options)
    how = reading(geometry, plan.arch, old=plan.rules.old, flash=plan.types.flash)
    layers = kept(geometry, how)
    sizes = [layer_bytes(one, plan) for one in layers]
    on_host = _on_host(geometry, options)
    compressors = _compressors(layers, plan)
    overheads = {
        "drafting layers, kept with the others": sum(layer_bytes(one, plan) for one in drafts(geometry, how)),
        "cache for drafting": _draft_context(geometry, how, plan) if options.num_speculative_tokens else 0,
    }
    return CacheSize(
        engine="llama.cpp",
        version=plan.rules.name,
        cache="unified" if plan.cells.unified else "streams",
        k_format=plan.types.k.name,
        v_format=plan.types.v.name,
        layers=tuple(LayerBytes(n, n, n, n if host else 0) for n, host in zip(sizes, on_host, strict=True)),
        overheads=tuple(Overhead(name, count) for name, count in overheads.items() if count),
        transient_bytes=compressors,
        step_tokens=256,
        format_source=plan.types.source,
        evidence=_evidence(plan),
        pool=_pool(geometry, workload, options, plan),
        scratch=_scratch(geometry, layers, plan),
        notes=notes.notes(
            geometry,
            workload,
            options.n_ctx,
            plan.arch,
            plan.cells,
            layers,
            plan.types,
            _widened(geometry, sizes, plan),
            compressors,
        ),
    )


def _widened(geometry: Geometry, sizes: list[int], plan: Plan) -> str | None:
    """What the transposed V cache costs where layers differ in width. llama-kv-cache.cpp TAG_V_CACHE_VARIABLE"""
    if plan.types.flash:
        return None
    exact = kept(geometry, reading(geometry, plan.arch, old=plan.rules.old, flash=True))
    more = sum(sizes) - sum(layer_bytes(one, plan) for one in exact)
    return f"without flash attention every layer's V is as wide as the widest: {more:,} bytes more" if more else None


def _scratch(geometry: Geometry, layers: tuple[Kept, ...], plan: Plan) -> Scratch:
    """Cells of one sequence: those of its whole context, and those of its window beside them."""
    cells = plan.cells
    windows = {rows.window for one in layers for rows in one.rows if rows.window and not plan.swa_full}
    attended = cells.per_stream + max((cells.window_cells(w, shared=cells.unified) for w in windows), default=0)
    return Scratch(cells.ubatch, attended, geometry.num_attention_heads or 0, plan.types.flash)


def _pool(geometry: Geometry, workload: Workload, options: Options, plan: Plan) -> Pool | None:
    if options.kv_memory is None:
        return None

    def total(n_ctx: int) -> int:
        return size(geometry, workload, replace(options, n_ctx=n_ctx, kv_memory=None)).total_bytes

    return pool(options.kv_memory, workload.tokens, plan.cells.sequences, total)


def plan_of(geometry: Geometry, workload: Workload, options: Options) -> Plan:
    """Settle architecture, types and cells, refusing what llama.cpp refuses."""
    rules, arch = versions.build(options.version), arch_of(geometry)
    versions.check_arch(rules, arch, indexed=arch in archs.INDEXED)
    check_stores(geometry.layers, arch)
    types = settle(workload, options.cache_type_k, options.cache_type_v, options.flash_attn, arch, rules)
    if is_latent(geometry, arch) or arch == "deepseek4":
        check_latent(types, rules)
    check_widths(geometry, types, arch)
    cells = _cells(geometry, workload, options, arch, rules, flash=types.flash)
    ahead = options.num_speculative_tokens
    if ahead < 0:
        raise UsageError("--num-speculative-tokens must not be negative", got=str(ahead))
    return Plan(arch, rules, types, cells, options.swa_full, ahead if arch in archs.ROLLS_BACK else 0)


def _cells(
    geometry: Geometry, workload: Workload, options: Options, arch: str, rules: Build, *, flash: bool
) -> Context:
    sequences, unified = _sequences(workload, options)
    if arch == "t5" and sequences > 1 and not unified:
        raise UnsupportedError("llama.cpp aborts on T5 with a stream for each sequence", hint="Use --kv-unified.")
    for name, value, least in (("batch", options.n_batch, 1), ("ubatch", options.n_ubatch, 0)):
        if value < least:
            raise UsageError(f"--{name}-size must be at least {least}", got=str(value))
    hybrid = arch in archs.STATEFUL
    n_ctx = _n_ctx(geometry, workload, options, sequences)
    return context(n_ctx, sequences, unified, options.n_batch, options.n_ubatch, rules, flash=flash, hybrid=hybrid)


def _sequences(workload: Workload, options: Options) -> tuple[int, bool]:
    """How many sequences, and whether they share one pool."""
    given = workload.sequences if options.n_parallel is None else options.n_parallel
    if given == -1:
        return SLOTS, options.kv_unified is not False
    if given < 1:
        raise UsageError("--parallel must be at least 1, or -1 for the server's own choice", got=str(given))
    if given > MAX_SEQUENCES:
        hint = "Use several servers."
        raise UnsupportedError(f"llama.cpp serves at most {MAX_SEQUENCES} sequences", got=str(given), hint=hint)
    return given, options.kv_unified is True


def _n_ctx(geometry: Geometry, workload: Workload, options: Options, sequences: int) -> int:
    if options.n_ctx is None:
        return workload.tokens * sequences
    if options.n_ctx < 0:
        raise UsageError("--ctx-size must not be negative", got=str(options.n_ctx))
    if options.n_ctx:
        return options.n_ctx
    if geometry.max_tokens is None:
        raise UsageError("--ctx-size 0 means the model's own context, and the model names none", hint="Give a number.")
    return geometry.max_tokens


def layer_bytes(one: Kept, plan: Plan) -> int:
    """Bytes of one layer, all sequences together."""
    states = one.state * F32 * plan.cells.sequences * (1 + plan.snapshots)
    return states + sum(_rows_bytes(rows, plan) for rows in one.rows)


def _rows_bytes(rows: Rows, plan: Plan) -> int:
    row = _row(rows.k, plan.types.k) + _row(rows.v, plan.types.v)
    return row * rows.cells(plan.cells, swa_full=plan.swa_full)


def _row(elements: int, unit: Format) -> int:
    if elements % unit.block_elements:
        what = f"{elements} elements a cell are no whole number of {unit.name} blocks of {unit.block_elements}"
        raise UnsupportedError(what, hint="Use f16.")
    return unit.bytes(elements)


def _compressors(layers: tuple[Kept, ...], plan: Plan) -> int:
    """DeepSeek-V4's compressor states, which llama.cpp logs apart from its caches."""
    return sum(one.compressor for one in layers) * F32 * plan.cells.sequences * (1 + plan.snapshots)


def _draft_context(geometry: Geometry, how: Reading, plan: Plan) -> int:
    """The caches of a second context, of the drafting layers alone and in float16. common/speculative.cpp"""
    if geometry.drafts and plan.arch in ("deepseek4", "glm5-next"):
        raise UnsupportedError(f"the context in which {plan.arch} drafts has no rule here", hint="Leave out drafting.")
    f16 = format_of("float16")
    apart = replace(plan, types=replace(plan.types, k=f16, v=f16))
    return sum(layer_bytes(one, apart) for one in alone(geometry, how))


def _on_host(geometry: Geometry, options: Options) -> list[bool]:
    """Which layers' caches stay in host memory: all but the last n_gpu_layers - 1. llama-model.cpp load_tensors"""
    count = len(geometry.layers)
    given = options.n_gpu_layers
    if not options.kv_offload:
        return [True] * count
    first = 0 if given is None or given < 0 else max(count + len(geometry.drafts) + 1 - given, 0)
    return [index < first for index in range(count)]


def _evidence(plan: Plan) -> Evidence:
    return "exact" if plan.rules.ran and plan.arch in archs.MEASURED else "derived"
