"""Engines: functions from geometry and workload to bytes. One module an engine, one row in ENGINES.

An engine module holds a frozen dataclass `Options` (its own settings, under its own flags' names), `VERSION` (the
newest modelled release) and `size(geometry, workload, options) -> CacheSize`. Nothing else is shared but these values.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, TypeAlias, cast

from kvsize.errors import UsageError
from kvsize.geometry import Geometry

Evidence: TypeAlias = Literal["exact", "derived", "measured", "assumed"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the cache, whatever the engine.

    `tokens` are one request's (prompt and answer), `sequences` the concurrent requests (beams not yet multiplied in).
    `k_format` and `v_format` name an entry of FORMATS, or an engine's own KV format, or "auto".
    `encoder_tokens` is None where the caller did not say. `prompt_tokens` of `tokens` come from one prefill, the others
    from decoding; None leaves it open.
    """

    tokens: int
    sequences: int = 1
    k_format: str = "auto"
    v_format: str = "auto"
    encoder_tokens: int | None = None
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError("--ctx must be at least 1 token", got=str(self.tokens))
        if self.sequences < 1:
            raise UsageError("--batch must be at least 1 sequence", got=str(self.sequences))
        if self.encoder_tokens is not None and self.encoder_tokens < 0:
            raise UsageError("--encoder-ctx must not be negative", got=str(self.encoder_tokens))


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one hidden layer, all sequences together. Unique storages, but for `logical`.

    `logical` counts the elements of the cached tensors; `held` the storage in steady decoding; `after_prefill` the
    storage right after a one-shot prefill of all tokens; `host` what of `held` sits in host memory (offloading).
    """

    logical: int = 0
    held: int = 0
    after_prefill: int = 0
    host: int = 0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes that belong to no layer: a trash page, a padding sector, a scale."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """One group of layers that an engine pages together."""

    name: str
    layers: int
    block_tokens: int
    page_bytes: int
    request_blocks: int


@dataclass(frozen=True, slots=True)
class Pool:
    """What a given budget holds, as the engine itself would plan and print it (per rank)."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    tokens: int
    max_concurrency: float
    request_blocks: int
    request_bytes: int
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """What a compute buffer grows with, beside the model's widths: the tokens of a ubatch, the cells that one sequence
    of it attends to, and whether the scores of all heads are written out."""

    ubatch: int
    cells: int
    heads: int
    flash: bool


@dataclass(frozen=True, slots=True)
class CacheSize:
    """An engine's answer. Totals are sums of parts by construction.

    `peak_bytes` is the most held at once while one more token is added (old and new tensor of a growing concatenation).
    `step_tokens`: the fewest tokens over which the size grows evenly (a page); negative where a jump lies ahead and
    only the way back is even. `format_source`: why these formats. `scratch` is not
    counted here; None where no rule is known.
    """

    engine: str
    version: str
    cache: str
    k_format: str
    v_format: str
    layers: tuple[LayerBytes, ...]
    overheads: tuple[Overhead, ...] = ()
    transient_bytes: int = 0
    step_tokens: int = 1
    format_source: str = ""
    evidence: Evidence = "exact"
    pool: Pool | None = None
    scratch: Scratch | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def overhead_bytes(self) -> int:
        """Bytes that belong to no layer."""
        return sum(part.bytes for part in self.overheads)

    @property
    def total_bytes(self) -> int:
        """Storage held in steady decoding, on the device and on the host."""
        return sum(layer.held for layer in self.layers) + self.overhead_bytes

    @property
    def logical_bytes(self) -> int:
        """Elements of the cached tensors times their width."""
        return sum(layer.logical for layer in self.layers) + self.overhead_bytes

    @property
    def after_prefill_bytes(self) -> int:
        """Storage right after a one-shot prefill of all tokens."""
        return sum(layer.after_prefill for layer in self.layers) + self.overhead_bytes

    @property
    def host_bytes(self) -> int:
        """The part of `total_bytes` that sits in host memory."""
        return sum(layer.host for layer in self.layers)

    @property
    def peak_bytes(self) -> int:
        """The most held at once, on the device and on the host."""
        return max(self.total_bytes, self.after_prefill_bytes) + self.transient_bytes


class EngineModule(Protocol):
    """The whole interface of an engine module."""

    VERSION: str
    Options: type[Any]

    def size(self, geometry: Geometry, workload: Workload, options: Any) -> CacheSize:
        """Bytes of `workload` on `geometry`, as this engine allocates them."""


# name -> module. Modules are imported when used, so that one engine's cost is not paid by another's user.
ENGINES: Mapping[str, str] = {
    "transformers": "kvsize.engines.transformers",
    "vllm": "kvsize.engines.vllm",
    "sglang": "kvsize.engines.sglang",
    "mlx": "kvsize.engines.mlx",
    "trtllm": "kvsize.engines.trtllm",
    "llama.cpp": "kvsize.engines.llamacpp",
    "ollama": "kvsize.engines.ollama",
}


def load_engine(name: str) -> EngineModule:
    """The engine's module.

    Raises:
        UsageError: no such engine.
    """
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}", hint="Known: " + ", ".join(ENGINES))
    return cast("EngineModule", importlib.import_module(ENGINES[name]))


def engine_options(name: str, given: Mapping[str, Any]) -> Any:
    """The engine's Options from settings under their field names; None means "not given".

    Raises:
        UsageError: a setting that this engine does not have.
    """
    options = load_engine(name).Options
    known = {item.name for item in fields(options)}
    settings = {key: value for key, value in given.items() if value is not None}
    for key in settings:
        if key not in known:
            flag = "--" + key.replace("_", "-")
            raise UsageError(
                f"{flag} means nothing to {name}",
                hint=f"Settings of {name}: " + ", ".join(sorted("--" + k.replace("_", "-") for k in known)),
            )
    return options(**settings)
