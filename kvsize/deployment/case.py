"""From a model, GPUs and settings to the case that fit judges: layout, weights and engine settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsize.architectures import geometry as geometry_of
from kvsize.deployment.budget import Launch
from kvsize.deployment.judge import LAYERWISE, POOLED, Case, Layout
from kvsize.engines import Workload, engine_options
from kvsize.errors import SourceError, UsageError
from kvsize.geometry import Attention, Encoder, Geometry
from kvsize.gpus import GpuSet
from kvsize.shape import model_shape
from kvsize.source import ModelFiles
from kvsize.weights import UnknownWeights, Weights, weights_of

UNPACKING = ("transformers", "mlx", "sglang", "trtllm")  # llama.cpp, Ollama and vLLM keep a GGUF's blocks as they are


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the weights come from: bytes as `given`, else what is known; `exact` reads every shard's header."""

    given: int | None = None
    exact: bool = False
    offline: bool = False


def default_engine(files: ModelFiles) -> str:
    """The server that most people would start with this model."""
    return "llama.cpp" if files.origin == "gguf" else "vllm"


def make_case(
    files: ModelFiles,
    gpus: GpuSet,
    engine: str,
    workload: Workload,
    settings: Mapping[str, Any],
    launch: Mapping[str, Any],
    replicas: tuple[int, int] = (1, 1),
    weights: Asked = Asked(),
) -> Case:
    """Everything that evaluate needs; `replicas` are those of data and of expert parallelism.

    `engine` is NAME[@VERSION], `settings` its own under its flags' names, `launch` fields of budget.Launch.

    Raises:
        UsageError: the layout does not use the GPUs that are named.
    """
    geometry = geometry_of(files.config)
    name, _, version = engine.partition("@")
    layout = layout_of(name, gpus.count, settings, *replicas)
    if name in POOLED and layout.tensor > 1:
        settings = {**settings, "tensor_parallel_size": layout.tensor}
    options = engine_options(name, {**settings, "version": version or None})
    return Case(
        geometry=geometry,
        shape=model_shape(files.config, len(geometry.layers)),
        config=files.config,
        weights=known_weights(files, name, weights),
        gpus=gpus,
        engine=name,
        options=options,
        workload=with_encoder(workload, geometry, name),
        launch=Launch(
            version=version_of(options.version),
            tensor_parallel_size=layout.tensor,
            pipeline_parallel_size=layout.pipeline,
            max_num_batched_tokens=settings.get("max_num_batched_tokens"),
            attention_replicas=getattr(options, "data_parallel_size", 1),
            chunked_prefill_size=settings.get("chunked_prefill_size"),
            **launch,
        ),
        layout=layout,
    )


def with_encoder(workload: Workload, geometry: Geometry, engine: str) -> Workload:
    """The workload with the encoder's tokens where nobody gave them and the model always yields as many (Whisper).

    Raises:
        UsageError: they decide and nobody gave them; servers reserve for the most that may come.
    """
    spans = [s.span for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    encoders = [span for span in spans if isinstance(span, Encoder)]
    if workload.encoder_tokens is not None or not encoders:
        return workload
    fixed = max(span.tokens or 0 for span in encoders)
    if not fixed and engine == "transformers" and not all(span.optional for span in encoders):
        hint = "Say how long its input is: --encoder-ctx 512."
        raise UsageError("the cache holds the encoder's tokens too, and nothing says how many", hint=hint)
    return replace(workload, encoder_tokens=fixed) if fixed else workload


def known_weights(files: ModelFiles, engine: str, asked: Asked) -> Weights | UnknownWeights:
    """The weights; a Hub that cannot be asked leaves them unknown, which is an answer too."""
    if files.origin == "gguf" and engine in UNPACKING and asked.given is None:
        return UnknownWeights(f"{engine} unpacks a GGUF's tensors, and nothing here says to how many bytes")
    try:
        return weights_of(files, given=asked.given, exact=asked.exact, offline=asked.offline)
    except SourceError as error:
        if files.origin not in ("catalogue", "cache"):
            raise
        return UnknownWeights(f"nothing records the weights of {files.id}, and the Hub does not answer: {error.what}")


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of an engine's version, for rules that changed; builds count as the newest."""
    parts = text.split(".")
    numbers = [int(part) for part in parts[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (999, 0)


def layout_of(engine: str, count: int, settings: Mapping[str, Any], dp: int, ep: int) -> Layout:
    """How the GPUs are used: by default all of them split heads.

    Raises:
        UsageError: ranks and GPUs do not match.
    """
    pipeline = settings.get("pipeline_parallel_size") or 1
    tensor = settings.get("tensor_parallel_size")
    if dp < 1 or ep < 1 or pipeline < 1 or (tensor is not None and tensor < 1):
        raise UsageError("ranks are counted from 1")
    if engine in LAYERWISE:
        if dp * ep * pipeline * (tensor or 1) > 1:
            raise UsageError(
                f"{engine} spreads layers over the GPUs by itself; --tp, --pp, --dp and --ep mean nothing to it"
            )
        if engine == "mlx" and count > 1:
            raise UsageError("MLX runs on one device", got=f"{count} of them")
        return Layout()
    if tensor is None:
        if count % (pipeline * dp):
            raise UsageError(f"{count} GPUs are no multiple of {pipeline * dp} (stages x replicas)")
        tensor = count // (pipeline * dp)
    layout = Layout(tensor, pipeline, dp, ep)
    if layout.ranks != count:
        raise UsageError(
            f"the layout takes {layout.ranks} GPUs, --gpu names {count}",
            hint=f"Say --gpu {layout.ranks}x…, or other ranks.",
        )
    return layout
