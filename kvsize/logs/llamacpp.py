"""llama.cpp's and Ollama's start-up lines: each cache by its cells, K and V apart, and the buffers it lies in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvsize.engines import Workload
from kvsize.engines import llamacpp as engine
from kvsize.engines.llamacpp import versions
from kvsize.engines.llamacpp.rows import Rows, kept, reading
from kvsize.errors import KvsizeError, UsageError
from kvsize.formats import format_of
from kvsize.geometry import Attention, Geometry, Latent, Layer
from kvsize.logs.lines import Figure
from kvsize.logs.server import Server
from kvsize.logs.settings import number, truth
from kvsize.logs.verdict import Findings, Verdict, Waste, judge, unpredicted

FLASH = {
    **dict.fromkeys(("1", "enabled", "true", "on"), "on"),
    **dict.fromkeys(("0", "disabled", "false", "off"), "off"),
    "auto": "auto",
}
# print_info's names -> the metadata keys that they are read from, without the architecture
INFO = {
    "n_layer": "block_count",
    "n_ctx_train": "context_length",
    "n_embd": "embedding_length",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "n_embd_head_k": "attention.key_length",
    "n_embd_head_v": "attention.value_length",
    "n_swa": "attention.sliding_window",
}
DRAFT_LAYERS = 4
UBATCHES = (512, 256, 1024, 2048, 128)
_LISTED = re.compile(r"true|false|-?\d{1,15}")


# -- the model, from what the log prints of it -------------------------------------------------------------------------


def config(server: Server) -> dict[str, Any] | None:
    """The model as its metadata in the log describes it, in the form that architectures read; None: too little.

    Raises:
        UsageError: a list that decides its layers is cut off, as llama.cpp does after 40 characters.
    """
    found = {key: _value(text) for key, text in server.metadata.items()}
    arch = found.get("general.architecture") or server.printed_info.get("arch")
    if not isinstance(arch, str):
        return None
    for name, key in INFO.items():
        value = _value(server.printed_info.get(name, ""))
        if value and found.get(f"{arch}.{key}") is None:
            found[f"{arch}.{key}"] = value
    cut = [key for key, value in found.items() if value is None and _decides(key, arch)]
    if cut:
        what = f"the log cuts off {cut[0]}, which decides what the model's layers keep"
        raise UsageError(what, hint="Name the model: kvsize reconcile LOG --model M, or its .gguf")
    known = {key: value for key, value in found.items() if value is not None}
    return {**known, "general.architecture": arch} if f"{arch}.block_count" in known else None


def _decides(key: str, arch: str) -> bool:
    """Whether a list may decide what layers keep: widths of MLPs only do in Nemotron-H."""
    aside = ("rope.", "expert") if arch.startswith("nemotron_h") else ("rope.", "expert", "feed_forward")
    return key.startswith(f"{arch}.") and not any(word in key for word in aside)


def _value(text: str) -> Any:
    """A value as the loader prints it: numbers, switches, lists; None for a list that is cut off."""
    if text.startswith("["):
        parts = _LISTED.findall(text)
        return None if "..." in text or not parts else [_value(part) for part in parts]
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


# -- settings ----------------------------------------------------------------------------------------------------------


def options_of(server: Server, assumed: dict[str, Any]) -> engine.Options:
    """The log's settings as the engine's options; cache types are those printed beside the caches."""
    settings = server.settings
    given: dict[str, Any] = {name: number(settings.get(name, "")) for name in ("n_ctx", "n_batch", "n_ubatch")}
    given["n_parallel"] = number(settings.get("n_parallel", "")) or 1
    given["kv_unified"] = truth(settings.get("kv_unified", ""))
    given["flash_attn"] = FLASH.get(settings.get("flash_attn", "").lower())
    given["swa_full"] = truth(settings.get("swa_full", "")) or False
    types = next(((f.facts["k"], f.facts["v"]) for f in server.of("cache") if "k" in f.facts), None)
    if types is None and settings.get("cache_type"):
        types = settings["cache_type"], settings["cache_type"]
    if types is not None:
        given["cache_type_k"], given["cache_type_v"] = types
    if server.version and "version" not in assumed:
        given["version"] = server.version
    given |= {name: value for name, value in assumed.items() if given.get(name) is None}
    known = engine.Options.__dataclass_fields__
    return engine.Options(**{name: value for name, value in given.items() if value is not None and name in known})


@dataclass(frozen=True, slots=True)
class Cache:
    """One of a context's caches: layers with rows in it, elements of a cell in K and in V, and its cells."""

    name: str
    layers: int
    k: int
    v: int
    cells: int
    streams: int


def caches(geometry: Geometry, plan: engine.Plan) -> list[Cache]:
    """The caches that the log prints a line each for."""
    how = reading(geometry, plan.arch, old=plan.rules.old, flash=plan.types.flash)
    layers = kept(geometry, how)
    found: dict[tuple[str, int, int], list[Rows]] = {}
    for layer in layers:
        for position, rows in enumerate(layer.rows):
            kind = "compressed" if rows.rate > 1 else "windows" if rows.window else "full"
            found.setdefault((kind, position, rows.rate), []).append(rows)
    return [_cache_of(kind, rows, plan) for (kind, _, _), rows in found.items()]


def _cache_of(kind: str, rows: list[Rows], plan: engine.Plan) -> Cache:
    return Cache(
        kind,
        len(rows),
        sum(row.k for row in rows),
        sum(row.v for row in rows),
        rows[0].cells(plan.cells, swa_full=plan.swa_full),
        plan.cells.sequences if rows[0].own else plan.cells.streams,
    )


# -- figures -----------------------------------------------------------------------------------------------------------


def reconcile(server: Server, geometry: Geometry, assumed: dict[str, Any]) -> Findings:
    """Hold caches, their halves, their cells and their buffers against the engine.

    Raises:
        UnsupportedError: llama.cpp, or kvsize, refuses this model or these settings.
    """
    options = options_of(server, assumed)
    if assumed.get("heads_in_full"):
        geometry = _expanded(geometry)
    tokens = options.n_ctx or _printed_cells(server) or geometry.max_tokens or 4096
    if options.n_ctx is None:
        options = replace(options, n_ctx=tokens)
    sequences = options.n_parallel or 1
    workload = Workload(max(tokens // sequences, 1), sequences)
    plan = engine.plan_of(geometry, workload, options)
    size = engine.size(geometry, workload, options)
    found = Findings(options=options, size=size, notes=list(size.notes))
    known = caches(geometry, plan)
    for figure in server.of("cache", "cache_k", "cache_v", "cells"):
        found.add(_cache(figure, known, size.total_bytes, plan))
    state = sum(one.state for one in kept(geometry, reading(geometry, plan.arch, old=plan.rules.old, flash=True)))
    for figure in server.of("state_cache"):
        found.add(_states(figure, state))
    for verdict in (*_buffers(server, "buffer"), *_buffers(server, "state_buffer")):
        found.add(verdict)
    for figure in server.of("ollama_cache"):
        windows = any(cache.name == "windows" for cache in known)
        found.add(_ollama(figure, server, size.total_bytes, windows=windows))
    found.waste = list(_waste(geometry, workload, options, size, server))
    return found


def _printed_cells(server: Server) -> int | None:
    cells = [int(f.most) for f in server.of("cells")]
    return max(cells) if cells else None


def _cache(figure: Figure, known: list[Cache], total: int, plan: engine.Plan) -> Verdict:
    if "layers" not in figure.facts:  # the old line, of all layers together
        return _self_size(figure, known, total, plan)
    layers = int(figure.facts["layers"])
    if not layers:
        return unpredicted(figure, "a cache without layers") if figure.quantity == "cells" else judge(figure, 0, 0)
    matching = [cache for cache in known if cache.layers == layers] or _drafting(known, layers) or known
    if not matching:
        return unpredicted(figure, "this model keeps no such cache")
    verdicts = [_against(figure, cache, plan) for cache in matching]
    return next((verdict for verdict in verdicts if verdict.status == "agrees"), verdicts[0])


def _drafting(known: list[Cache], layers: int) -> list[Cache]:
    """The cache of a few layers that draft, each like one of the model's own that keep everything."""
    alike = [cache for cache in known if cache.name == "full" and cache.layers]
    if layers > DRAFT_LAYERS or any(cache.k % cache.layers or cache.v % cache.layers for cache in alike):
        return []
    return [
        replace(
            cache, name="drafts", layers=layers, k=cache.k // cache.layers * layers, v=cache.v // cache.layers * layers
        )
        for cache in alike
    ]


def _against(figure: Figure, cache: Cache, plan: engine.Plan) -> Verdict:
    k, v = (format_of(figure.facts.get(name, unit.name)) for name, unit in (("k", plan.types.k), ("v", plan.types.v)))
    words = f"{cache.layers} layers, {cache.cells:,} cells" + (
        f" in {cache.streams} streams" if cache.streams > 1 else ""
    )
    match figure.quantity:
        case "cells":
            per_stream = cache.cells // cache.streams
            return judge(
                figure, per_stream, per_stream, f"cells of {'each stream' if cache.streams > 1 else 'the cache'}"
            )
        case "cache_k":
            size = k.bytes(cache.k) * cache.cells
        case "cache_v":
            size = v.bytes(cache.v) * cache.cells
        case _:
            size = (k.bytes(cache.k) + v.bytes(cache.v)) * cache.cells
    return judge(figure, size, size, words)


def _self_size(figure: Figure, known: list[Cache], total: int, plan: engine.Plan) -> Verdict:
    if figure.quantity == "cache":
        return judge(figure, total, total, "all layers")
    unit = plan.types.k if figure.quantity == "cache_k" else plan.types.v
    size = sum(unit.bytes(cache.k if figure.quantity == "cache_k" else cache.v) * cache.cells for cache in known)
    return judge(figure, size, size, "all layers")


def _states(figure: Figure, state: int) -> Verdict:
    if not state:
        return unpredicted(figure, "this model keeps no such state")
    cells = int(figure.facts["state_cells"].replace(",", ""))
    copies = 1 + int(figure.facts.get("snapshots", 0))
    words = f"{cells} sequences of {4 * state:,} bytes" + (f", {copies} states each" if copies > 1 else "")
    return judge(figure, 4 * state * cells * copies, 4 * state * cells * copies, words)


def _buffers(server: Server, quantity: str) -> Iterator[Verdict]:
    """Buffers add up to the cache whose line follows them; older builds print only those."""
    whole = "cache" if quantity == "buffer" else "state_cache"
    waiting: list[Figure] = []
    for figure in server.of(quantity, whole):
        if figure.quantity == quantity:
            waiting.append(figure)
            continue
        yield from _added_up(waiting, figure.least, figure.most)
        waiting = []
    yield from (unpredicted(figure, "no line of a whole cache follows it") for figure in waiting)


def _added_up(parts: list[Figure], least: Fraction, most: Fraction) -> Iterator[Verdict]:
    if not any(part.most > Fraction(2**20, 100) for part in parts):  # a rehearsal that allocates nothing
        yield from (unpredicted(part, "nothing was allocated") for part in parts)
        return
    low, high = sum(part.least for part in parts), sum(part.most for part in parts)
    for part in parts:
        others_low, others_high = low - part.least, high - part.most
        words = "the cache printed below it" if len(parts) == 1 else f"what {len(parts)} devices hold adds up to it"
        yield judge(part, least - others_high, most - others_low, words)


def _ollama(figure: Figure, server: Server, total: int, *, windows: bool) -> Verdict:
    if windows:
        return unpredicted(figure, "Ollama's own engine keeps windows in its own way")
    parts = server.of("ollama_cache")
    others = [part for part in parts if part is not figure]
    low = total - sum(part.most for part in others)
    high = total - sum(part.least for part in others)
    return judge(figure, max(low, Fraction(0)), max(high, Fraction(0)), "all layers, over the devices")


# -- waste -------------------------------------------------------------------------------------------------------------


def _waste(
    geometry: Geometry, workload: Workload, options: engine.Options, size: Any, server: Server
) -> Iterator[Waste]:
    total = size.total_bytes
    for what, changes, flag in (
        ("layers with windows are kept in full", {"swa_full": False}, "drop --swa-full"),
        ("without flash attention every V is as wide as the widest", {"flash_attn": "on"}, "--flash-attn on"),
    ):
        try:
            less = engine.size(geometry, workload, replace(options, **changes)).total_bytes
        except KvsizeError:
            continue
        if less < total:
            yield Waste(what, (total - less) / total, total - less, flag)
    asked = number(server.settings.get("n_ctx", ""))
    plan = engine.plan_of(geometry, workload, options)
    if asked and plan.cells.cells > asked:
        spare = plan.cells.cells - asked
        what = f"{spare:,} of {plan.cells.cells:,} cells are padding"
        yield Waste(what, spare / plan.cells.cells, None, f"--ctx-size {plan.cells.cells}")


def hypotheses(server: Server, geometry: Geometry) -> Iterator[dict[str, Any]]:
    """What the log leaves open: the build, where none is named or its rules are not known, and the micro-batch."""
    builds = _builds(server)
    yield from builds
    if "n_ubatch" not in server.settings:
        yield from (build | {"n_ubatch": size} for build in builds for size in UBATCHES)
    if builds[0] and _expanded(geometry) != geometry:
        yield {**builds[0], "heads_in_full": True}


def _builds(server: Server) -> list[dict[str, Any]]:
    if server.version is not None:
        try:
            versions.build(server.version)
        except KvsizeError:
            pass
        else:
            return [{}]
    return [{"version": versions.VERSION}, {"version": "b6173"}]


def _expanded(geometry: Geometry) -> Geometry:
    """The model as builds before April 2025 kept it: without MLA, its heads in full."""
    return replace(geometry, layers=tuple(_expanded_layer(layer) for layer in geometry.layers))


def _expanded_layer(layer: Layer) -> Layer:
    stores = tuple(
        replace(store, entry=store.entry.expanded)
        if isinstance(store, Attention) and isinstance(store.entry, Latent)
        else store
        for store in layer.stores
    )
    return replace(layer, stores=stores)
