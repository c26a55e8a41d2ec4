"""How a budget becomes pools: tokens, window tokens, state slots, requests.

sglang@0.5.23 model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py. Floats stand where the engine
divides in floats, so that the last token agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvsize.engines.sglang.cells import LayerCell
from kvsize.errors import UnsupportedError

EVICTION_INTERVAL = 128  # environ.py SGLANG_SWA_EVICTION_INTERVAL


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner needs to know, all of it resolved.

    `draft_tokens` is 0 without speculation. `slots` are the state slots that one request ties up.
    """

    page: int
    context_length: int
    stages: int = 1
    replicas: int = 1
    window_ratio: float = 0.8
    state_ratio: float = 0.9
    state_slots: int | None = None
    running_requests: int | None = None
    max_tokens: int | None = None
    chunk: int = 8192
    radix: bool = True
    slots: int = 1
    draft_tokens: int = 0
    draft_layers: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """The pools of one stage's attention: their tokens, and bytes of one token in each."""

    tokens: int
    cell: float
    full_bytes: int
    window_tokens: int | None
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Plan(Stage):
    """What the engine prints: max_total_num_tokens, the window pool's tokens, state slots, max_running_requests."""

    requests: int
    state_slots: int | None
    slot_bytes: int


def plan(cells: Sequence[LayerCell], budget: int, settings: Settings) -> Plan:
    """The pools that `budget` bytes of one rank become; with pipeline stages, of the one that holds the fewest tokens.

    Raises:
        UnsupportedError: the budget holds no request.
    """
    slots, per_slot = _state_slots(cells, budget, settings)
    kv_budget = budget if slots is None else _after_states(budget, slots, per_slot, settings)
    parts = [cells[start:end] for start, end in stage_ranges(len(cells), settings.stages)]
    stages = [_stage(part, kv_budget, settings) for part in parts if any(cell.token for cell in part)]
    tightest = min(stages, key=lambda stage: stage.tokens, default=_without_attention(settings))
    if tightest.tokens <= 0:
        raise UnsupportedError(f"{budget:,} bytes hold no token", hint="Give more with --kv-memory.")
    return Plan(
        tightest.tokens,
        tightest.cell,
        tightest.full_bytes,
        tightest.window_tokens,
        tightest.window_bytes,
        _requests(tightest.tokens, slots, settings),
        slots,
        per_slot,
    )


def stage_ranges(layers: int, stages: int) -> list[tuple[int, int]]:
    """distributed/utils.py get_pp_indices: the last stages take the layers left over."""
    base, extra = divmod(layers, stages)
    sizes = [base + (1 if rank >= stages - extra else 0) for rank in range(stages)]
    starts = [sum(sizes[:rank]) for rank in range(stages)]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _pages(tokens: int, page: int) -> int:
    return tokens // page * page


# -- one stage's attention ---------------------------------------------------------------------------------------------


def _without_attention(settings: Settings) -> Stage:
    """States alone: the context is the limit."""
    return Stage(_pages(settings.max_tokens or settings.context_length, settings.page), 0.0, 0, None, 0)


def _stage(cells: Sequence[LayerCell], budget: int, settings: Settings) -> Stage:
    full = [cell for cell in cells if cell.window is None and cell.token]
    windowed = [cell for cell in cells if cell.window is not None]
    window_bytes = sum(cell.token for cell in windowed)
    if not full:  # no ratio to relate to
        tokens = _capped(budget // window_bytes, settings)
        return Stage(tokens, window_bytes, 0, tokens, window_bytes)
    full_bytes = sum(cell.token for cell in full) + _draft_bytes(full, settings)
    if not windowed:
        return Stage(_capped(budget // full_bytes, settings), full_bytes, full_bytes, None, 0)
    return _both(full_bytes, windowed, window_bytes, budget, settings)


def _capped(tokens: int, settings: Settings) -> int:
    """Whole pages, within --max-total-tokens."""
    most = settings.max_tokens
    return _pages(tokens if most is None else min(tokens, most), settings.page)


def _draft_bytes(full: Sequence[LayerCell], settings: Settings) -> int:
    """A draft is charged like so many of the target's own layers; its indexer never skips one."""
    kv = int(sum(cell.kv for cell in full) * settings.draft_layers / len(full))
    return kv + max(cell.index for cell in full) * settings.draft_layers


def _both(full_bytes: int, windowed: Sequence[LayerCell], window_bytes: int, budget: int, settings: Settings) -> Stage:
    """HybridSWAPoolConfigurator: the window pool holds a fixed share of the full pool's tokens, needed or not."""
    cell, page = full_bytes + settings.window_ratio * window_bytes, settings.page
    cap = _window_cap(windowed, settings)
    if cap is None:
        tokens = _capped(int(budget // cell), settings)
        window_tokens = _pages(int(tokens * settings.window_ratio), page)
        _check_window(windowed, window_tokens, page)
        return Stage(tokens, cell, full_bytes, window_tokens, window_bytes)
    tokens = _pages((budget - cap * window_bytes) // full_bytes, page)
    if settings.max_tokens and settings.max_tokens < tokens:
        tokens, cap = _pages(settings.max_tokens, page), min(cap, settings.max_tokens)
    return Stage(tokens, cell, full_bytes, cap, window_bytes)


def _window_cap(windowed: Sequence[LayerCell], settings: Settings) -> int | None:
    """SWARequestCapPoolConfigurator: without prefix sharing and with a request limit, windows take what they need.

    A chunk is no window there: the recorded run of Llama 4 kept the ratio.
    """
    running = settings.running_requests
    if settings.radix or running is None or settings.chunk <= 0 or any(cell.chunked for cell in windowed):
        return None
    requests = max(1, running // settings.replicas)
    need = requests * live_window(largest_window(windowed), settings) + 2 * settings.chunk + settings.page
    return ceil(need / settings.page) * settings.page


def live_window(window: int, settings: Settings) -> int:
    """compute_swa_request_cap: window tokens that one request holds at worst while decoding."""
    steps = max(settings.draft_tokens, 1)
    allocated = 2 * settings.draft_tokens if settings.draft_tokens else settings.page
    return window + EVICTION_INTERVAL * steps + settings.page + allocated


def largest_window(cells: Sequence[LayerCell]) -> int:
    """The widest of the cells' windows, in tokens."""
    return max(cell.window for cell in cells if cell.window is not None)


def _check_window(windowed: Sequence[LayerCell], window_tokens: int, page: int) -> None:
    floor = largest_window(windowed) + page
    if floor >= window_tokens:
        raise UnsupportedError(
            f"the window pool of {window_tokens:,} tokens is below one request's window and page, {floor:,}",
            hint="Raise --swa-full-tokens-ratio or --kv-memory.",
        )


# -- states ------------------------------------------------------------------------------------------------------------


def _state_slots(cells: Sequence[LayerCell], budget: int, settings: Settings) -> tuple[int | None, int]:
    """(max_mamba_cache_size, bytes of one slot on the stage with the most recurrent layers); None: no states."""
    states = [cell.state for cell in cells]
    layers = sum(1 for size in states if size)
    if not layers:
        return None, 0
    most = max(sum(1 for size in states[a:b] if size) for a, b in stage_ranges(len(cells), settings.stages))
    per_slot = int(sum(states) * (most / layers))
    slots = _slots(budget, per_slot, settings)
    if slots <= 0:
        raise UnsupportedError(
            f"{budget:,} bytes hold no state slot of {per_slot:,} bytes", hint="Give more with --kv-memory."
        )
    return slots, per_slot


def _slots(budget: int, per_slot: int, settings: Settings) -> int:
    if settings.state_slots is not None:
        return settings.state_slots // settings.replicas
    if not settings.radix and settings.running_requests is not None:
        return max(1, settings.running_requests // settings.replicas)
    share = budget * settings.state_ratio / (1 + settings.state_ratio)
    drafts = settings.draft_tokens  # each request's steps are kept until they are verified
    per_request = per_slot * (1 + drafts / settings.slots) if drafts else per_slot
    return int((share - per_slot * (1 + drafts)) // per_request)


def _after_states(budget: int, slots: int, per_slot: int, settings: Settings) -> int:
    """_handle_max_mamba_cache: one slot more than counted is padding."""
    drafts = 0
    if settings.draft_tokens:
        requests = min(max(1, (settings.running_requests or 48) // settings.replicas), slots // settings.slots)
        drafts = (requests + 1) * settings.draft_tokens
    return budget - (slots + 1 + drafts) * per_slot


def _requests(tokens: int, slots: int | None, settings: Settings) -> int:
    """resolve_max_num_reqs."""
    estimated = max(min(int(tokens / settings.context_length * 512), 4096), 2048)
    wanted = settings.running_requests
    limit = estimated if wanted is None else max(1, wanted // settings.replicas)
    limit = min(limit, tokens // 2)
    return limit if slots is None else min(limit, slots // settings.slots)
