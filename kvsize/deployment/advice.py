"""What would make it fit: changes tried one by one, each computed like the question itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvsize.deployment.judge import LAYERWISE, Case, Outcome, judge, with_layout, with_option
from kvsize.deployment.support import runs
from kvsize.engines import engine_options
from kvsize.errors import KvsizeError
from kvsize.geometry import Attention, Latent, Sliding
from kvsize.gpus import Gpu, GpuSet, table
from kvsize.ranges import Range

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Advice:
    """One change: what to do, the flags that do it, what it leaves free, and what it costs in words."""

    what: str
    flags: str
    headroom: Range
    cost: str


# engine -> KV formats to try, from the widest, and what they cost
NARROWER: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (("fp8", "rounded keys and values"),),
    "sglang": (("fp8_e4m3", "rounded keys and values"),),
    "trtllm": (("fp8", "rounded keys and values"), ("nvfp4", "coarser keys and values; Blackwell")),
    "llama.cpp": (("q8_0", "rounded keys and values"), ("q4_0", "coarse keys and values")),
    "ollama": (("q8_0", "rounded keys and values"), ("q4_0", "coarse keys and values")),
}


def advise(outcome: Outcome) -> list[Advice]:
    """The changes that make it fit, cheapest first; empty where it fits already or nothing helps."""
    if outcome.verdict in ("fits", "unknown"):
        return []
    found: list[Advice] = []
    for attempt in (_splits, _formats, _placement, _other_engine, _less, _larger_gpus, _more_ranks):
        found += attempt(outcome)
    return found[:SHOWN]


def tried(case: Case, what: str, flags: str, cost: str) -> Iterator[Advice]:
    """The change as advice, if it fits for certain."""
    try:
        outcome = judge(case)
    except KvsizeError:
        return
    if outcome.verdict == "fits" and outcome.headroom is not None:
        yield Advice(what, flags, outcome.headroom, cost)


# SGLang's shares of its pools -> the flag, values to try, and what takes less
SPLITS: tuple[tuple[str, tuple[float, ...], str], ...] = (
    ("swa_full_tokens_ratio", (0.4, 0.2, 0.1, 0.05), "fewer window tokens, which long prompts fill first"),
    ("mamba_full_memory_ratio", (0.5, 0.3, 0.1, 2, 4, 9), "another split between states and attention"),
)


def _splits(outcome: Outcome) -> Iterator[Advice]:
    """Pools of fixed shares, where one is full while another has room: the first other share that fits."""
    case = outcome.case
    for field, values, cost in SPLITS if case.engine == "sglang" else ():
        for value in values:
            name = field.replace("_", "-")
            found = list(tried(with_option(case, **{field: value}), f"{name} {value:g}", f"--{name} {value:g}", cost))
            if found:
                yield from found
                break


def _formats(outcome: Outcome) -> Iterator[Advice]:
    case = outcome.case
    for name, cost in NARROWER.get(case.engine, ()):
        if name not in (outcome.size.k_format, case.workload.k_format):
            narrowed = replace(case, workload=replace(case.workload, k_format=name, v_format=name))
            narrowed = with_option(narrowed, cache_type_k=None, cache_type_v=None)
            yield from tried(narrowed, f"KV cache in {name}", f"--kv-dtype {name}", cost)
    if case.engine == "transformers" and outcome.size.cache == "dynamic":
        quantized = with_option(case, cache="quantized")
        yield from tried(quantized, "4-bit quantised cache", "--cache quantized", "coarse keys and values, slower")


def _placement(outcome: Outcome) -> Iterator[Advice]:
    case = outcome.case
    if case.engine == "transformers" and outcome.size.cache in ("dynamic", "static"):
        name = "offloaded" if outcome.size.cache == "dynamic" else "offloaded_static"
        moved = with_option(case, cache=name)
        yield from tried(moved, "cache in host memory", f"--cache {name}", "copies over the bus at each layer")
    if case.engine == "llama.cpp":
        hosted = with_option(case, kv_offload=False)
        yield from tried(hosted, "cache in host memory", "--no-kv-offload", "attention runs on the CPU")
    latent = any(
        isinstance(s, Attention) and isinstance(s.entry, Latent) for y in case.geometry.layers for s in y.stores
    )
    if case.engine == "vllm" and latent and case.layout.tensor > 1:
        ranks = case.layout.tensor
        split = with_option(case, decode_context_parallel_size=ranks)
        yield from tried(
            split, f"contexts split over {ranks} ranks", f"--dcp {ranks}", "one more exchange at each step"
        )
    if case.engine == "vllm" and getattr(case.options, "disable_hybrid_kv_cache_manager", False):
        hybrid = with_option(case, disable_hybrid_kv_cache_manager=False)
        yield from tried(hybrid, "windows as windows", "--no-disable-hybrid-kv-cache-manager", "nothing")


def _other_engine(outcome: Outcome) -> Iterator[Advice]:
    """SGLang keeps the windows of most models in full; vLLM does not."""
    case = outcome.case
    windows = any(
        isinstance(s, Attention) and isinstance(s.span, Sliding) for y in case.geometry.layers for s in y.stores
    )
    if case.engine == "sglang" and windows:
        options = engine_options("vllm", {"tensor_parallel_size": case.layout.tensor})
        moved = replace(case, engine="vllm", options=options, launch=replace(case.launch, version=(0, 33)))
        yield from tried(moved, "vLLM, which keeps windows as windows", "--engine vllm", "another engine")


def _less(outcome: Outcome) -> Iterator[Advice]:
    case, capacity = outcome.case, outcome.capacity
    if capacity is None:
        return
    if 0 < capacity.max_sequences < case.workload.sequences:
        count = capacity.max_sequences
        fewer = replace(case, workload=replace(case.workload, sequences=count))
        yield from tried(fewer, f"{count:,} sequences at once", f"--batch {count}", "the others wait")
    if 0 < capacity.max_tokens < case.workload.tokens:
        tokens = capacity.max_tokens
        shorter = replace(case, workload=replace(case.workload, tokens=tokens))
        yield from tried(shorter, f"requests of {tokens:,} tokens", f"--ctx {tokens}", "shorter contexts")


def _more_ranks(outcome: Outcome) -> Iterator[Advice]:
    """The fewest more of the same GPUs, doubling, that do."""
    case, count = outcome.case, outcome.case.gpus.count
    name = case.gpus.gpu.key
    for factor in (2, 4, 8, 16):
        wanted = count * factor
        if wanted > 64:
            return
        if case.engine in LAYERWISE:
            wider = replace(case, gpus=replace(case.gpus, count=wanted))
        else:
            wider = with_layout(case, case.layout.tensor * factor)
        found = list(tried(wider, f"{wanted} x {case.gpus.gpu.name}", f"--gpu {wanted}x{name}", "more GPUs"))
        if found:
            yield from found
            return


def _larger_gpus(outcome: Outcome) -> Iterator[Advice]:
    """The two next larger GPUs of the same vendor that do, in the same number or twice it."""
    case, now = outcome.case, outcome.case.gpus.gpu
    larger = sorted(
        (gpu for gpu in table() if _larger(gpu, now) and runs(case.engine, gpu)),
        key=lambda gpu: gpu.usable.low,
    )
    yield from _first(larger, 2, lambda gpu: _on(case, gpu))


def _larger(gpu: Gpu, now: Gpu) -> bool:
    return gpu.vendor == now.vendor and gpu.kind in (now.kind, "datacenter") and gpu.usable.low > now.usable.high


def _on(case: Case, gpu: Gpu) -> list[Advice]:
    for factor in (1, 2):
        count = case.gpus.count * factor
        moved = replace(case, gpus=GpuSet(gpu, count))
        if factor > 1 and case.engine not in LAYERWISE:
            moved = with_layout(replace(case, gpus=GpuSet(gpu, count)), case.layout.tensor * factor)
        found = list(tried(moved, f"{count} x {gpu.name}", f"--gpu {count}x{gpu.key}", "another GPU"))
        if found:
            return found
    return []


def _first(gpus: list[Gpu], wanted: int, attempt: Callable[[Gpu], list[Advice]]) -> Iterator[Advice]:
    """The first few that fit, one of each memory size."""
    sizes: set[int] = set()
    for gpu in gpus:
        gib = gpu.usable.low // 2**30
        if gib in sizes:
            continue
        found = attempt(gpu)
        if found:
            sizes.add(gib)
            yield from found
        if len(sizes) == wanted:
            return
