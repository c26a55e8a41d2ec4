"""Where a GPU's memory goes at start-up, engine by engine, and what is left for the cache.

Known parts are exact. Estimated parts are ranges fitted on figures that real engines printed (validate/truth/budgets);
each says its rule, and each can be overridden by what was measured. GiB are 2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from kvsize.engines import Evidence, Scratch
from kvsize.errors import UnsupportedError, UsageError
from kvsize.ranges import Range, exactly
from kvsize.shape import ModelShape

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    """One rank's device: bytes as the engine sees them; `free` of them where a driver was asked.

    What other makers' stacks take beside the model is known from few logs: ranges are wide where it is not `cuda`.
    """

    total: Range
    free: int | None = None
    unified: bool = False
    a100: bool = False
    cuda: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch command settles; None is the engine's own default.

    `overrides` replace an estimated part by a figure: activations, cuda_graphs, non_torch, reserve. `scratch` is what
    the cache's engine says of its compute buffer, `devices` the GPUs that share the layers.
    """

    version: tuple[int, int] = (0, 33)
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    mem_fraction_static: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    attention_replicas: int = 1
    chunked_prefill_size: int | None = None
    scratch: Scratch | None = None
    devices: int = 1
    overrides: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory, with its evidence and its rule in words."""

    name: str
    bytes: Range
    evidence: Evidence
    why: str


@dataclass(frozen=True, slots=True)
class Budget:
    """What the engine may use, and what takes it. `room` is what is left for the cache."""

    total: Range
    usable: Range
    usable_why: str
    parts: tuple[Part, ...]

    @property
    def room(self) -> Range:
        """Bytes left for the cache: the unkind end first. Negative where the parts alone do not fit."""
        return Range(
            self.usable.low - sum(part.bytes.high for part in self.parts),
            self.usable.high - sum(part.bytes.low for part in self.parts),
        )


Estimate = Callable[[ModelShape, Machine, Launch], Part]


def _spread(name: str, low: float, high: float, why: str) -> Part:
    return Part(name, Range(int(max(low, 0) * GIB), int(max(high, 0) * GIB)), "assumed", why)


def _given(launch: Launch, name: str) -> Part | None:
    value = launch.overrides.get(name)
    return None if value is None else Part(name, exactly(value), "measured", "given")


# -- vLLM --------------------------------------------------------------------------------------------------------------


def vllm_steps(machine: Machine, launch: Launch) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a server start, where they are not given.

    vllm@0.33.0 engine/arg_utils.py: cards of 70 GiB and more other than A100 take 8192 and 1024, others 2048 and 256;
    from 0.28 on cards of 160 GiB take 16384.
    """
    big = machine.total.high >= 70 * GIB and not machine.a100
    huge = machine.total.high >= 160 * GIB and launch.version >= (0, 28)
    tokens = 16384 if huge else 8192 if big else 2048
    return launch.max_num_batched_tokens or tokens, launch.max_num_seqs or (1024 if big else 256)


def vllm_activations(shape: ModelShape, machine: Machine, launch: Launch) -> Part:
    """The larger of one forward of max_num_batched_tokens and one sampling of max_num_seqs.

    Only the last pipeline stage samples: Llama-3.1-8B prints 1.89 GiB on one H100, 1.10 on the first of two stages.
    """
    hidden, vocab, mlp = shape.hidden, shape.vocab, shape.mlp
    if hidden is None or vocab is None:
        return _spread("activations", 0.5, 7, "hidden_size or vocab_size unknown: what was ever seen")
    tokens, sequences = vllm_steps(machine, launch)
    forward = 2 * tokens * (3 * (mlp or 4 * hidden) / launch.tensor_parallel_size + 4 * hidden) / GIB
    new = launch.version >= (0, 17)
    sampler = (15 if new else 39) * sequences * vocab / GIB + (0.05 if new else 0)
    extra = (0.35 if shape.moe else 0) + (0.15 if shape.multimodal else 0)
    peak = max(forward, sampler) + extra
    least = forward + extra if launch.pipeline_parallel_size > 1 else peak
    below, above = VLLM_ACTIVATION_SPREAD["moe" if shape.moe else "multimodal" if shape.multimodal else "dense"]
    why = f"{tokens:,} batched tokens, {sequences:,} sequences"
    if not machine.cuda:
        above, why = 1.0, f"{why}; not CUDA"
    return _spread("activations", least * (1 - below) - 0.1, peak * (1 + above) + 0.3, why)


VLLM_ACTIVATION_SPREAD = {"dense": (0.1, 0.15), "moe": (0.5, 0.5), "multimodal": (0.5, 0.6)}


def vllm_non_torch(_shape: ModelShape, machine: Machine, launch: Launch) -> Part:
    """The CUDA context's growth and NCCL's buffers."""
    if machine.unified:
        return _spread("non_torch", 0, 8.3, "unified memory: other processes and page cache count too")
    if not machine.cuda:
        return _spread("non_torch", 0.3, 5.5, "not CUDA: 0.34 to 5.5 in logs")
    if launch.tensor_parallel_size > 1:
        low, high = (0.6, 2.7) if launch.version >= (0, 17) else (0.1, 2.2)
        return _spread("non_torch", low, high, "NCCL over several ranks")
    low, high = (0.07, 0.5) if launch.version >= (0, 17) else (0.0, 0.35)
    return _spread("non_torch", low, high, "CUDA context, one rank")


def vllm_graphs(shape: ModelShape, machine: Machine, launch: Launch) -> Part:
    """CUDA graphs; up to 0.20 they sit on top of the utilisation, later an estimate is subtracted."""
    if launch.enforce_eager:
        return Part("cuda_graphs", exactly(0), "exact", "eager mode captures none")
    several = launch.tensor_parallel_size > 1
    high = (5.0 if several else 3.1) if shape.moe else 1.8 if several else 1.1
    if not machine.cuda:
        high = max(high, 3.8)
    why = "captured after the pool" if launch.version < (0, 21) else "estimated by vLLM"
    return _spread("cuda_graphs", 0.03 if machine.cuda else 0, high, why)


def vllm(shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """vLLM: a share of the GPU's total, less weights, activations, non-torch memory and graphs.

    vllm@0.33.0 v1/worker/gpu_worker.py determine_available_memory.
    """
    share = launch.gpu_memory_utilization
    if share is None:
        share = 0.92 if launch.version >= (0, 20) else 0.9
    if not 0 < share <= 1:
        raise UsageError("--gpu-memory-utilization is a share between 0 and 1", got=str(share))
    usable = Range(ceil(machine.total.low * share), ceil(machine.total.high * share))
    if machine.free is not None and machine.free < usable.low:
        raise UnsupportedError(
            f"vLLM does not start: it wants {usable.low / GIB:.2f} GiB, and {machine.free / GIB:.2f} GiB are free",
            hint="Stop the other processes on this GPU, or lower --gpu-memory-utilization.",
        )
    parts = [weights, *_estimated((vllm_activations, vllm_non_torch), shape, machine, launch)]
    if launch.version >= (0, 20):
        parts.append(_given(launch, "cuda_graphs") or vllm_graphs(shape, machine, launch))
    return Budget(machine.total, usable, f"gpu_memory_utilization {share:g} of the total", (*parts, *_reserve(launch)))


def _estimated(rules: tuple[Estimate, ...], shape: ModelShape, machine: Machine, launch: Launch) -> list[Part]:
    parts = []
    for rule in rules:
        estimated = rule(shape, machine, launch)
        parts.append(_given(launch, estimated.name) or estimated)
    return parts


def _reserve(launch: Launch) -> tuple[Part, ...]:
    reserve = launch.overrides.get("reserve", 0)
    return (Part("reserve", exactly(reserve), "measured", "given"),) if reserve else ()


# -- SGLang ------------------------------------------------------------------------------------------------------------


def sglang(shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """SGLang: a fraction of what is free before the weights load; everything else must fit in the remainder.

    sglang@0.5.23 mem_cache/kv_cache_configurator.py _profile_available_bytes.
    """
    from kvsize.engines.sglang.fraction import IMAGES_MIB

    most = 9 if machine.unified else 1.3 if machine.cuda else 4.2
    context = _given(launch, "non_torch") or _spread("non_torch", 0.3, most, "context and NCCL, before the weights")
    free = Range(machine.total.low - context.bytes.high, machine.total.high - context.bytes.low)
    low, high = _fractions(shape, machine, launch)
    remainder = _remainder(shape, machine, launch)
    usable = Range(max(min(int(free.low * low), free.low - remainder), 0), int(free.high * high))
    images = (Part("images", exactly(IMAGES_MIB * MIB), "derived", "SGLANG_VLM_CACHE_SIZE_MB"),) if shape.vision else ()
    span = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    why = f"mem_fraction_static {span} of the free memory"
    return Budget(machine.total, usable, why, (weights, *images, *_reserve(launch)))


def _fractions(shape: ModelShape, machine: Machine, launch: Launch) -> tuple[float, float]:
    """mem_fraction_static as given, else as SGLang sets it: the ends differ where an encoder's size is unclear."""
    from kvsize.engines.sglang.fraction import mem_fraction_static, vision_factor

    given = launch.mem_fraction_static
    if given is not None:
        if not 0 < given < 1:
            raise UsageError("--mem-fraction-static is a share between 0 and 1", got=str(given))
        return given, given
    fraction = mem_fraction_static(
        machine.total.high / MIB,
        tensor_parallel=launch.tensor_parallel_size,
        pipeline_parallel=launch.pipeline_parallel_size,
        attention_replicas=launch.attention_replicas,
        latent=shape.latent,
        chunked_prefill=launch.chunked_prefill_size,
    )
    if shape.vision is None:
        return fraction, fraction
    factors = [vision_factor(layers, width) for layers in shape.vision[0] for width in shape.vision[1]]
    return fraction * min(factors), fraction * max(factors)


def _remainder(shape: ModelShape, machine: Machine, launch: Launch) -> int:
    """Bytes that activations and graphs take of what the fraction leaves: one chunk's forward, and 1.5 GiB."""
    from kvsize.engines.sglang.fraction import defaults

    chunk = launch.chunked_prefill_size or defaults(machine.total.high / MIB, launch.tensor_parallel_size)[0]
    width = shape.hidden or 8192
    forward = 2 * chunk * (3 * (shape.mlp or 4 * width) // launch.tensor_parallel_size + 4 * width)
    graphs = 0 if launch.enforce_eager else 3 * GIB // 2
    return launch.overrides.get("activations", forward) + launch.overrides.get("cuda_graphs", graphs)


# -- TensorRT-LLM ------------------------------------------------------------------------------------------------------


def trtllm(shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """TensorRT-LLM: a fraction (0.9) of what weights, activations and context leave. Derived from source, not run."""
    share = launch.gpu_memory_utilization if launch.gpu_memory_utilization is not None else 0.9
    taken = [weights, *_estimated((vllm_activations, vllm_non_torch), shape, machine, launch)]
    left = Range(
        machine.total.low - sum(part.bytes.high for part in taken),
        machine.total.high - sum(part.bytes.low for part in taken),
    )
    kept = Part(
        "kept_free",
        Range(int(max(left.low, 0) * (1 - share)), int(max(left.high, 0) * (1 - share))),
        "derived",
        f"free_gpu_memory_fraction {share:g} of what is left",
    )
    return Budget(machine.total, machine.total, "the whole GPU", (*taken, kept, *_reserve(launch)))


# -- llama.cpp, transformers, MLX --------------------------------------------------------------------------------------


def llamacpp(shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """llama.cpp: weights, one compute buffer, the CUDA context; nothing is set aside by share."""
    from kvsize.engines.llamacpp.buffers import compute_buffer_estimate

    width = shape.hidden or 8192
    scratch = launch.scratch or Scratch(launch.max_num_batched_tokens or 512, cells=0, heads=0, flash=True)
    most = compute_buffer_estimate(
        hidden=width,
        mlp=shape.mlp or 4 * width,
        vocab=shape.vocab or 262_144,
        heads=scratch.heads,
        cells=scratch.cells,
        ubatch=scratch.ubatch,
        flash=scratch.flash,
        index_heads=shape.index_heads or 0,
        devices=launch.devices,
    )
    why = f"compute buffer of {scratch.ubatch:,} tokens" + f" beside {scratch.cells:,} cells" * (scratch.cells > 0)
    why += "" if scratch.flash else ", without flash attention"
    compute = _given(launch, "activations") or _spread("activations", 0.05, most / GIB + 0.5, why)
    context = _given(launch, "non_torch") or _spread("non_torch", 0.25, 0.6, "CUDA context")
    return Budget(machine.total, machine.total, "the whole GPU", (weights, compute, context, *_reserve(launch)))


def transformers(shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """transformers: weights, the activations of the prefill, the CUDA context."""
    width, vocab, mlp = shape.hidden or 8192, shape.vocab or 262_144, shape.mlp or 4 * (shape.hidden or 8192)
    tokens = launch.max_num_batched_tokens or 2048
    forward = 2 * tokens * (3 * mlp + 8 * width) / GIB
    activations = _given(launch, "activations") or _spread(
        "activations", forward * 0.5, forward * 2 + 4 * tokens * vocab / GIB, f"a prefill of {tokens:,} tokens at once"
    )
    context = _given(launch, "non_torch") or _spread("non_torch", 0.3, 1.0, "CUDA context and allocator")
    return Budget(machine.total, machine.total, "the whole GPU", (weights, activations, context, *_reserve(launch)))


BUDGETS: Mapping[str, Callable[[ModelShape, Machine, Part, Launch], Budget]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "llama.cpp": llamacpp,
    "ollama": llamacpp,
    "mlx": llamacpp,
    "transformers": transformers,
}


def in_use(machine: Machine) -> tuple[Part, ...]:
    """What other processes hold now."""
    if machine.free is None or machine.free >= machine.total.low:
        return ()
    return (Part("in_use", exactly(machine.total.low - machine.free), "measured", "other processes on this GPU"),)


def budget(engine: str, shape: ModelShape, machine: Machine, weights: Part, launch: Launch) -> Budget:
    """The engine's start-up budget on one rank.

    Raises:
        UnsupportedError: nothing is known of this engine's start-up.
    """
    if engine not in BUDGETS:
        raise UnsupportedError(f"no start-up rules for {engine}", hint="Known: " + ", ".join(BUDGETS))
    drawn = BUDGETS[engine](shape, machine, weights, launch)
    return drawn if engine == "vllm" else replace(drawn, parts=(*drawn.parts, *in_use(machine)))
