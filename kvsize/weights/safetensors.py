"""Headers of safetensors files: the tensors' names, shapes and bytes, never the tensors.

The format: 8 bytes, little-endian, say how long the header is; the header is one JSON object, name -> dtype, shape and
data_offsets; then the data, without gaps. The reader is a function, so that a file and a ranged GET read alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from kvsize.errors import SourceError
from kvsize.regularfile import at, opened

MAX_HEADER_BYTES = 100_000_000  # the format's own bound: safetensors@0.5.3 src/tensor.rs MAX_HEADER_SIZE
FIRST_BYTES = 1 << 17  # one read brings most headers; those of DeepSeek-V3's shards are 73 kB each

# Bits of an element, safetensors@0.6.2 src/tensor.rs Dtype.
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}

Read = Callable[[int, int], bytes]  # (start, count) -> bytes, fewer at the end of the file


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor. `dtype` is as the format spells it: BF16, F8_E4M3 …"""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Stored elements: two of four bits that share a byte of U8 count as one."""
        return prod(self.shape)


def read_header(path: Path) -> tuple[Tensor, ...]:
    """The tensors of a file on disk.

    Raises:
        SourceError: it cannot be read, is no safetensors file, is cut off, or claims what cannot be.
    """
    with opened(path) as file:
        return header(partial(at, file), os.fstat(file.fileno()).st_size, str(path))


def header(read: Read, file_bytes: int, where: str) -> tuple[Tensor, ...]:
    """The tensors of a file of `file_bytes`, asking `read` once or twice, and for its header only.

    Raises:
        SourceError: "broken" or "not_json", each fault named.
    """
    first = read(0, min(FIRST_BYTES, file_bytes))
    if len(first) < 8:
        raise _broken("too short for a safetensors file", where, got=f"{len(first)} bytes")
    size = int.from_bytes(first[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise _broken(f"a header of more than {MAX_HEADER_BYTES:,} bytes", where, got=f"{size:,}")
    if 8 + size > file_bytes:
        raise _broken("the header is longer than the file", where, got=f"{size:,} of {file_bytes:,} bytes")
    text = first[8 : 8 + size]
    if len(text) < size:
        text += read(len(first), size - len(text))
    if len(text) < size:
        raise _broken("the header is cut off", where, got=f"{len(text):,} of {size:,} bytes")
    return _tensors(json_object(text, where), file_bytes - 8 - size, where)


def _broken(what: str, where: str, got: str | None = None) -> SourceError:
    hint = "Is the download complete, and is it a safetensors file?"
    return SourceError(what, reason="broken", where=where, got=got, hint=hint)


def json_object(text: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object of a header or an index, which may be far larger than a config.

    Raises:
        SourceError: "not_json".
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "is nested too deep" if isinstance(error, RecursionError) else "is not JSON"
        raise SourceError(f"its list of tensors {kind}", reason="not_json", where=where) from None
    if not isinstance(value, dict):
        raise SourceError("its list of tensors is no JSON object", reason="not_json", where=where)
    return value


def _tensors(entries: Mapping[str, Any], data_bytes: int, where: str) -> tuple[Tensor, ...]:
    """Each tensor, after checking that together they are the file's data, without gap or overlap."""
    spans, tensors = [], []
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        tensor, start = _tensor(name, entry, where)
        tensors.append(tensor)
        spans.append((start, start + tensor.bytes))
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise _broken("tensors that overlap or leave gaps", where, got=f"byte {start:,} after {end:,}")
        end = stop
    if end != data_bytes:
        raise _broken("the file is not as long as its header says", where, got=f"{data_bytes:,} of {end:,} bytes")
    return tuple(tensors)


def _tensor(name: str, entry: Any, where: str) -> tuple[Tensor, int]:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [start, end, *shape]
        good = isinstance(dtype, str) and all(type(number) is int and 0 <= number < 2**63 for number in numbers)
    except (TypeError, KeyError, ValueError):
        good = False
    if not good or end < start or len(shape) > 16:
        raise _broken(f"an entry that makes no sense: {name!r:.80}", where, got=f"{entry!r:.80}")
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and prod(shape) * bits != 8 * (end - start):
        raise _broken(f"{name!r:.80} does not fill its bytes", where, got=f"{dtype} {shape!r:.40} in {end - start:,}")
    return Tensor(name, dtype, tuple(shape), end - start), start
