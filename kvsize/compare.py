"""Models by engines: the same request everywhere, what a budget holds, and why the figures differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvsize.deployment.judge import POOLED
from kvsize.elsewhere import why
from kvsize.engines import CacheSize, Pool, Workload, engine_options, load_engine
from kvsize.errors import ConfigError, KvsizeError, UnsupportedError
from kvsize.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Compared:
    """One model in one engine; `refused` says why there are no figures."""

    engine: str
    version: str
    size: CacheSize | None
    bytes_per_token: int | None
    pool: Pool | None
    why: str
    refused: str | None


def compare(
    geometry: Geometry, workload: Workload, engines: list[str], kv_memory: int | None, settings: dict[str, Any]
) -> list[Compared]:
    """Each engine's answer, in the order asked; differences are explained against the first that answers."""
    rows: list[Compared] = []
    for name in engines:
        first = next((row.size for row in rows if row.size is not None), None)
        rows.append(_one(geometry, workload, name, kv_memory, settings, first))
    return rows


def _one(
    geometry: Geometry,
    workload: Workload,
    engine: str,
    kv_memory: int | None,
    settings: dict[str, Any],
    first: CacheSize | None,
) -> Compared:
    name, _, version = engine.partition("@")
    module = load_engine(name)
    known = module.Options.__dataclass_fields__.keys()
    given = {key: value for key, value in settings.items() if key in known}
    options = engine_options(name, {**given, "version": version or None})
    try:
        size = module.size(geometry, workload, options)
    except (UnsupportedError, ConfigError) as error:
        return Compared(name, version or module.VERSION, None, None, None, "", error.what)
    words = "" if first is None else why(geometry, workload, size, first)
    slope = _slope(module, geometry, workload, options, size)
    return Compared(
        name, size.version, size, slope, _pool(module, geometry, workload, options, name, kv_memory), words, None
    )


def _slope(module: Any, geometry: Geometry, workload: Workload, options: Any, size: CacheSize) -> int | None:
    try:
        more = module.size(geometry, replace(workload, tokens=workload.tokens + size.step_tokens), options)
    except KvsizeError:
        return None
    return int((more.total_bytes - size.total_bytes) // size.step_tokens)


def _pool(
    module: Any, geometry: Geometry, workload: Workload, options: Any, name: str, kv_memory: int | None
) -> Pool | None:
    """What the budget holds: as the engine cuts it, or, where it cuts none, how many requests lie side by side."""
    if kv_memory is None:
        return None
    if name in POOLED:
        try:
            found: Pool | None = module.size(geometry, workload, replace(options, kv_memory=kv_memory)).pool
        except UnsupportedError:
            return None
        return found
    from kvsize.deployment.plan import MAX_SEQUENCES, largest

    def fits(sequences: int) -> bool:
        total: int = module.size(geometry, replace(workload, sequences=sequences), options).total_bytes
        return total <= kv_memory

    count = largest(fits, MAX_SEQUENCES)
    one: int = module.size(geometry, workload, options).total_bytes
    return Pool(count, workload.tokens, one, count * workload.tokens, float(count), 1, one)
