"""How a budget becomes pools: tokens, window tokens, state slots, requests.

sglang@0.5.23 model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py. Floats stand where the engine
divides in floats, so that the last token agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from kvsize.engines.sglang.cells import LayerCell
from kvsize.errors import UnsupportedError

GIB = 1 << 30
EVICTION_INTERVAL = 128  # environ.py SGLANG_SWA_EVICTION_INTERVAL
UNLIMITED = 2**63 - 1


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
class Plan:
    """What the engine prints: max_total_num_tokens, the window pool's tokens, state slots, max_running_requests."""

    tokens: int
    requests: int
    cell: float
    full_bytes: int
    window_tokens: int | None = None
    window_bytes: int = 0
    state_slots: int | None = None
    slot_bytes: int = 0


def plan(cells: Sequence[LayerCell], budget: int, settings: Settings) -> Plan:
    """The pools that `budget` bytes of one rank become; with pipeline stages, of the one that holds the fewest tokens.

    Raises:
        UnsupportedError: the budget holds no request.
    """
    slots, per_slot = _state_slots(cells, budget, settings)
    kv_budget = budget if slots is None else _after_states(budget, slots, per_slot, settings)
    stages = [_stage(cells[start:end], kv_budget, settings) for start, end in stage_ranges(len(cells), settings.stages)]
    tightest = min(stages, key=lambda stage: stage.tokens)
    if tightest.tokens <= 0:
        raise UnsupportedError(f"{budget:,} bytes hold no token", hint="Give more with --kv-memory.")
    requests = _requests(tightest.tokens, slots, settings)
    return replace(tightest, requests=requests, state_slots=slots, slot_bytes=per_slot)


def stage_ranges(layers: int, stages: int) -> list[tuple[int, int]]:
    """distributed/utils.py get_pp_indices: the last stages take the layers left over."""
    base, extra = divmod(layers, stages)
    sizes = [base + (1 if rank >= stages - extra else 0) for rank in range(stages)]
    starts = [sum(sizes[:rank]) for rank in range(stages)]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _pages(tokens: int, page: int) -> int:
    return tokens // page * page


# -- one stage's attention ---------------------------------------------------------------------------------------------


def _stage(cells: Sequence[LayerCell], budget: int, settings: Settings) -> Plan:
    full = [cell for cell in cells if cell.window is None and cell.token]
    windowed = [cell for cell in cells if cell.window is not None]
    if windowed:
        return _windowed(full, windowed, budget, settings)
    cell = sum(c.token for c in full) + _draft_bytes(full, settings)
    if not cell:  # no attention here: the limit is the context's, or another stage's
        tokens = UNLIMITED if settings.stages > 1 else settings.max_tokens or settings.context_length
    else:
        tokens = min(budget // cell, settings.max_tokens or UNLIMITED)
    return Plan(_pages(tokens, settings.page), 0, cell, cell)


def _draft_bytes(full: Sequence[LayerCell], settings: Settings) -> int:
    """A draft is charged like so many of the target's own layers; its indexer never skips one."""
    if not settings.draft_layers or not full:
        return 0
    kv = int(sum(cell.kv for cell in full) * settings.draft_layers / len(full))
    return kv + max(cell.index for cell in full) * settings.draft_layers


def _windowed(full: Sequence[LayerCell], windowed: Sequence[LayerCell], budget: int, settings: Settings) -> Plan:
    """HybridSWAPoolConfigurator: the window pool holds a fixed share of the full pool's tokens, needed or not."""
    swa_bytes = sum(cell.token for cell in windowed)
    full_bytes = sum(cell.token for cell in full) + _draft_bytes(full, settings)
    page = settings.page
    if not full:  # no ratio to relate to
        tokens = _pages(min(budget // swa_bytes, settings.max_tokens or UNLIMITED), page)
        return Plan(tokens, 0, swa_bytes, 0, tokens, swa_bytes)
    cell = full_bytes + settings.window_ratio * swa_bytes
    cap = _window_cap(windowed, settings)
    if cap is None:
        tokens = _pages(min(int(budget // cell), settings.max_tokens or UNLIMITED), page)
        window_tokens = _pages(int(tokens * settings.window_ratio), page)
        _check_window(windowed, window_tokens, page)
    else:
        tokens = _pages(int((budget - cap * swa_bytes) // full_bytes), page)
        if settings.max_tokens and settings.max_tokens < tokens:
            tokens, cap = _pages(settings.max_tokens, page), min(cap, settings.max_tokens)
        window_tokens = cap
    return Plan(tokens, 0, cell, full_bytes, window_tokens, swa_bytes)


def _window_cap(windowed: Sequence[LayerCell], settings: Settings) -> int | None:
    """SWARequestCapPoolConfigurator: without prefix sharing and with a request limit, windows take what they need.

    A chunk is no window there: the recorded run of Llama 4 kept the ratio.
    """
    unlimited = settings.running_requests is None or settings.chunk <= 0
    if settings.radix or unlimited or any(cell.chunked for cell in windowed):
        return None
    requests = max(1, (settings.running_requests or 1) // settings.replicas)
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
    share = budget / GIB * settings.state_ratio / (1 + settings.state_ratio) * GIB
    drafts = settings.draft_tokens  # each request's steps are kept until they are verified
    per_request = per_slot * (1 + drafts / settings.slots) if drafts else per_slot
    return int((share - per_slot * (1 + drafts)) // per_request)


def _after_states(budget: int, slots: int, per_slot: int, settings: Settings) -> int:
    """_handle_max_mamba_cache: one slot more than counted is padding."""
    rest = budget / GIB
    if settings.draft_tokens:
        requests = min(max(1, (settings.running_requests or 48) // settings.replicas), slots // settings.slots)
        rest -= per_slot * (requests + 1) * settings.draft_tokens / GIB
    return int((rest - (slots + 1) * per_slot / GIB) * GIB)


def _requests(tokens: int, slots: int | None, settings: Settings) -> int:
    """resolve_max_num_reqs."""
    estimated = max(min(int(tokens / settings.context_length * 512), 4096), 2048)
    wanted = settings.running_requests
    limit = estimated if wanted is None else max(1, wanted // settings.replicas)
    limit = min(limit, tokens // 2)
    return limit if slots is None else min(limit, slots // settings.slots)
