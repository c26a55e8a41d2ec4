"""SGLang: one pool of token slots, one of window slots for some classes, one of state slots.

Rules from sglang@0.5.23 model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py, checked against
recorded runs of that very code (validate/truth). Bytes are those of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvsize.engines import CacheSize, Group, LayerBytes, Overhead, Pool, Workload
from kvsize.engines.sglang import models
from kvsize.engines.sglang.cells import LayerCell, Layout, charged_layers, layer_cells
from kvsize.engines.sglang.pool import Plan, Settings, largest_window, live_window, plan
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import canonical, format_of
from kvsize.geometry import Geometry

VERSION = "0.5.23"

FORMATS = ("bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2")
FP4 = ("nvfp4", "fp4_mx_block16", "fp4", "fp4_e2m1", "mxfp4")
INDEXED_PAGE = 64  # arg_groups/model_overrides/deepseek_v2.py
DEFAULT_CONTEXT = 2048  # utils/hf_transformers/common.py get_context_length
WINDOW_RATIO, STATE_RATIO = 0.8, 0.9  # arg_groups/fields/schedule.py
SPECULATIVE_REQUESTS = 48  # arg_groups/speculative_hook.py
STRATEGY_SLOTS = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}  # _calculate_mamba_ratio, with overlap


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of `sglang.launch_server`, under their flags' names.

    `data_parallel_size` is that of attention (--enable-dp-attention). `num_speculative_tokens` are the steps drafted
    ahead, one branch each; a draft has `num_draft_layers` layers shaped like the model's own.
    """

    version: str = VERSION
    kv_memory: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    max_model_len: int | None = None
    page_size: int | None = None
    swa_full_tokens_ratio: float = WINDOW_RATIO
    mamba_full_memory_ratio: float = STATE_RATIO
    max_mamba_cache_size: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int = 8192
    disable_radix_cache: bool = False
    mamba_radix_cache_strategy: str = "auto"
    mamba_ssm_cache_dtype: str | None = None
    num_speculative_tokens: int = 0
    num_draft_layers: int = 1
    dsa_decode_backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("decode_context_parallel_size", "page_size", "num_draft_layers", "max_running_requests"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_mamba_cache_size", "max_total_tokens", "max_model_len"):
            _at_least(name, getattr(self, name), 1)
        if self.tensor_parallel_size % (self.data_parallel_size * self.decode_context_parallel_size):
            raise UsageError("--tp must be a multiple of --dp-size x --dcp", got=str(self.tensor_parallel_size))
        if not 0 < self.swa_full_tokens_ratio <= 1:
            raise UsageError("--swa-full-tokens-ratio lies above 0, up to 1", got=str(self.swa_full_tokens_ratio))
        if self.mamba_full_memory_ratio <= 0:
            raise UsageError("--mamba-full-memory-ratio must be positive", got=str(self.mamba_full_memory_ratio))
        if self.mamba_radix_cache_strategy not in ("auto", *STRATEGY_SLOTS):
            known = ", ".join(("auto", *STRATEGY_SLOTS))
            raise UsageError(
                "unknown --mamba-radix-cache-strategy", got=self.mamba_radix_cache_strategy, hint=f"Known: {known}"
            )


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise UsageError(f"--{name.replace('_', '-')} must be at least {low}", got=str(value))


@dataclass(frozen=True, slots=True)
class Model:
    """A geometry as SGLang reads it: a cell for each of its layers, and how many layers the pools count."""

    geometry: Geometry
    cells: tuple[LayerCell, ...]
    charged: int
    settings: Settings
    contexts: int

    @property
    def pooled(self) -> tuple[LayerCell, ...]:
        """The cells that the pools are made for."""
        missing = max(self.charged - len(self.cells), 0)
        return (*self.cells[: self.charged], *self.cells[-1:] * missing)

    def request_pages(self, tokens: int) -> int:
        """Pages of one request on one rank."""
        return ceil(ceil(tokens / self.contexts) / self.settings.page)


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes that a workload ties up in SGLang's pools on one rank, and what a budget holds.

    Raises:
        UnsupportedError: SGLang refuses the model or the setting, or no rule covers it.
    """
    name, source = kv_format(geometry, workload)
    model = resolve(geometry, name, options)
    parts = [_layer(cell, model, workload.tokens) for cell in model.cells]
    extra = sum(_held(cell, model, workload.tokens) for cell in model.pooled[len(model.cells) :])
    notes = [*_notes(model, workload, options, name)]
    pool = None
    if options.kv_memory is not None:
        planned = plan(model.pooled, options.kv_memory, model.settings)
        pool, more = pool_of(model, planned, workload.tokens, sum(part.held for part in parts) + extra)
        notes += more
    many = workload.sequences
    return CacheSize(
        engine="sglang",
        version=options.version,
        cache="pools" if models.windows_pooled(geometry) or models.states_pooled(geometry) else "pool",
        k_format=name,
        v_format=name,
        layers=tuple(LayerBytes(p.logical * many, p.held * many, p.after_prefill * many) for p in parts),
        overheads=(Overhead("layers that SGLang counts and the decoder lacks", extra * many),) if extra else (),
        step_tokens=model.settings.page * model.contexts,
        format_source=source,
        evidence="derived" if _is_derived(geometry, model, options, name) else "exact",
        pool=pool,
        notes=tuple(notes),
    )


# -- what the engine resolves ------------------------------------------------------------------------------------------


def kv_format(geometry: Geometry, workload: Workload) -> tuple[str, str]:
    """The cache's format and where it came from. model_config.py _get_and_verify_dtype: float32 is cast down.

    Raises:
        UnsupportedError: a format SGLang has no pool for, or one that is not modelled.
    """
    if workload.k_format != workload.v_format:
        raise UnsupportedError("SGLang keeps K and V in one format", hint="llama.cpp can mix formats.")
    name = canonical(workload.k_format)
    if name in FP4:
        raise UnsupportedError(
            "fp4 pools also hold a workspace that depends on the attention backend: not modelled",
            hint="Use --kv-cache-dtype fp8_e4m3.",
        )
    if name not in (*FORMATS, "mxfp8", "auto"):
        raise UnsupportedError(
            f"SGLang has no KV pool in {workload.k_format}", hint="Known: auto, mxfp8, " + ", ".join(FORMATS)
        )
    if name != "auto":
        return name, "given"
    if geometry.kv_scheme in ("fp8", "fp8_e4m3"):  # mem_cache/kv_cache_dtype.py configure_kv_cache_dtype
        return "fp8_e4m3", "the checkpoint brings scales for an fp8 cache"
    if geometry.dtype in ("bfloat16", "float16"):
        return geometry.dtype, "config"
    cast = "bfloat16" if geometry.model_type.startswith("gemma") else "float16"
    return cast, f"SGLang runs {geometry.dtype or 'configs without a dtype'} as {cast}"


def resolve(geometry: Geometry, name: str, options: Options) -> Model:
    """The model's cells and the settings its pools are planned with.

    Raises:
        UnsupportedError: SGLang cannot load it, or no rule covers it.
    """
    models.check(geometry)
    if options.num_speculative_tokens and options.decode_context_parallel_size > 1:
        raise UnsupportedError("drafts under decode context parallelism are not modelled")
    layout = Layout(
        unit=format_of("fp8_e4m3" if name == "mxfp8" else name),
        state=format_of(_state_format(geometry, options)),
        tensor=options.tensor_parallel_size // options.data_parallel_size,
        ranks=options.tensor_parallel_size,
        context=options.decode_context_parallel_size,
        scaled=name == "mxfp8",
        raw_latent=options.dsa_decode_backend == "trtllm",
    )
    cells = layer_cells(geometry, layout)
    return Model(
        geometry, cells, charged_layers(geometry), _settings(geometry, options), options.decode_context_parallel_size
    )


def _settings(geometry: Geometry, options: Options) -> Settings:
    limit = geometry.max_tokens or DEFAULT_CONTEXT
    stretched = int(limit * geometry.context_factor)
    if options.max_model_len is not None and options.max_model_len > stretched:
        raise UnsupportedError(
            f"SGLang refuses --context-length {options.max_model_len:,} on a model of {stretched:,} tokens",
            hint="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets it; then leave --context-length out here.",
        )
    drafts = options.num_speculative_tokens
    requests = options.max_running_requests
    return Settings(
        page=options.page_size or (INDEXED_PAGE if models.is_indexed(geometry) else 1),
        context_length=options.max_model_len or limit,
        stages=options.pipeline_parallel_size,
        replicas=options.data_parallel_size,
        window_ratio=options.swa_full_tokens_ratio,
        state_ratio=options.mamba_full_memory_ratio,
        state_slots=options.max_mamba_cache_size,
        running_requests=requests if requests or not drafts else SPECULATIVE_REQUESTS,
        max_tokens=options.max_total_tokens,
        chunk=options.chunked_prefill_size,
        radix=not options.disable_radix_cache,
        slots=_slots_per_request(geometry, options),
        draft_tokens=drafts + 1 if drafts else 0,
        draft_layers=options.num_draft_layers if drafts else 0,
    )


def _slots_per_request(geometry: Geometry, options: Options) -> int:
    if options.disable_radix_cache:
        return 1
    strategy = options.mamba_radix_cache_strategy
    if strategy == "auto":
        strategy = "extra_buffer" if geometry.architecture in models.EXTRA_BUFFER else "no_buffer"
    return STRATEGY_SLOTS[strategy]


def _state_format(geometry: Geometry, options: Options) -> str:
    stated = geometry.state_dtype if geometry.model_type in models.STATE_DTYPE_TYPES else None
    return options.mamba_ssm_cache_dtype or stated or "float32"


# -- bytes of a request ------------------------------------------------------------------------------------------------


def _layer(cell: LayerCell, model: Model, tokens: int) -> LayerBytes:
    """One request in one layer: its elements, what it holds while decoding, and with its last prompt chunk in."""
    kept = ceil(tokens / model.contexts)
    logical = min(kept, cell.window or kept) * cell.token + cell.state
    return LayerBytes(logical, _held(cell, model, tokens), _held(cell, model, tokens, max(model.settings.chunk, 0)))


def _held(cell: LayerCell, model: Model, tokens: int, chunk: int = 0) -> int:
    """Whole pages; a window keeps what decoding needs at worst; every slot that a request ties up."""
    page = model.settings.page
    pages = model.request_pages(tokens)
    if cell.window is not None:
        pages = min(pages, ceil((live_window(cell.window, model.settings) + chunk) / page))
    return pages * page * cell.token + model.settings.slots * cell.state


# -- the pool ----------------------------------------------------------------------------------------------------------


def pool_of(model: Model, planned: Plan, tokens: int, request_bytes: int) -> tuple[Pool, list[str]]:
    """The pool as the report shows it, and what it needs said."""
    page, pages = model.settings.page, model.request_pages(tokens)
    groups = tuple(_groups(model, planned, pages))
    limits = _limits(model, planned, pages)
    binding = min(limits, key=lambda name: limits[name])
    per_block = page * (planned.full_bytes or planned.window_bytes)
    pool = Pool(
        num_blocks=planned.tokens // page,
        block_size=page,
        bytes_per_block=per_block,
        tokens=planned.tokens,
        max_concurrency=limits[binding],
        request_blocks=pages,
        request_bytes=request_bytes,
        groups=groups,
    )
    return pool, [f"concurrency is limited by {binding}", *_pool_notes(planned, page)]


def _groups(model: Model, planned: Plan, pages: int) -> list[Group]:
    page = model.settings.page
    full = [cell for cell in model.pooled if cell.window is None and cell.token]
    windowed = [cell for cell in model.pooled if cell.window is not None]
    stateful = [cell for cell in model.pooled if cell.state]
    groups = [Group("full attention", len(full), page, page * planned.full_bytes, pages)] if full else []
    if windowed:
        groups.append(Group("window", len(windowed), page, page * planned.window_bytes, _window_pages(model, pages)))
    if stateful:
        groups.append(Group("state slots", len(stateful), 1, planned.slot_bytes, model.settings.slots))
    return groups


def _window_pages(model: Model, pages: int) -> int:
    """Pages of the window pool that one request holds at worst, of `pages` in the full one."""
    return min(pages, ceil(live_window(largest_window(model.pooled), model.settings) / model.settings.page))


def _limits(model: Model, planned: Plan, pages: int) -> dict[str, float]:
    """Requests of this length that each pool holds; the smallest is the concurrency."""
    page = model.settings.page
    limits: dict[str, float] = {"tokens": planned.tokens // page / pages}
    if planned.window_tokens is not None:
        need = _window_pages(model, pages)
        limits["window tokens (--swa-full-tokens-ratio)"] = planned.window_tokens // page / need
    if planned.state_slots is not None:
        slots = model.settings.slots
        limits[f"state slots: {planned.state_slots:,}, {slots} a request"] = float(planned.state_slots // slots)
    limits["max_running_requests"] = float(planned.requests)
    return limits


def _pool_notes(planned: Plan, page: int) -> list[str]:
    padding = page * (planned.full_bytes + planned.window_bytes)
    notes = []
    if padding:
        notes.append(f"every buffer has one page of padding, which the budget does not count: {padding:,} bytes")
    if planned.window_tokens is not None:
        notes.append(f"the window pool holds {planned.window_tokens:,} tokens")
    if planned.state_slots is not None:
        total = (planned.state_slots + 1) * planned.slot_bytes
        notes.append(f"{planned.state_slots:,} state slots and one of padding take {total:,} bytes")
    return notes


# -- notes -------------------------------------------------------------------------------------------------------------


def _notes(model: Model, workload: Workload, options: Options, name: str) -> list[str]:
    geometry, settings = model.geometry, model.settings
    doubt = models.doubtful(geometry, model.charged)
    notes = [doubt] if doubt else []
    if options.version != VERSION:
        notes.append(f"only sglang {VERSION} was checked; {options.version} is computed by its rules")
    if any(models.is_window(layer) for layer in geometry.layers) and not models.windows_pooled(geometry):
        notes.append(f"SGLang keeps windows in full for {geometry.architecture}: it is not on its list of classes")
    if any(layer.shares is not None for layer in geometry.layers):
        notes.append("SGLang gives buffers to layers that read another layer's cache, too")
    if models.windows_pooled(geometry):
        notes.append(
            "a request's window tokens are the most it holds while decoding; while a prompt is read, up to "
            f"{options.chunked_prefill_size:,} tokens (--chunked-prefill-size) more"
        )
    if models.is_indexed(geometry):
        notes += _index_notes(settings, workload, name)
    if workload.tokens > settings.context_length:
        notes.append(f"SGLang takes requests of up to {settings.context_length:,} tokens here")
    return notes + _parallel_notes(options)


def _index_notes(settings: Settings, workload: Workload, name: str) -> list[str]:
    notes = []
    if settings.page != INDEXED_PAGE:
        notes.append(
            f"SGLang allocates this model's pool in pages of {INDEXED_PAGE} only, and overrides --page-size "
            f"{settings.page}; the tokens shown are what its sizing code gives for {settings.page}"
        )
    if workload.k_format == "auto":
        notes.append(f"auto is {name} on Hopper; on Blackwell SGLang takes fp8_e4m3 for this model")
    return notes


def _parallel_notes(options: Options) -> list[str]:
    notes = []
    if options.pipeline_parallel_size > 1:
        notes.append("layers of all stages are shown; the pool is that of the stage with the fewest tokens")
    if options.decode_context_parallel_size > 1:
        notes.append(
            f"a request's tokens are spread over {options.decode_context_parallel_size} ranks; tokens are one rank's"
        )
    if options.num_speculative_tokens:
        notes.append(
            f"a draft of {options.num_draft_layers} layers like the model's own is charged to every token of the pool"
        )
    return notes


def _is_derived(geometry: Geometry, model: Model, options: Options, name: str) -> bool:
    return (
        options.version != VERSION
        or name == "mxfp8"
        or options.pipeline_parallel_size > 1
        or options.num_speculative_tokens > 0
        or models.doubtful(geometry, model.charged) is not None
        or not models.was_run(geometry)
    )
