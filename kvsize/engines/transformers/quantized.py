"""Quantised caches: packed bytes of quanto, hqq and fp8, with their scales and the unquantised newest tokens.

transformers@5.23.0 cache_utils.py QuantizedLayer and its backends, quanto 0.2 PackedTensor, hqq 0.2 BitPack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvsize.engines.transformers.growing import Bytes, Rules, cached_entry
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format
from kvsize.geometry import Attention, Encoder, Full, Geometry, Heads, IndexKey, Latent, Layer, index_ranges


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a quantised cache packs, under the names of transformers' cache_config."""

    backend: str = "quanto"
    nbits: int = 4
    q_group_size: int = 64
    residual_length: int = 128


def quanto_bytes(groups: int, size: int, nbits: int) -> int:
    """Packed along the groups: 8 // nbits of them share a byte."""
    return -(-groups * nbits // 8) * size


def hqq_bytes(groups: int, size: int, nbits: int) -> int:
    """Packed along the elements of a group; 3-bit values go ten to an int32."""
    if nbits == 3:
        return -(-size // 10) * 4 * groups
    return size * groups * nbits // 8


# backend -> (bits it takes, packed bytes of `groups` groups of `size` elements)
BACKENDS: dict[str, tuple[tuple[int, ...], Callable[[int, int, int], int]]] = {
    "quanto": ((2, 4), quanto_bytes),
    "hqq": ((1, 2, 3, 4, 8), hqq_bytes),
}


def check(geometry: Geometry, quantization: Quantization) -> None:
    """Refuse what QuantizedCache refuses.

    Raises:
        UnsupportedError: a layer is not plain full attention, or the backend does not take these bits.
        UsageError: no such backend.
    """
    refused = [(layer, indices) for layer, indices in geometry.runs() if not _plain(layer)]
    if refused:
        layers = "; ".join(f"layers {index_ranges(indices)} are {layer.kind}" for layer, indices in refused[:3])
        raise UnsupportedError(
            f"QuantizedCache refuses {geometry.model_type}: {layers}",
            hint="Use --cache dynamic or static. vLLM and llama.cpp can: --engine vllm --kv-dtype fp8",
        )
    if quantization.backend == "fp8":
        return
    if quantization.backend not in BACKENDS:
        raise UsageError(f"unknown backend {quantization.backend!r}", hint="Known: quanto, hqq, fp8")
    accepted, _ = BACKENDS[quantization.backend]
    if quantization.nbits not in accepted:
        raise UnsupportedError(f"{quantization.backend} quantises to {accepted} bits", got=str(quantization.nbits))


def _plain(layer: Layer) -> bool:
    return layer.shares is None and all(
        isinstance(store, Attention) and isinstance(store.span, Full) and not isinstance(store.entry, IndexKey)
        for store in layer.stores
    )


def quantized_layer(layer: Layer, rules: Rules, quantization: Quantization) -> Bytes:
    """A layer whose K and V are packed, but for the newest tokens.

    The prefill is packed whole. Decoded tokens gather unpacked until there are `residual_length` of them; then
    everything is unpacked and packed anew.
    """
    total = Bytes(0, 0, 0)
    for store in layer.stores:
        if not isinstance(store, Attention) or isinstance(store.span, Encoder):
            raise UnsupportedError("QuantizedCache takes no encoder-decoder models", hint="Use --cache dynamic.")
        for per_token in _tensors(cached_entry(store.entry, rules.release)):
            extra = store.extra_tokens * per_token
            total += _tensor(per_token, extra, rules, quantization)
    return total


def _tensors(entry: Heads | Latent | IndexKey) -> tuple[int, ...]:
    """Elements of one token in each of the two cached tensors."""
    match entry:
        case Heads():
            return (entry.count * entry.k_dim, entry.count * entry.v_dim)
        case Latent():
            return (entry.rank, entry.rope_dim)
        case IndexKey():
            return (entry.dim,)


def _tensor(per_token: int, extra: int, rules: Rules, quantization: Quantization) -> Bytes:
    residual = 0 if quantization.backend == "fp8" else rules.decoded % quantization.residual_length
    packed = packed_bytes(
        rules.sequences * ((rules.tokens - residual) * per_token + extra), rules.activation, quantization
    )
    loose = rules.activation.bytes(rules.sequences * residual * per_token)
    prefill = packed_bytes(rules.sequences * (rules.prompt * per_token + extra), rules.activation, quantization)
    whole = rules.activation.bytes(rules.sequences * (rules.tokens * per_token + extra))
    return Bytes(packed + loose, packed + loose, prefill, 2 * whole)


def packed_bytes(elements: int, activation: Format, quantization: Quantization) -> int:
    """Bytes of one packed tensor with its scales.

    Raises:
        UnsupportedError: the elements are no whole number of groups, which the backends refuse.
    """
    if quantization.backend == "fp8":
        return elements + 4  # one float32 scale a tensor
    groups, rest = divmod(elements, quantization.q_group_size)
    if rest:
        raise UnsupportedError(
            f"{elements} elements are no whole number of groups of {quantization.q_group_size}",
            hint="Choose a --q-group-size that divides heads x head_dim x tokens.",
        )
    _, pack = BACKENDS[quantization.backend]
    scale_and_zero = 2 * activation.bytes(groups)
    return pack(groups, quantization.q_group_size, quantization.nbits) + scale_and_zero
