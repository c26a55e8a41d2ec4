"""GGUF files as models: one on disk, or one of a repository on the Hub; split ones with all their parts.

Only headers are read. A part that is missing leaves the weights unknown; the cache needs the first one alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsize.errors import ConfigError
from kvsize.gguf.header import MAX_TENSORS, Header, Tensor, header, read_header

__all__ = ["LayerWeights", "Model", "as_config", "fetch", "load", "read_header"]

MAX_PARTS = 1 << 10
MAX_LAYERS = 1 << 12  # a block of a higher number counts beside the layers

_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
# What llama.cpp reads rows of, in host memory. src/llama-arch.cpp LLM_TENSOR_LAYER_INPUT, dev_input in llama-model.cpp
_INPUT = {f"{name}.weight" for name in ("token_embd", "position_embd", "token_types", "per_layer_token_embd")}


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Bytes of a model's weights by where llama.cpp puts them: tables that it keeps in host memory, each layer, and the
    output with all that belongs to no layer. A model whose output is its input's table has that once more there."""

    input: int
    layers: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model's metadata in the form that kvsize.architectures reads, and its weights.

    `weight_bytes` is None where a part is missing, or nothing but metadata is there. `commit` is the Hub's, None for a
    file on disk.
    """

    config: Mapping[str, Any]
    weight_bytes: int | None
    commit: str | None = None
    by_layer: LayerWeights | None = None


def load(path: Path) -> Model:
    """The model of a GGUF file on disk; of a split one, from its first part.

    Raises:
        SourceError: it cannot be read, is cut off, or is no GGUF file that this reads.
        ConfigError: what it claims cannot be, or it is not the first part.
    """
    return _model(read_header(path), path.name, lambda name: _beside(path.with_name(name)))


def _beside(path: Path) -> Header | None:
    return read_header(path) if path.is_file() else None


def fetch(endpoint: str, repo_id: str, revision: str, file: str) -> Model:
    """The model of a GGUF file on the Hub, by ranged reads of its header; parameters as hub.fetch_part checks them.

    Raises:
        SourceError: not found, not allowed, unreachable, or no GGUF file that this reads; ConfigError as load.
    """
    from kvsize import hub

    commit: str | None = None

    def read_part(name: str) -> Header:
        def read(start: int, count: int) -> bytes:
            nonlocal commit
            part = hub.fetch_part(endpoint, repo_id, commit or revision, name, start, count)
            commit = commit or part.commit
            return part.data

        return header(read, 1 << 60, f"{repo_id}:{name}")  # how long it is, only the end would tell

    folder = file.rpartition("/")[0]
    first = read_part(file)
    model = _model(first, file.rpartition("/")[2], lambda name: read_part(f"{folder}/{name}" if folder else name))
    return replace(model, commit=commit)


def _model(first: Header, name: str, other: Callable[[str], Header | None]) -> Model:
    missing: list[str] = []
    tensors = list(first.tensors)
    for part in _parts(name, first):
        found = other(part)
        if found is None:
            missing.append(part)
        else:
            tensors += found.tensors
        if len(tensors) > MAX_TENSORS:
            raise ConfigError("more tensors than any model has", where=name, got=f"{len(tensors):,}")
    config = as_config(first, missing)
    if missing or not tensors:
        return Model(config, None)
    return Model(config, sum(tensor.bytes for tensor in tensors), by_layer=by_layer(tensors))


def by_layer(tensors: Iterable[Tensor]) -> LayerWeights:
    """The tensors summed by the layer that their names tell."""
    table = rows = output = 0
    layers: dict[int, int] = {}
    tied = True
    for tensor in tensors:
        tied = tied and tensor.name != "output.weight"
        table = tensor.bytes if tensor.name == "token_embd.weight" else table
        found = _BLOCK.match(tensor.name)
        if found and int(found[1]) < MAX_LAYERS:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + tensor.bytes
        elif tensor.name in _INPUT:
            rows += tensor.bytes
        else:
            output += tensor.bytes
    count = max(layers, default=-1) + 1
    return LayerWeights(rows, tuple(layers.get(index, 0) for index in range(count)), output + tied * table)


def as_config(first: Header, missing: list[str] | None = None) -> dict[str, Any]:
    """The metadata without the tokenizer, and under `kvsize.` what else decides something.

    Raises:
        ConfigError: there is no general.architecture.
    """
    if not isinstance(first.metadata.get("general.architecture"), str):
        raise ConfigError(
            "missing", where="general.architecture", hint="Every model's GGUF names it; is this a later part of one?"
        )
    config = {key: value for key, value in first.metadata.items() if not key.startswith(("tokenizer.", "kvsize."))}
    tokens = first.lengths.get("tokenizer.ggml.tokens")
    if tokens:
        config["kvsize.vocab_size"] = tokens
    config["kvsize.draft_tensors"] = any(".nextn." in tensor.name for tensor in first.tensors)
    if missing:
        config["kvsize.missing_parts"] = missing
    return config


def _parts(name: str, first: Header) -> list[str]:
    """The file names of the other parts, which follow from the first one's."""
    count = first.metadata.get("split.count", 0)
    if type(count) is not int or count < 2:
        return []
    if count > MAX_PARTS:
        raise ConfigError("more parts than any model has", where="split.count", got=f"{count:,}")
    match = _PART.fullmatch(name)
    if match is None or int(match["count"]) != count:
        hint = f"llama.cpp names parts NAME-00001-of-{count:05}.gguf, and finds the others by that."
        raise ConfigError("a part of a split model under another name", where=name, hint=hint)
    if first.metadata.get("split.no", 0) != 0 or int(match["no"]) != 1:
        hint = f"The first part holds the metadata: {match['stem']}-00001-of-{count:05}.gguf"
        raise ConfigError("not the first part of a split model", where=name, hint=hint)
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(2, count + 1)]
