"""vLLM's KV cache formats: bytes of one token, as a table.

vllm@0.33.0 v1/attention/backends/*.py customize_spec; turboquant/config.py slot_size_aligned; mla_attention.py
get_kv_cache_spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvsize.engines.vllm.models import ENCODER_ONLY
from kvsize.errors import UnsupportedError
from kvsize.formats import canonical
from kvsize.geometry import Geometry

# Major compute capabilities: no rule here looks at the minor one.
HOPPER = 9
BLACKWELL = 10

# One token of one KV head, from the widths of K and V. One token of a latent, from its width.
OfHead: TypeAlias = Callable[[int, int], int]
OfLatent: TypeAlias = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class KvFormat:
    """A `--kv-cache-dtype`: bytes of one token for each kind of entry; None where vLLM has no kernel for it.

    `latent` is dense MLA, `indexed` the latent of a model with a sparse-attention indexer. `blackwell`: needs
    compute capability 10. `packed`: TurboQuant, which keeps the outermost layers in the model's dtype.
    """

    name: str
    head: OfHead | None
    latent: OfLatent | None = None
    indexed: OfLatent | None = None
    blackwell: bool = False
    packed: bool = False
    symmetric: bool = False


def _width(size: int) -> OfHead:
    return lambda k, v: size * (k + v)


def _vector(size: int) -> OfLatent:
    return lambda width: size * width


def _record(size: int) -> OfLatent:
    return lambda _width: size


def _scaled(per_element: int) -> OfHead:
    """K and V rows, each with its own float32 scale; `per_element` elements in a byte."""
    return lambda k, v: k // per_element + v // per_element + 8


def _nvfp4(k: int, v: int) -> int:
    """fp4 pairs, and an fp8 scale for each 16 elements."""
    return (k // 2 + k // 16) + (v // 2 + v // 16)


def _turboquant(k_bits: int, v_bits: int) -> OfHead:
    """K: codes and a 2-byte norm, or plain fp8; V: codes, a 2-byte scale and a 2-byte zero point; even in total."""

    def packed(k: int, v: int) -> int:
        key = k if k_bits == 8 else -(-k * k_bits // 8) + 2
        total = key - (-v * v_bits // 8) + 4
        return total + total % 2

    return packed


def _turbo(name: str, k_bits: int, v_bits: int) -> KvFormat:
    return KvFormat(name, _turboquant(k_bits, v_bits), packed=True, symmetric=True)


KV_FORMATS: Mapping[str, KvFormat] = {
    entry.name: entry
    for entry in (
        KvFormat("bfloat16", _width(2), _vector(2), _vector(2)),
        KvFormat("float16", _width(2), _vector(2), _vector(2)),
        KvFormat("fp8", _width(1), _vector(1), _vector(1)),
        KvFormat("fp8_e4m3", _width(1), _vector(1), _vector(1)),
        KvFormat("fp8_e5m2", _width(1)),
        KvFormat("int8_per_token_head", _scaled(1)),
        KvFormat("fp8_per_token_head", _scaled(1)),
        KvFormat("int4_per_token_head", _scaled(2)),
        KvFormat("nvfp4", _nvfp4, blackwell=True, symmetric=True),
        KvFormat("nvfp4_4over6", _nvfp4, blackwell=True, symmetric=True),
        _turbo("turboquant_k8v4", 8, 4),
        _turbo("turboquant_4bit_nc", 4, 4),
        _turbo("turboquant_k3v4_nc", 3, 4),
        _turbo("turboquant_3bit_nc", 3, 3),
        KvFormat("fp8_ds_mla", None, indexed=_record(656)),  # 512 fp8, 4 float32 scales, 64 bfloat16 of rope
        KvFormat("nvfp4_ds_mla", None, indexed=_record(352), blackwell=True),
    )
}
# Formats of other hardware (ROCm, Gaudi), whose kernels this table does not describe.
ELSEWHERE = ("fp8_inc", "octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit")
INDEX_SCALE_GROUP = 128  # models/deepseek_v2.py quant_block_size: an index key is fp8 with a float32 scale for each 128


def index_key_bytes(dim: int) -> int:
    """One token's index key, whatever the cache's format."""
    return dim + 4 * (dim // INDEX_SCALE_GROUP)


def model_dtype(geometry: Geometry) -> str:
    """What vLLM's `--dtype auto` computes in: 16 bits where the checkpoint has or names more, or nothing."""
    if geometry.dtype in ("float16", "bfloat16"):
        return geometry.dtype
    return "float16" if geometry.model_type in ENCODER_ONLY else "bfloat16"


def capability(text: str | None, kv_format: str) -> int:
    """The GPU's major compute capability: as given, else Hopper's, else the first that can run the format.

    Raises:
        UnsupportedError: no number such as 9.0.
    """
    if text is None:
        entry = KV_FORMATS.get(kv_format)
        return BLACKWELL if entry and entry.blackwell else HOPPER
    major, dot, minor = text.partition(".")
    if not (major.isdecimal() and len(major) <= 3 and (not dot or (minor.isdecimal() and len(minor) <= 3))):
        raise UnsupportedError(
            "--device-capability takes an NVIDIA compute capability", got=text[:20], hint="H100: 9.0, B200: 10.0."
        )
    return int(major)


def name_of(text: str) -> str:
    """vLLM's name of a format; bf16 and fp16 are understood."""
    lowered = text.lower()
    return canonical(lowered) if canonical(lowered) in ("bfloat16", "float16", "float32") else lowered


def find(name: str, device: int) -> KvFormat:
    """The format of that name.

    Raises:
        UnsupportedError: vLLM on CUDA has no such format, or not on this GPU.
    """
    if name in ELSEWHERE:
        raise UnsupportedError(f"vLLM has no CUDA kernel for a {name} cache", hint="It is for other hardware.")
    found = KV_FORMATS.get(name)
    if found is None:
        raise UnsupportedError(
            "vLLM does not know this --kv-cache-dtype", got=name[:40], hint="Known: auto, " + ", ".join(KV_FORMATS)
        )
    if found.blackwell and device != BLACKWELL:
        raise UnsupportedError(f"vLLM's {name} cache needs compute capability 10.x", got=f"{device}.x", hint="Use fp8.")
    return found
