"""SGLang's start-up lines: buffers from the tokens printed beside them, one page of padding included.

sglang@0.5.23 mem_cache/memory_pool.py: a buffer of each layer has size + page_size slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Any

from kvsize.engines import Workload
from kvsize.engines import sglang as engine
from kvsize.engines.sglang.cells import LayerCell
from kvsize.engines.sglang.pool import stage_ranges
from kvsize.geometry import Attention, Geometry, Heads
from kvsize.logs.lines import Figure
from kvsize.logs.server import Server
from kvsize.logs.settings import number, truth
from kvsize.logs.verdict import Findings, Verdict, Waste, judge, unpredicted
from kvsize.logs.waste import copies

NUMBERS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "page_size", "max_model_len", "max_total_tokens"),
    *("max_running_requests", "chunked_prefill_size", "max_mamba_cache_size"),
)
SHARES = ("swa_full_tokens_ratio", "mamba_full_memory_ratio")
DRAFT_LAYERS = 4  # a draft's own pool holds a layer or a few


def options_of(server: Server, assumed: dict[str, Any]) -> engine.Options:
    """The log's settings as the engine's options."""
    settings = server.settings
    given: dict[str, Any] = {name: number(settings[name]) for name in NUMBERS if name in settings}
    given |= {name: float(settings[name]) for name in SHARES if _is_share(settings.get(name, ""))}
    if truth(settings.get("enable_dp_attention", "")):
        given["data_parallel_size"] = number(settings.get("dp_size", ""))
    given["disable_radix_cache"] = truth(settings.get("disable_radix_cache", ""))
    given["mamba_ssm_cache_dtype"] = settings.get("mamba_ssm_cache_dtype")
    given["version"] = server.version
    given |= {name: value for name, value in assumed.items() if given.get(name) is None}
    known = {item.name for item in fields(engine.Options)}
    return engine.Options(**{name: value for name, value in given.items() if value is not None and name in known})


def _is_share(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and len(text) < 20


def kv_format(server: Server, geometry: Geometry) -> str:
    """The cache's format: as the pool's line says, else as given, else the dtype the server runs in."""
    for figure in server.of("pool_k", "pool"):
        if "kv_dtype" in figure.facts:
            return figure.facts["kv_dtype"].removeprefix("torch.")
    given = server.settings.get("kv_cache_dtype", "auto")
    dtype = server.settings.get("dtype", "auto").removeprefix("torch.")
    if given == "auto" and dtype in ("float16", "bfloat16") and dtype != geometry.dtype:
        return dtype
    return {"bf16": "bfloat16"}.get(given, given)


def hypotheses(server: Server, geometry: Geometry) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - as the others
    """Nothing that decides a figure is left open."""
    yield {}


def reconcile(server: Server, geometry: Geometry, assumed: dict[str, Any]) -> Findings:
    """Hold buffers and token counts against the engine.

    Raises:
        UnsupportedError: SGLang, or kvsize, refuses this model or these settings.
    """
    options = options_of(server, assumed)
    kv = kv_format(server, geometry)
    name, _ = engine.kv_format(geometry, Workload(1, 1, kv, kv))
    model = engine.resolve(geometry, name, options)
    size = engine.size(geometry, Workload(options.max_model_len or geometry.max_tokens or 2048, 1, kv, kv), options)
    found = Findings(options=options, size=size, notes=list(size.notes))
    pools = _pools(model, server)
    for figure in server.of("pool", "pool_k", "pool_v"):
        found.add(_buffers(figure, pools, geometry, model.settings.page))
    for figure in server.of("window_pool"):
        found.add(_windows(figure, pools, model.settings.page))
    for figure in server.of("states", "conv"):
        found.add(_states(figure, server, model))
    for figure in server.of("pool_tokens"):
        found.add(_tokens(figure, server))
    _waste(found, options, geometry)
    return found


def _pools(model: engine.Model, server: Server) -> dict[str, list[int]]:
    """Bytes of a slot in each pool: the full layers' and the windows', of one pipeline stage or another."""
    cells = model.pooled
    spans = stage_ranges(len(cells), model.settings.stages)
    full = [sum(_full(cells[a:b])) for a, b in spans]
    windowed = [sum(cell.token for cell in cells[a:b] if cell.window is not None) for a, b in spans]
    pools = {"full": list(dict.fromkeys(full)), "windows": list(dict.fromkeys(windowed))}
    if any(cell.index for cell in cells):
        pools["without indexer"] = [sum(cell.kv for cell in cells[a:b]) for a, b in spans]
    if server.settings.get("speculative_algorithm"):
        one = next((cell.token for cell in reversed(cells) if cell.token), 0)
        pools["draft"] = [one * layers for layers in range(1, DRAFT_LAYERS + 1)]
    return pools


def _full(cells: tuple[LayerCell, ...]) -> list[int]:
    return [cell.token for cell in cells if cell.window is None]


SAYS = {
    "full": "{slots:,} tokens and a page of padding",
    "windows": "the layers with windows: {slots:,} tokens and a page of padding",
    "without indexer": "the latents of {slots:,} tokens; the indexer's keys come on top",
    "draft": "the draft's own pool of {slots:,} tokens",
}


def _buffers(figure: Figure, pools: dict[str, list[int]], geometry: Geometry, page: int) -> Verdict:
    slots = int(figure.facts["slots"].replace(",", ""))
    share = _share(figure.quantity, geometry)
    verdicts = [
        judge(figure, share * cell * slots, share * cell * (slots + page), SAYS[name].format(slots=slots))
        for name, cells in pools.items()
        for cell in cells
        if cell
    ]
    if not verdicts:
        return unpredicted(figure, "no layer of this model has such a buffer")
    return next((verdict for verdict in verdicts if verdict.status == "agrees"), verdicts[0])


def _share(quantity: str, geometry: Geometry) -> Fraction:
    """K's or V's part of a token's bytes."""
    if quantity == "pool":
        return Fraction(1)
    entries = [s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    heads = next((entry for entry in entries if isinstance(entry, Heads)), None)
    if heads is None:
        return Fraction(1, 2)
    k = Fraction(heads.k_dim, heads.k_dim + heads.v_dim)
    return k if quantity == "pool_k" else 1 - k


def _windows(figure: Figure, pools: dict[str, list[int]], page: int) -> Verdict:
    slots, window = (int(figure.facts[name].replace(",", "")) for name in ("slots", "window_slots"))
    full, windowed = pools["full"][0], pools["windows"][0]
    if not windowed:
        return unpredicted(figure, "SGLang keeps no window pool for this model, as far as is known")
    least = full * slots + windowed * window
    return judge(figure, least, least + page * (full + windowed), f"{slots:,} tokens in full, {window:,} in windows")


def _states(figure: Figure, server: Server, model: engine.Model) -> Verdict:
    """Convolutions and recurrent states together; the printed halves are added up."""
    total = sum(cell.state for cell in model.pooled)
    slots = int(figure.facts["slots"].replace(",", ""))
    if not total or figure.quantity == "conv":
        return unpredicted(figure, "counted together with the states" if total else "")
    both = next((f for f in server.of("conv") if f.line == figure.line), None)
    least = figure.least + (both.least if both else 0)
    most = figure.most + (both.most if both else 0)
    low, high = Fraction(total * slots), Fraction(total * (slots + 1))
    meets = least <= high and low <= most
    conv = both.least if both else Fraction(0)
    why = f"{slots:,} slots (one more is padding), with the convolutions' {total:,} bytes each"
    return Verdict(figure, "agrees" if meets else "contradicts", low - conv, high - conv, why)


def _tokens(figure: Figure, server: Server) -> Verdict:
    """The server's pool is the one whose buffers were printed."""
    printed = [int(f.facts["slots"].replace(",", "")) for f in server.of("pool", "pool_k", "window_pool")]
    if not printed:
        return unpredicted(figure, "no buffers are printed beside it")
    near = min(printed, key=lambda slots: abs(slots - figure.least))
    return judge(figure, near, near, "the tokens that the buffers were made for")


def _waste(found: Findings, options: engine.Options, geometry: Geometry) -> None:
    ranks = options.tensor_parallel_size // options.data_parallel_size
    same = copies(geometry, ranks)
    if same is not None:
        what, times = same
        flag = "--enable-dp-attention" if "latent" in what else f"--tp {ranks // times}, or --enable-dp-attention"
        found.waste.append(Waste(what, 1 - 1 / times, None, flag))
    windows = [layer for layer in geometry.layers if engine.models.is_window(layer)]
    if windows and not engine.models.windows_pooled(geometry):
        what = f"{len(windows)} layers with windows are kept in full: the class is not on SGLang's list"
        found.waste.append(Waste(what, None, None, ""))
