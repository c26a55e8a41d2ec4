"""Quantised caches: packed bytes of quanto, hqq and fp8, with their scales and the unquantised newest tokens.

transformers@5.23.0 cache_utils.py QuantizedLayer and its backends, quanto 0.2 PackedTensor, hqq 0.2 BitPack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvsize.engines.transformers.growing import Bytes, Rules
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format
from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Sliding,
    index_ranges,
)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a quantised cache packs, under the names of transformers' cache_config.

    `axis_key` and `axis_value`: 0 packs across the whole tensor; the last axis (quanto -1, hqq 1) across each channel.
    """

    backend: str = "quanto"
    nbits: int = 4
    q_group_size: int = 64
    residual_length: int = 128
    axis_key: int = 0
    axis_value: int = 0


GROUPWISE = ("nbits", "q_group_size", "residual_length", "axis_key", "axis_value")


def quantization(backend: str, given: Mapping[str, int | None]) -> Quantization:
    """The packing from what was given, the rest at transformers' defaults.

    Raises:
        UsageError: no such backend.
        UnsupportedError: the backend does not take one of these settings.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    if backend == "fp8":
        if settings:
            raise UnsupportedError(
                "fp8 quantises each tensor whole and takes no " + ", ".join(settings), hint="Use quanto or hqq."
            )
        return Quantization(backend)
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", hint="Known: quanto, hqq, fp8")
    packing = Quantization(backend, **settings)
    known = BACKENDS[backend]
    if packing.nbits not in known.nbits:
        raise UnsupportedError(f"{backend} quantises to {known.nbits} bits", got=str(packing.nbits))
    for name, axis in (("axis_key", packing.axis_key), ("axis_value", packing.axis_value)):
        if axis not in known.axes:
            raise UnsupportedError(f"{name} of {backend} is one of {known.axes}", got=str(axis))
    return packing


def quanto_bytes(groups: int, size: int, nbits: int) -> int:
    """Packed along the groups: 8 // nbits of them share a byte."""
    return -(-groups * nbits // 8) * size


def hqq_bytes(groups: int, size: int, nbits: int) -> int:
    """Packed along the elements of a group; 3-bit values go ten to an int32."""
    if nbits == 3:
        return -(-size // 10) * 4 * groups
    return size * groups * nbits // 8


@dataclass(frozen=True, slots=True)
class Backend:
    """What a backend takes, and the packed bytes of `groups` groups of `size` elements."""

    nbits: tuple[int, ...]
    axes: tuple[int, int]
    pack: Callable[[int, int, int], int]


BACKENDS: dict[str, Backend] = {
    "quanto": Backend((2, 4), (0, -1), quanto_bytes),
    "hqq": Backend((1, 2, 3, 4, 8), (0, 1), hqq_bytes),
}


def check(geometry: Geometry, *, windows_too: bool) -> None:
    """Refuse the models that QuantizedCache refuses; older releases took windows too, and stored them in full.

    Raises:
        UnsupportedError: a layer is not plain full attention.
    """
    refused = [(layer, indices) for layer, indices in geometry.runs() if not _plain(layer, windows_too)]
    if refused:
        layers = "; ".join(f"layers {index_ranges(indices)} {_manner(layer)}" for layer, indices in refused[:3])
        raise UnsupportedError(
            f"QuantizedCache refuses {geometry.model_type}: {layers}",
            hint="Use --cache dynamic or static. vLLM and llama.cpp can: --engine vllm --kv-dtype fp8",
        )


def _manner(layer: Layer) -> str:
    reads_encoder = any(isinstance(store, Attention) and isinstance(store.span, Encoder) for store in layer.stores)
    if layer.shares is not None:
        return "share another layer's cache"
    return "read an encoder" if reads_encoder else f"are {layer.kind}"


def _plain(layer: Layer, windows_too: bool) -> bool:
    spans = (Full, Sliding, Chunked) if windows_too else (Full,)
    return layer.shares is None and all(
        isinstance(store, Attention) and isinstance(store.span, spans) and not isinstance(store.entry, IndexKey)
        for store in layer.stores
    )


def quantized_layer(layer: Layer, rules: Rules, packing: Quantization) -> Bytes:
    """A layer whose K and V are packed, but for the newest tokens.

    The prefill is packed whole. Decoded tokens gather unpacked until there are `residual_length` of them; then
    everything is unpacked and packed anew.
    """
    total = Bytes(0, 0, 0)
    attention = [store for store in layer.stores if isinstance(store, Attention)]  # check() lets nothing else pass
    for store in attention:
        tensors = _tensors(store.entry)
        for (per_token, width), axis in zip(tensors, (packing.axis_key, packing.axis_value), strict=False):
            total += _tensor(per_token, store.extra_tokens, rules, packing, width if axis else None)
    return total


def _tensors(entry: Heads | Latent | IndexKey) -> tuple[tuple[int, int], ...]:
    """Elements of one token, and the last axis, of each of the two cached tensors."""
    match entry:
        case Heads(count=count, k_dim=k_dim, v_dim=v_dim):
            return ((count * k_dim, k_dim), (count * v_dim, v_dim))
        case Latent(rank=rank, rope_dim=rope_dim):
            return ((rank, rank), (rope_dim, rope_dim))
        case IndexKey(dim=dim):
            return ((dim, dim),)


def _tensor(per_token: int, extra_tokens: int, rules: Rules, packing: Quantization, channels: int | None) -> Bytes:
    def elements(tokens: int) -> int:
        return rules.sequences * (tokens + extra_tokens) * per_token

    residual = 0 if packing.backend == "fp8" else rules.decoded % packing.residual_length
    packed = packed_bytes(elements(rules.tokens - residual), channels, rules.activation, packing)
    loose = rules.activation.bytes(rules.sequences * residual * per_token)
    prefill = packed_bytes(elements(rules.prompt), channels, rules.activation, packing)
    # Each step unpacks the whole layer and concatenates the new token: two full-precision copies.
    return Bytes(packed + loose, packed + loose, prefill, 2 * rules.activation.bytes(elements(rules.tokens)))


def packed_bytes(elements: int, channels: int | None, activation: Format, packing: Quantization) -> int:
    """Bytes of one packed tensor with its scales; with `channels`, groups lie within each channel.

    Raises:
        UnsupportedError: the elements are no whole number of groups, which the backends refuse.
    """
    if packing.backend == "fp8":
        return elements + 4  # one float32 scale a tensor
    groups, rest = divmod(elements, packing.q_group_size)
    if channels is not None and packing.backend == "quanto":
        rest = rest or elements // channels % packing.q_group_size
    if rest:
        raise UnsupportedError(
            f"{elements} elements are no whole number of groups of {packing.q_group_size}",
            hint="Choose a --q-group-size that divides heads x head_dim x tokens.",
        )
    scale_and_zero = 2 * activation.bytes(groups)
    return BACKENDS[packing.backend].pack(groups, packing.q_group_size, packing.nbits) + scale_and_zero
