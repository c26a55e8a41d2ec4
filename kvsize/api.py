"""The library's public calls: from a model's name to its geometry, from a geometry to bytes."""

from __future__ import annotations

from typing import Any

from kvsize.architectures import geometry as geometry_of
from kvsize.engines import CacheSize, Workload, engine_options, load_engine
from kvsize.errors import KvsizeError
from kvsize.geometry import Geometry
from kvsize.source import load as load_files

__all__ = ["CacheSize", "Geometry", "KvsizeError", "Workload", "load", "size"]


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
