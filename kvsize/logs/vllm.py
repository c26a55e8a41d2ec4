"""vLLM's start-up lines, held against its engine: blocks, tokens and concurrency from the printed budget.

Each figure narrows how many blocks there can be; a figure that no number of blocks left over gives is a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any

from kvsize.engines import Pool, Workload, load_engine
from kvsize.engines.vllm.charge import PAGES, SLOTS
from kvsize.engines.vllm.versions import Release, parse, release
from kvsize.errors import KvsizeError, UnsupportedError
from kvsize.geometry import Geometry
from kvsize.logs.lines import Figure
from kvsize.logs.server import Server
from kvsize.logs.settings import number, truth
from kvsize.logs.verdict import Findings, Verdict, Waste, first, judge, unpredicted

FLAGS = ("enable_prefix_caching", "disable_hybrid_kv_cache_manager", "async_scheduling")
NUMBERS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "max_model_len"),
    *("block_size", "max_num_batched_tokens", "num_speculative_tokens"),
)
WORDS = ("mamba_cache_dtype", "mamba_ssm_cache_dtype")
AMPLE = 1 << 43
OLDEST = "0.8.5"
RANK_SPREAD = Fraction(1, 20)  # how much less memory another rank may have: an assumption, and said where it is used


# What logs often leave open, one value for each range of rules
VERSIONS = ("0.33.0", "0.26.0", "0.20.1", "0.19.0", "0.15.0", "0.11.0", "0.9.2", "0.8.5")
CAPABILITIES = ("9.0", "10.0", "8.0", "12.0")
STEPS = (8192, 2048, 16384, 2496)  # by GPU memory; the last is what Gemma 4 raises it to, for its images


@dataclass(frozen=True, slots=True)
class Case:
    """A model under the log's settings."""

    geometry: Geometry
    workload: Workload
    options: Any

    def size(self, **changes: Any) -> Any:
        """The engine's answer, with other options."""
        return load_engine("vllm").size(self.geometry, self.workload, replace(self.options, **changes))

    def request(self, tokens: int) -> int:
        """Bytes that one request of so many tokens needs on a rank."""
        options = replace(self.options, max_model_len=tokens)
        workload = replace(self.workload, tokens=tokens)
        size = load_engine("vllm").size(self.geometry, workload, options)
        return int(size.total_bytes)


def case_of(server: Server, geometry: Geometry, assumed: dict[str, Any]) -> Case:
    """The log's settings as the engine's options; `assumed` are those that the log leaves open.

    Raises:
        UnsupportedError: drafts whose layers are not known.
    """
    given: dict[str, Any] = {"version": version_of(server)}
    given |= {name: number(server.settings[name]) for name in NUMBERS if name in server.settings}
    given |= {name: truth(server.settings[name]) for name in FLAGS if name in server.settings}
    given |= {name: server.settings[name] for name in WORDS if name in server.settings}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("num_speculative_tokens"):
        given["speculative_method"] = drafting(server.settings.get("speculative_method", "ngram"))
    given |= {name: value for name, value in assumed.items() if name not in given or name == "version"}
    given["max_model_len"] = longest_request(server, given.get("max_model_len"), geometry)
    geometry = _long_enough(geometry, given["max_model_len"])
    known = {item.name for item in fields(load_engine("vllm").Options)}
    options = load_engine("vllm").Options(**{key: value for key, value in given.items() if key in known})
    kv = kv_format(server, geometry)
    return Case(geometry, Workload(given["max_model_len"], 1, kv, kv), options)


def _long_enough(geometry: Geometry, tokens: int) -> Geometry:
    """The model with a limit that a server which started has passed (VLLM_ALLOW_LONG_MAX_MODEL_LEN)."""
    if geometry.max_tokens is None or tokens <= geometry.max_tokens * geometry.context_factor:
        return geometry
    return replace(geometry, max_tokens=tokens)


def version_of(server: Server) -> str | None:
    """The release as the engine takes it; older ones by the oldest rules that there are."""
    if server.version is None:
        return None
    try:
        number_ = parse(server.version)
    except KvsizeError:
        return None
    return OLDEST if number_ < (0, 8, 5) else ".".join(map(str, number_))


def drafting(method: str) -> str:
    """The method as the engine knows it.

    Raises:
        UnsupportedError: its layers come from a config that the log does not show.
    """
    if method in ("ngram", "ngram_gpu", "suffix"):
        return "ngram"
    if method.endswith("mtp"):
        return "mtp"
    raise UnsupportedError(f"drafts of {method[:40]} take cache of their own, which is not modelled")


def kv_format(server: Server, geometry: Geometry) -> str:
    """The cache's format: as given, else the dtype that the server runs in."""
    given = server.settings.get("kv_cache_dtype", "auto")
    dtype = server.settings.get("dtype", "auto").removeprefix("torch.")
    if given == "auto" and dtype in ("float16", "bfloat16", "half") and geometry.kv_scheme is None:
        wanted = "float16" if dtype == "half" else dtype
        return wanted if wanted != geometry.dtype else "auto"
    return given


def longest_request(server: Server, given: int | None, geometry: Geometry) -> int:
    """max_model_len: printed beside a figure, or set, or the model's own."""
    for figure in server.of("concurrency", "needed"):
        if "length" in figure.facts:
            return int(figure.facts["length"].replace(",", ""))
    return given or geometry.max_tokens or 2048


# -- what the log leaves open ------------------------------------------------------------------------------------------


def hypotheses(server: Server, geometry: Geometry) -> Iterator[dict[str, Any]]:
    """What may be filled in where the log is silent, plainest first; what changes no figure is left out."""
    tried: list[Any] = []
    for assumed in _combinations(server):
        try:
            size = case_of(server, geometry, assumed).size(kv_memory=AMPLE)
        except KvsizeError:
            yield assumed  # the refusal is told by whoever tries it
            continue
        if (size.pool, size.total_bytes) not in tried:
            tried.append((size.pool, size.total_bytes))
            yield assumed


def _combinations(server: Server) -> Iterator[dict[str, Any]]:
    versions: list[dict[str, Any]] = [{}] if server.version else [{"version": version} for version in VERSIONS]
    steps: list[dict[str, Any]] = (
        [{}] if "max_num_batched_tokens" in server.settings else [{"max_num_batched_tokens": one} for one in STEPS]
    )
    kernels: list[dict[str, Any]] = (
        [{}] if "device_capability" in server.settings else [{"device_capability": one} for one in CAPABILITIES]
    )
    yield from versions
    for version in versions:
        yield from (version | one for one in (*steps, *kernels))
        yield from (version | step | kernel for step in steps for kernel in kernels)


# -- figures -----------------------------------------------------------------------------------------------------------


def reconcile(server: Server, geometry: Geometry, assumed: dict[str, Any]) -> Findings:
    """Hold every figure that depends on the cache against the engine.

    Raises:
        UnsupportedError: vLLM, or kvsize, refuses this model or these settings.
    """
    case = case_of(server, geometry, assumed)
    size = case.size()
    found = Findings(options=case.options, size=size, notes=list(size.notes))
    if server.version and version_of(server) == OLDEST and not server.version.startswith(OLDEST):
        found.notes.append(f"vLLM {server.version} is older than {OLDEST}, whose rules are used")
    for figure in server.of("needed"):
        found.add(_needed(figure, case, size))
    if size.total_bytes:
        _pools(server, case, found)
    for figure in server.of("longest"):
        found.add(_longest(figure, server, case))
    for figure in server.of("padding", "padding_share"):
        found.add(_padding(figure, case))
    found.waste = [*waste(case, size), *_reserve(server)]
    return found


def _needed(figure: Figure, case: Case, size: Any) -> Verdict:
    if case.options.pipeline_parallel_size > 1:
        return unpredicted(figure, "printed for one stage, and the log does not say which")
    slots = sum(part.bytes for part in size.overheads if part.name == SLOTS)
    verdict = judge(figure, size.total_bytes, size.total_bytes, f"one request of {case.options.max_model_len:,} tokens")
    if verdict.status == "agrees" or not slots:
        return verdict
    bare = size.total_bytes - slots
    return (
        judge(figure, bare, bare, "layers added up, without the empty slots of groups")
        if (figure.least <= bare <= figure.most)
        else verdict
    )


def _pools(server: Server, case: Case, found: Findings) -> None:
    """Narrow the number of blocks, figure by figure."""
    unit = case.size(kv_memory=AMPLE).pool.bytes_per_block

    @cache
    def pool(blocks: int) -> Pool | None:
        try:
            held: Pool | None = case.size(kv_memory=max(blocks, 1) * unit).pool
        except UnsupportedError:
            return _unchecked(case, max(blocks, 1) * unit)
        return held

    low, high, known = _budget(server, unit)
    missing = _unseen_ranks(server, case)
    for figure in server.of("available"):
        found.add(Verdict(figure, "taken", why="the budget"))
    for figure in server.of("blocks", "tokens", "concurrency"):
        verdict, span = _narrow(figure, pool, low, high)
        if verdict.status == "contradicts" and missing:
            verdict, span = _least_rank(figure, pool, low, high, missing) or (verdict, span)
        if not known and verdict.status == "agrees":
            verdict = replace(verdict, status="taken", low=None, high=None, why="no budget is printed: it follows")
        known = True
        if verdict.status != "contradicts" and len(server.of(figure.quantity)) == 1:
            low, high = span
        found.add(verdict)


def _unchecked(case: Case, budget: int) -> Pool | None:
    """What releases before 0.9 printed of too small a pool, before they gave up; later ones print nothing."""
    if rules_of(case).printed != "blocks":
        return None
    least = replace(case, workload=replace(case.workload, tokens=1))
    try:
        held: Pool = least.size(kv_memory=budget, max_model_len=1).pool
    except UnsupportedError:
        return None
    return replace(held, max_concurrency=held.tokens / case.options.max_model_len)


def _budget(server: Server, unit: int) -> tuple[int, int, bool]:
    """Fewest and most blocks that the printed or given memory leaves open, and whether anything is known at all."""
    override = number(server.settings.get("num_gpu_blocks_override", ""))
    if override:
        return override, override, True
    given = number(server.settings.get("kv_cache_memory_bytes", ""))
    if given:
        return given // unit, given // unit, True
    printed = server.of("available")
    if not printed:
        return 1, AMPLE // unit, False
    return int(min(f.least for f in printed) // unit), int(max(f.most for f in printed) // unit), True


def _narrow(figure: Figure, pool: Any, low: int, high: int) -> tuple[Verdict, tuple[int, int]]:
    """The verdict on a figure of the pool, and the blocks that it leaves."""

    def count(blocks: int) -> Fraction:
        if figure.quantity == "blocks":
            return Fraction(blocks)
        held = pool(blocks)
        if held is None:
            return Fraction(-1)
        return Fraction(held.tokens) if figure.quantity == "tokens" else Fraction(held.max_concurrency)

    start = first(count, figure.least, low, high)
    end = first(lambda blocks: count(blocks) > figure.most, 1, start, high) - 1
    if start <= end:
        value = count(start)
        return Verdict(figure, "agrees", value, count(end)), (start, end)
    bounds = count(low), count(high)
    if bounds[0] < 0:
        return _too_little(figure, bounds), (low, high)
    return Verdict(figure, "contradicts", *bounds, why="no number of blocks in that memory gives it"), (low, high)


def _unseen_ranks(server: Server, case: Case) -> str:
    """In words, how many ranks' memory the log does not show; "" where it shows all."""
    ranks = case.options.tensor_parallel_size * case.options.pipeline_parallel_size
    seen = sum(figure.count for figure in server.of("available"))
    return f"the rank with the least memory decides, and {seen} of {ranks} are shown" if 0 < seen < ranks else ""


def _least_rank(figure: Figure, pool: Any, low: int, high: int, missing: str) -> tuple[Verdict, tuple[int, int]] | None:
    """The verdict if a rank that the log does not show had somewhat less memory; None if that explains nothing."""
    verdict, span = _narrow(figure, pool, int(low * (1 - RANK_SPREAD)), high)
    if verdict.status == "contradicts":
        return None
    least, most = pool(int(low * (1 - RANK_SPREAD))), pool(high)
    if least is None or most is None or figure.quantity == "blocks":
        return None
    ends = (least.tokens, most.tokens) if figure.quantity == "tokens" else (least.max_concurrency, most.max_concurrency)
    return Verdict(figure, "inside", Fraction(ends[0]), Fraction(ends[1]), missing), span


def _too_little(figure: Figure, bounds: tuple[Fraction, Fraction]) -> Verdict:
    why = "that memory does not hold one request: vLLM would not start"
    if bounds[1] < 0:
        return Verdict(figure, "contradicts", why=why)
    return Verdict(figure, "contradicts", Fraction(0), bounds[1], why=why)


def _longest(figure: Figure, server: Server, case: Case) -> Verdict:
    available = server.of("available")
    if not available or case.options.pipeline_parallel_size > 1:
        return unpredicted(figure)
    most = case.options.max_model_len
    unit = case.size(kv_memory=AMPLE).pool.bytes_per_block
    spare = unit if rules_of(case).usable_blocks else 0

    def holds(budget: Fraction) -> int:
        return first(case.request, budget - spare + Fraction(1, 2**40), 1, most) - 1

    low, high = holds(available[-1].least), holds(available[-1].most)
    return judge(figure, low, high, "the longest request that the available memory holds")


def rules_of(case: Case) -> Release:
    """The release's rules."""
    return release(case.options.version)


def _padding(figure: Figure, case: Case) -> Verdict:
    layers: dict[str, int] = {}
    empty: dict[str, int] = {}
    groups = case.size(kv_memory=AMPLE).pool.groups
    widest = max(group.layers for group in groups)
    for group in groups:
        layers[group.name] = layers.get(group.name, 0) + group.layers
        empty[group.name] = empty.get(group.name, 0) + widest - group.layers
    values = [
        Fraction(count) if figure.quantity == "padding" else Fraction(100 * count, layers[name])
        for name, count in empty.items()
        if count
    ]
    near = min(values or [Fraction(0)], key=lambda value: abs(value - figure.least))
    return judge(figure, near, near, f"groups of {widest} layers share one pool")


# -- waste -------------------------------------------------------------------------------------------------------------


def waste(case: Case, size: Any) -> Iterator[Waste]:
    """What one request's blocks hold for nothing, and the flag that would recover it."""
    total = size.total_bytes
    names = {SLOTS: "layer slots without a layer", PAGES: "pages filled up to the widest layer's"}
    for part in size.overheads:
        if part.name in names and part.bytes * 1000 > total:
            yield Waste(
                f"{names[part.name]} (layers of several kinds share one pool)", part.bytes / total, part.bytes, ""
            )
    yield from _windows_in_full(case, total)
    yield from _replicas(case)


def _reserve(server: Server) -> Iterator[Waste]:
    """What the engine was told to leave alone, less the graphs that are captured there."""
    totals, usable = server.of("total"), server.of("usable")
    if not totals or not usable:
        return
    graphs = sum(figure.most for figure in server.of("graphs")[:1])
    left = int(totals[-1].least - usable[-1].most - graphs)
    if left > 0:
        what = f"at least {left / 2**30:.2f} GiB of the GPU are left unused"
        yield Waste(what, None, left, "a higher --gpu-memory-utilization")


def _windows_in_full(case: Case, total: int) -> Iterator[Waste]:
    """What layers with windows cost because they are kept in full."""
    if case.options.disable_hybrid_kv_cache_manager:
        changes: dict[str, Any] = {"disable_hybrid_kv_cache_manager": False}
        flag = "drop --disable-hybrid-kv-cache-manager"
    elif not rules_of(case).hybrid_manager:
        changes, flag = {"version": "0.9.0"}, "vLLM 0.9.0 or later"
    else:
        return
    try:
        less = case.size(**changes).total_bytes
    except UnsupportedError:
        return
    if less < total:
        yield Waste("layers with windows are kept in full", (total - less) / total, total - less, flag)


def _replicas(case: Case) -> Iterator[Waste]:
    """Copies of the same heads or latents on several ranks."""
    from kvsize.logs.waste import copies

    ranks = case.options.tensor_parallel_size // case.options.decode_context_parallel_size
    found = copies(case.geometry, ranks)
    if found is not None:
        what, times = found
        share = 1 - 1 / times
        yield Waste(
            what, share, None, f"--decode-context-parallel-size {case.options.decode_context_parallel_size * times}"
        )
