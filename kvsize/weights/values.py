"""How many bytes of weights, what they consist of, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsize.engines import Evidence
from kvsize.weights.safetensors import Tensor

if TYPE_CHECKING:
    from kvsize.gguf import LayerWeights


@dataclass(frozen=True, slots=True)
class Part:
    """The tensors of one stored dtype, as safetensors spells it; packed elements count as they are stored."""

    dtype: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine would load.

    `evidence`: exact (the tensors' own bytes), derived (sizes of files, their headers included: never too low; or the
    figure that the catalogue records), assumed (as given by the user). `source` says it in words. `parts` is empty
    where only the sum is known, `tensors` where no header was read. `by_layer`: of a GGUF. `left_out`: weights
    that are there and not loaded.
    """

    total_bytes: int
    evidence: Evidence
    source: str
    parts: tuple[Part, ...] = ()
    files: int = 0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    by_layer: LayerWeights | None = None


@dataclass(frozen=True, slots=True)
class UnknownWeights:
    """The weights cannot be known, and are not guessed: why, and what helps."""

    reason: str
    hint: str = "State them: --weights 15GiB."


def parts_of(tensors: tuple[Tensor, ...]) -> tuple[Part, ...]:
    """Tensors summed by dtype, the most bytes first."""
    sums: dict[str, list[int]] = {}
    for tensor in tensors:
        counts = sums.setdefault(tensor.dtype, [0, 0])
        counts[0] += tensor.elements
        counts[1] += tensor.bytes
    parts = [Part(dtype, elements, size) for dtype, (elements, size) in sums.items()]
    return tuple(sorted(parts, key=lambda part: -part.bytes))


_PLAIN = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_LOADED: Mapping[str, tuple[str, int]] = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}


def as_loaded(weights: Weights, config: Mapping[str, Any], dtype: str) -> Weights:
    """What an engine holds that loads plain weights as `dtype` (float32, bfloat16, float16): Gemma 2's 32 bits as 16.

    Only the format that most of the checkpoint is in is converted: routers, scales and states in 32 bits stay so.
    Nothing changes for a quantised checkpoint, nor where formats are not known (a recorded or stated figure).
    """
    nested = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    quantised = any(isinstance(part, Mapping) and "quantization_config" in part for part in (config, *nested))
    target = _LOADED.get(dtype)
    main = weights.parts[0].dtype if weights.parts else None
    if quantised or target is None or main not in _PLAIN or _PLAIN[main] == target[1]:
        return weights
    name, width = target
    parts = tuple(
        Part(name, part.elements, part.elements * width) if part.dtype == main else part for part in weights.parts
    )
    tensors = tuple(
        replace(tensor, dtype=name, bytes=tensor.elements * width) if tensor.dtype == main else tensor
        for tensor in weights.tensors
    )
    note = f"stored as {main}, loaded as {name}"
    return replace(
        weights,
        total_bytes=sum(part.bytes for part in parts),
        parts=parts,
        tensors=tensors,
        notes=(*weights.notes, note),
    )
