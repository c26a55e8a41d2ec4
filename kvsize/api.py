"""The library's public calls: from a model's name to its geometry, from a geometry to bytes, and whether they fit."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from kvsize.architectures import geometry as geometry_of
from kvsize.engines import CacheSize, Workload, engine_options, load_engine
from kvsize.errors import KvsizeError
from kvsize.geometry import Geometry
from kvsize.source import load as load_files

if TYPE_CHECKING:
    from kvsize.deployment.judge import Outcome

__all__ = ["CacheSize", "Geometry", "KvsizeError", "Workload", "fit", "load", "size"]


def load(model: str, *, revision: str | None = None, refresh: bool = False, offline: bool = False) -> Geometry:
    """What a model stores, layer by layer.

    `model` is a Hub id, `id@revision`, a Hub URL, a folder, a config.json or a .gguf file.

    Raises:
        SourceError: the config could not be read.
        ConfigError: it misses a field, or its architecture is unknown.
    """
    return geometry_of(load_files(model, revision=revision, refresh=refresh, offline=offline).config)


def size(
    geometry: Geometry,
    tokens: int,
    *,
    sequences: int = 1,
    engine: str = "transformers",
    kv_format: str = "auto",
    v_format: str | None = None,
    encoder_tokens: int | None = None,
    **options: Any,
) -> CacheSize:
    """Bytes of a KV cache for `sequences` requests of `tokens` tokens each, as `engine` (NAME[@VERSION]) holds it.

    `options` are the engine's own settings under its flags' names (`cache="static"`, `tensor_parallel_size=2`).

    Raises:
        UsageError: an unknown engine, format or option.
        UnsupportedError: the engine refuses this model or setting.
    """
    name, _, version = engine.partition("@")
    settings = engine_options(name, {**options, "version": version or None})
    workload = Workload(tokens, sequences, kv_format, v_format or kv_format, encoder_tokens)
    return load_engine(name).size(geometry, workload, settings)


def fit(
    model: str,
    gpu: str,
    tokens: int,
    *,
    sequences: int = 1,
    engine: str | None = None,
    kv_format: str = "auto",
    v_format: str | None = None,
    encoder_tokens: int | None = None,
    weight_bytes: int | None = None,
    data_parallel: int = 1,
    expert_parallel: int = 1,
    revision: str | None = None,
    offline: bool = False,
    **options: Any,
) -> Outcome:
    """Whether `sequences` requests of `tokens` tokens fit these GPUs (`"h100"`, `"4xh100"`, `"24GiB"`), as fit says it.

    `.verdict` is fits, tight (at the kind end of the estimates only), does_not_fit, or unknown where the weights are;
    `.headroom` a range of bytes on the fullest GPU, `.capacity` the longest context and the most sequences. `engine` is
    NAME[@VERSION]: vLLM unless given, llama.cpp for a .gguf. `options` are the engine's settings as in `size`, and what
    a launch settles (`gpu_memory_utilization=0.95`, `overrides={"activations": 2**30}`).

    Raises:
        UsageError: an unknown GPU, engine or option, a layout that does not use the GPUs.
        SourceError, ConfigError: as load.
        UnsupportedError: the engine refuses this model or setting.
    """
    from kvsize.deployment.budget import Launch
    from kvsize.deployment.case import Asked, default_engine, make_case
    from kvsize.deployment.judge import evaluate
    from kvsize.gpus import select

    files = load_files(model, revision=revision, offline=offline)
    of_launch = {item.name for item in fields(Launch)} - {"version", "tensor_parallel_size", "pipeline_parallel_size"}
    launch = {name: options.pop(name) for name in sorted(of_launch & options.keys())}
    return evaluate(
        make_case(
            files,
            select(gpu),
            engine or default_engine(files),
            Workload(tokens, sequences, kv_format, v_format or kv_format, encoder_tokens),
            options,
            launch,
            (data_parallel, expert_parallel),
            Asked(weight_bytes, offline=offline),
        )
    )
