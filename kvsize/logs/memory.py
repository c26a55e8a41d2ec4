"""Memory that is no cache: shown as printed, inside fit's range where its rules give one."""

from __future__ import annotations

from collections.abc import Iterator

from kvsize.deployment.budget import BUDGETS, Budget, Launch, Machine, Part, budget
from kvsize.errors import KvsizeError
from kvsize.geometry import Geometry
from kvsize.logs.lines import Figure
from kvsize.logs.server import Server
from kvsize.logs.settings import number, truth
from kvsize.logs.verdict import Verdict, estimate, unpredicted
from kvsize.ranges import Range, exactly
from kvsize.shape import model_shape
from kvsize.source import ModelFiles

# quantity -> the part of fit's budget that estimates it (None: none does)
QUANTITIES: dict[str, str | None] = {
    "weights": "weights",
    "model_buffer": None,
    "peak": None,
    "total": None,
    "free": None,
    "usable": "usable",
    "left": None,
    "activations": "activations",
    "compute": "activations",
    "non_torch": "non_torch",
    "graphs": "cuda_graphs",
    "graphs_estimate": "cuda_graphs",
}


def verdicts(server: Server, files: ModelFiles, geometry: Geometry) -> Iterator[Verdict]:
    """Each figure of memory that is no cache."""
    figures = [figure for figure in server.figures if figure.quantity in QUANTITIES]
    ranges = _ranges(server, files, geometry) if figures else {}
    for figure in figures:
        part = QUANTITIES[figure.quantity]
        if part not in ranges or _elsewhere(figure):
            yield unpredicted(figure)
            continue
        span, why = ranges[part]
        yield estimate(figure, span.low, span.high, why)


def _ranges(server: Server, files: ModelFiles, geometry: Geometry) -> dict[str, tuple[Range, str]]:
    """What fit would expect of each part, and its rule."""
    drawn = _drawn(server, files, geometry)
    found = {} if drawn is None else {part.name: (part.bytes, part.why) for part in drawn.parts}
    if drawn is not None:
        found["usable"] = (drawn.usable, drawn.usable_why)
    weights = _weights(server, files, geometry)
    found.pop("weights", None)
    return found if weights is None else {**found, "weights": (weights, "the checkpoint, on one rank")}


def _weights(server: Server, files: ModelFiles, geometry: Geometry) -> Range | None:
    """The weights of the emptiest to the fullest rank; None where the catalogue does not record the checkpoint."""
    if server.engine not in ("vllm", "sglang") or files.weight_bytes is None:
        return None
    from kvsize.weights import UnknownWeights, weights_of
    from kvsize.weights.ranks import beside, per_stage
    from kvsize.weights.values import as_loaded

    weights = weights_of(files, offline=True)
    if isinstance(weights, UnknownWeights):
        return None
    tensor, pipeline = (
        number(server.settings.get(f"{name}_parallel_size", "")) or 1 for name in ("tensor", "pipeline")
    )
    dtype = geometry.dtype if geometry.dtype in ("bfloat16", "float16") else "bfloat16"
    try:
        stages = per_stage(as_loaded(weights, files.config, dtype), files.config, tp=tensor, pp=pipeline)
    except KvsizeError:
        return None
    most = max(stage.high for stage in stages)
    return Range(min(stage.low for stage in stages), most + beside(files.config, most).high)


def _elsewhere(figure: Figure) -> bool:
    """A compute buffer in host memory, or that of a second device, is not what the estimate is of."""
    return "Host" in figure.facts.get("device", "") or figure.facts.get("device", "") == "CPU"


def _drawn(server: Server, files: ModelFiles, geometry: Geometry) -> Budget | None:
    """fit's budget for this server, weights left out; None where the log does not show enough of the machine."""
    total = next(iter(server.of("total")), None)
    engine = server.engine
    if engine not in BUDGETS or (total is None and engine not in ("llama.cpp", "ollama")):
        return None
    memory = Range(int(total.least), int(total.most)) if total else exactly(1 << 40)
    settings = server.settings
    launch = Launch(
        version=_version(server.version),
        tensor_parallel_size=number(settings.get("tensor_parallel_size", "")) or 1,
        gpu_memory_utilization=_share(server),
        max_num_seqs=number(settings.get("max_num_seqs", "")),
        max_num_batched_tokens=number(settings.get("max_num_batched_tokens", settings.get("n_ubatch", ""))),
        enforce_eager=truth(settings.get("enforce_eager", "")) or False,
    )
    nothing = Part("weights", exactly(0), "assumed", "")
    try:
        return budget(engine, model_shape(files.config, len(geometry.layers)), Machine(memory), nothing, launch)
    except KvsizeError:
        return None


def _share(server: Server) -> float | None:
    """gpu_memory_utilization, as set or as printed beside the memory."""
    texts = [
        server.settings.get("gpu_memory_utilization", ""),
        *(f.facts.get("share", "") for f in server.of("usable")),
    ]
    for text in texts:
        if text.replace(".", "", 1).isdecimal() and 0 < float(text) <= 1:
            return float(text)
    return None


def _version(text: str | None) -> tuple[int, int]:
    parts = (text or "").split(".")
    return (
        (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal() else (999, 0)
    )
