"""TensorRT-LLM: blocks of 32 tokens, one pool a window size. Everything here is read from its source, nothing was run.

NVIDIA/TensorRT-LLM@001541b tensorrt_llm/_torch/pyexecutor/resource_manager.py (KVCacheManager, the first one) and
@0004396 _util.py. Its C++ files were not read. Bytes are those of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvsize.engines import CacheSize, Group, LayerBytes, Pool, Workload
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import canonical, format_of
from kvsize.geometry import Attention, Chunked, Full, Geometry, Heads, Latent, Layer, Sliding

VERSION = "001541b"  # main, by its commit; releases near it are 1.0 to 1.2

FORMATS = ("bfloat16", "float16", "float32", "fp8_e4m3")
NVFP4 = "nvfp4"
SCALE_GROUP = 16  # elements that share one fp8 scale
OTHER_ENGINES = "--engine vllm and --engine sglang cover such models."


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of TensorRT-LLM's KvCacheConfig and parallel mapping.

    `max_attention_window` is a list such as "4096,131072", repeated over the layers. `data_parallel_size` above 1 means
    attention data parallelism, where each rank keeps all heads.
    """

    version: str = VERSION
    kv_memory: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    tokens_per_block: int = 32
    max_attention_window: str | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1", got=str(value))
        if self.tokens_per_block < 1 or self.tokens_per_block & (self.tokens_per_block - 1):
            raise UsageError("--tokens-per-block is a power of two", got=str(self.tokens_per_block))
        if self.data_parallel_size not in (1, self.tensor_parallel_size):
            raise UsageError("attention data parallelism spans all --tp ranks", got=str(self.data_parallel_size))


@dataclass(frozen=True, slots=True)
class Cell:
    """One layer: bytes of a token, those that the window split divides by, and its window (None: everything)."""

    token: int
    divisor: int
    window: int | None = None


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes that a workload ties up in TensorRT-LLM's blocks on one rank, and what a budget holds.

    Raises:
        UnsupportedError: no rule covers the model: recurrent layers, indexers, K and V of different widths.
    """
    name, source = kv_format(geometry, workload)
    cells = layer_cells(geometry, name, workload, options)
    block = options.tokens_per_block
    held = [_request_blocks(cell, workload.tokens, block) * block * cell.token for cell in cells]
    pool, more = (None, []) if options.kv_memory is None else _pool(cells, options.kv_memory, workload.tokens, options)
    many = workload.sequences
    return CacheSize(
        engine="trtllm",
        version=options.version,
        cache="blocks",
        k_format=name,
        v_format=name,
        layers=tuple(
            LayerBytes(
                min(workload.tokens, cell.window or workload.tokens) * cell.token * many, part * many, part * many
            )
            for cell, part in zip(cells, held, strict=True)
        ),
        step_tokens=block,
        format_source=source,
        evidence="derived",
        pool=pool,
        notes=(*_notes(geometry, options), *more),
    )


def kv_format(geometry: Geometry, workload: Workload) -> tuple[str, str]:
    """The cache's format and where it came from.

    Raises:
        UnsupportedError: a format that no rule covers.
    """
    name = canonical(workload.k_format)
    if name != canonical(workload.v_format) or name not in (*FORMATS, NVFP4, "auto"):
        known = ", ".join((*FORMATS, NVFP4))
        raise UnsupportedError("TensorRT-LLM keeps K and V in one format of its own", hint=f"Known: auto, {known}.")
    if name != "auto":
        return name, "given"
    if geometry.dtype is not None:
        return geometry.dtype, "config"
    return "float32", "assumed: the config names no dtype; float32 is the widest"


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_cells(geometry: Geometry, name: str, workload: Workload, options: Options) -> list[Cell]:
    """The cell of each layer.

    Raises:
        UnsupportedError: a layer that no rule covers.
    """
    ranks = 1 if options.data_parallel_size > 1 else options.tensor_parallel_size
    stores = [_only_attention(layer) for layer in geometry.layers]
    _check_widths([store for store in stores if store is not None])
    windows = _windows(len(stores), workload, options)
    cells = []
    for store, window in zip(stores, windows, strict=True):
        elements = 0 if store is None else _elements(store, ranks)
        cells.append(Cell(_bytes(elements, name), _bytes(elements, name, scales=False), window))
    return cells


def _only_attention(layer: Layer) -> Attention | None:
    if layer.shares is not None:
        raise UnsupportedError("no rule says whether sharing layers get blocks of their own", hint=OTHER_ENGINES)
    if not layer.stores:
        return None
    store = layer.stores[0]
    if len(layer.stores) > 1 or not isinstance(store, Attention) or not isinstance(store.entry, Heads | Latent):
        raise UnsupportedError(
            "recurrent states and sparse-attention indexers are not modelled for TensorRT-LLM", hint=OTHER_ENGINES
        )
    if not isinstance(store.span, Full | Sliding | Chunked):
        raise UnsupportedError("encoder caches are not modelled for TensorRT-LLM", hint=OTHER_ENGINES)
    return store


def _check_widths(stores: Sequence[Attention]) -> None:
    """KVCacheManager takes one head_dim for K and V of all layers; others need its successor, which was not read."""
    widths = {w for store in stores for w in _widths(store)}
    if len(widths) > 1:
        raise UnsupportedError(
            f"TensorRT-LLM's first manager has one head width, and this model has {sorted(widths)}", hint=OTHER_ENGINES
        )


def _widths(store: Attention) -> tuple[int, ...]:
    match store.entry:
        case Heads(k_dim=k, v_dim=v):
            return (k, v)
        case _:
            return (store.entry.elements,)


def _elements(store: Attention, ranks: int) -> int:
    """get_cache_bytes_per_token: heads are divided up, a latent is kept by every rank."""
    match store.entry:
        case Heads(count=count, k_dim=k, v_dim=v):
            return ceil(count / ranks) * (k + v)
        case _:
            return store.entry.elements


def _bytes(elements: int, name: str, *, scales: bool = True) -> int:
    if name != NVFP4:
        return format_of(name).bytes(elements)
    return ceil(elements / 2) + (ceil(elements / SCALE_GROUP) if scales else 0)


def _windows(count: int, workload: Workload, options: Options) -> list[int | None]:
    """The repeating list of windows over the layers, none above the longest sequence."""
    if options.max_attention_window is None:
        return [None] * count
    parts = [part.strip() for part in options.max_attention_window.split(",")]
    if not all(part.isdecimal() and 0 < int(part) < 2**40 for part in parts):
        raise UsageError("--max-attention-window takes tokens such as 4096,131072", got=options.max_attention_window)
    longest = options.max_model_len or workload.tokens
    given = [min(int(part), longest) for part in parts]
    pattern = [None if window == longest else window for window in given]
    return [pattern[index % len(pattern)] for index in range(count)]


def _request_blocks(cell: Cell, tokens: int, block: int) -> int:
    """Whole blocks; a window touches one more while it slides over their edges."""
    blocks = ceil(tokens / block)
    return blocks if cell.window is None else min(blocks, ceil(cell.window / block) + 1)


# -- the pool ----------------------------------------------------------------------------------------------------------


def _pool(cells: Sequence[Cell], budget: int, tokens: int, options: Options) -> tuple[Pool, list[str]]:
    """calculate_max_num_blocks; with several window sizes, equal shares of memory for each."""
    stages = [cells[a:b] for a, b in _stages(len(cells), options.pipeline_parallel_size)]
    plans = [plan for stage in stages if (plan := _stage_blocks(stage, budget, options.tokens_per_block))]
    if not plans:
        raise UnsupportedError("no layer of this model caches anything")
    block = options.tokens_per_block
    tightest = min(plans, key=lambda plan: min(plan.values()))
    groups = [_group(cells, window, tokens, block) for window in tightest]
    need = {window: group.request_blocks for window, group in zip(tightest, groups, strict=True)}
    blocks = min(tightest.values())
    pool = Pool(
        num_blocks=blocks,
        block_size=block,
        bytes_per_block=sum(group.page_bytes for group in groups),
        tokens=blocks * block,
        max_concurrency=min(count / need[window] for window, count in tightest.items()),
        request_blocks=max(need.values()),
        request_bytes=sum(_request_blocks(cell, tokens, block) * block * cell.token for cell in cells),
        groups=tuple(groups),
    )
    notes = [f"{_name(window)}: {count:,} blocks" for window, count in tightest.items()] if len(tightest) > 1 else []
    if pool.max_concurrency < 1:
        notes.append("not one such request fits: TensorRT-LLM then shrinks its windows and longest sequence, and warns")
    return pool, notes


def _stages(layers: int, stages: int) -> list[tuple[int, int]]:
    base, extra = divmod(layers, stages)
    sizes = [base + (rank < extra) for rank in range(stages)]
    starts = [sum(sizes[:rank]) for rank in range(stages)]
    return [(start, start + length) for start, length in zip(starts, sizes, strict=True)]


def _stage_blocks(cells: Sequence[Cell], budget: int, block: int) -> dict[int | None, int]:
    """Blocks of each window size's pool."""
    windows = list(dict.fromkeys(cell.window for cell in cells if cell.token))
    plan = {}
    for window in windows:
        mine = [cell for cell in cells if cell.window == window]
        # the split by windows divides by elements alone, NVFP4's scales left out
        per_token = sum(cell.token if len(windows) == 1 else cell.divisor for cell in mine)
        plan[window] = budget // len(windows) // per_token // block
    return plan


def _group(cells: Sequence[Cell], window: int | None, tokens: int, block: int) -> Group:
    mine = [cell for cell in cells if cell.window == window and cell.token]
    return Group(
        _name(window),
        len(mine),
        block,
        block * sum(cell.token for cell in mine),
        _request_blocks(mine[0], tokens, block),
    )


def _name(window: int | None) -> str:
    return "full attention" if window is None else f"window {window:,}"


def _notes(geometry: Geometry, options: Options) -> list[str]:
    notes = ["TensorRT-LLM's rules were read from its source and not run"]
    if options.version != VERSION:
        notes.append(f"only the source at {VERSION} was read; {options.version} is computed by its rules")
    windows = any(
        isinstance(s, Attention) and not isinstance(s.span, Full) for ly in geometry.layers for s in ly.stores
    )
    if windows and options.max_attention_window is None:
        notes.append("windows are kept in full unless --max-attention-window lists them")
    if options.pipeline_parallel_size > 1:
        notes.append("layers of all stages are shown; the pool is that of the stage with the fewest blocks")
    return notes
