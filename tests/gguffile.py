"""GGUF headers for tests: a writer of key-values and tensor infos, and of things that no writer would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


@dataclass(frozen=True)
class Raw:
    """A value of that type code and those bytes, whether they make sense or not."""

    kind: int
    data: bytes


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(of: Any) -> tuple[int, bytes]:
    """The type code and bytes of a value."""
    match of:
        case Raw(kind=kind, data=data):
            return kind, data
        case bool():
            return BOOL, struct.pack("<?", of)
        case int() if of < 0:
            return I32, struct.pack("<i", of)
        case int() if of < 1 << 32:
            return U32, struct.pack("<I", of)
        case int():
            return U64, struct.pack("<Q", of)
        case float():
            return F32, struct.pack("<f", of)
        case str():
            return STRING, text(of)
        case _:
            items = [value(item) for item in of]
            kind = items[0][0] if items else U32
            return ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)


def pair(key: str, of: Any) -> bytes:
    kind, data = value(of)
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: str, shape: Sequence[int], code: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


def gguf(
    metadata: Mapping[str, Any] | Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    keys: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A header; `keys` and `tensor_count` may lie."""
    pairs = [pair(*item) for item in metadata.items()] if isinstance(metadata, Mapping) else list(metadata)
    counts = (len(tensors) if tensor_count is None else tensor_count, len(pairs) if keys is None else keys)
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join((*pairs, *tensors))


def metadata(arch: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of one architecture under their full names."""
    return {"general.architecture": arch, **{f"{arch}.{key}": of for key, of in keys.items()}}


LLAMA = metadata(
    "llama",
    {
        "block_count": 4,
        "context_length": 8192,
        "embedding_length": 256,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    },
)
