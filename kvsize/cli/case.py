"""From the flags of fit to the case that it judges."""

from __future__ import annotations

from typing import Any

import typer

from kvsize.cli.options import parse_bytes, parse_tokens
from kvsize.cli.size import DEFAULT_CTX, engine_settings, parse_encoder, parse_kv_dtype
from kvsize.engines import Workload, load_engine
from kvsize.errors import SourceError, UsageError
from kvsize.fit import LAYERWISE, POOLED, Case, Layout
from kvsize.gpus import GpuSet
from kvsize.source import ModelFiles
from kvsize.weights import UnknownWeights, Weights

UNPACKING = ("transformers", "mlx", "sglang", "trtllm")  # llama.cpp, Ollama and vLLM keep a GGUF's blocks as they are


def measured(text: str, name: str) -> int:
    """A figure that replaces an estimate."""
    return 0 if text == "0" else parse_bytes(text, "--" + name.replace("_", "-"))


def calibrated(file: str | None, engine: str, model: str) -> dict[str, int]:
    """What a server of this engine and model measured at its start; nothing where no file is given.

    Raises:
        UsageError: the file is of another engine or model.
    """
    if file is None:
        return {}
    from kvsize.logs.calibration import measured_on

    name, _, version = engine.partition("@")
    found = measured_on(file, name, model)
    sized = version or load_engine(name).VERSION
    if found.version is not None and version_of(found.version) != version_of(sized):
        typer.echo(f"{file} was measured on {name} {found.version}; this is {name} {sized}", err=True)
    return found.figures


def workload_of(ctx: str, batch: int, kv_dtype: str, encoder_ctx: str | None) -> Workload:
    """The workload of the flags."""
    k_format, v_format = parse_kv_dtype(kv_dtype)
    tokens = parse_tokens(ctx) if ctx else DEFAULT_CTX
    return Workload(tokens, batch, k_format, v_format, None if encoder_ctx is None else parse_encoder(encoder_ctx))


def make_case(
    files: ModelFiles,
    gpus: GpuSet,
    engine: str,
    workload: Workload,
    settings: dict[str, Any],
    launch: dict[str, Any],
    replicas: tuple[int, int],
    weight_options: tuple[str | None, bool, bool],
) -> Case:
    """Everything that evaluate needs, read from a model and the flags.

    Raises:
        UsageError: the layout does not use the GPUs that are named.
    """
    from kvsize.architectures import geometry as geometry_of
    from kvsize.budget import Launch
    from kvsize.shape import model_shape

    geometry = geometry_of(files.config)
    name = engine.partition("@")[0]
    layout = layout_of(name, gpus.count, settings, *replicas)
    if name in POOLED and layout.tensor > 1:
        settings = {**settings, "tensor_parallel_size": layout.tensor}
    name, options = engine_settings(engine, settings)
    given, exact, offline = weight_options
    return Case(
        geometry=geometry,
        shape=model_shape(files.config, len(geometry.layers)),
        config=files.config,
        weights=known_weights(files, name, given, exact=exact, offline=offline),
        gpus=gpus,
        engine=name,
        options=options,
        workload=workload,
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


def known_weights(
    files: ModelFiles, engine: str, given: str | None, *, exact: bool, offline: bool
) -> Weights | UnknownWeights:
    """The weights; a Hub that cannot be asked leaves them unknown, which is an answer too."""
    from kvsize.weights import weights_of

    stated = None if given is None else parse_bytes(given, "--weights")
    if files.origin == "gguf" and engine in UNPACKING and stated is None:
        return UnknownWeights(f"{engine} unpacks a GGUF's tensors, and nothing here says to how many bytes")
    try:
        return weights_of(files, given=stated, exact=exact, offline=offline)
    except SourceError as error:
        if files.origin not in ("catalogue", "cache"):
            raise
        return UnknownWeights(f"nothing records the weights of {files.id}, and the Hub does not answer: {error.what}")


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of an engine's version, for rules that changed; builds count as the newest."""
    parts = text.split(".")
    numbers = [int(part) for part in parts[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (999, 0)


def layout_of(engine: str, count: int, settings: dict[str, Any], dp: int, ep: int) -> Layout:
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
