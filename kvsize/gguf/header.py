"""GGUF headers: the metadata and the tensors' names, types and shapes, never the tensors.

The format (ggml docs/gguf.md): "GGUF", version, counts, key-values, tensor infos; then padding and data. All that a
header claims is checked against the file's length before it is believed: nothing is read or kept in advance of that.
The reader is a function, so that a file and a ranged GET read alike.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from kvsize.errors import ConfigError, SourceError
from kvsize.regularfile import at, opened

Read = Callable[[int, int], bytes]  # (start, count) -> bytes, fewer at the end of the file

# Bounds far above any real file (some 1,100 tensors, 50 keys, 262,144 tokens and 515,000 merges at most), and so low
# that a hostile one costs neither memory nor time.
MAX_KEYS = 1 << 12
MAX_TENSORS = 1 << 15
MAX_STRINGS = 1 << 21  # of all arrays together; a vocabulary and its merges are walked, not stored
MAX_KEPT = 1 << 12  # elements of an array that is kept: per-layer lists are shorter
MAX_KEPT_IN_ALL = 1 << 17
MAX_TEXT = 1 << 12  # bytes of a string that is kept: chat templates are not needed
MAX_NAME = 1 << 10
MAX_READ = 1 << 27  # bytes looked at in all
MAX_TENSOR_BYTES = 1 << 50
CHUNK = 1 << 18  # of the first look, and twice as much each time: a header of 16 MB costs seven
MAX_CHUNK = 1 << 23

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Mapping[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    BOOL: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}

# Tensor type -> name, elements of a block, bytes of a block. llama.cpp@b11434 gguf-py/gguf/constants.py
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it. `shape` has the row length first, as ggml does."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says before its data.

    `metadata` holds scalars, short strings and short arrays; `lengths` how many elements each skipped array has.
    """

    version: int
    metadata: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, without the padding between them."""
        return sum(tensor.bytes for tensor in self.tensors)


def read_header(path: Path) -> Header:
    """The header of a file on disk.

    Raises:
        SourceError: it cannot be read, is cut off, or is no GGUF file that this reads.
        ConfigError: what it claims cannot be.
    """
    with opened(path, buffering=0) as file:
        return header(partial(at, file), os.fstat(file.fileno()).st_size, str(path))


def header(read: Read, file_bytes: int, where: str) -> Header:
    """The header of a file of `file_bytes`, asking `read` for it piece by piece and for nothing behind it.

    Raises:
        SourceError: "broken" or "too_large"; ConfigError: a claim that cannot be.
    """
    cursor = _Cursor(read, file_bytes, where)
    version = _version(cursor)
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    cursor.bound("tensors", tensor_count, MAX_TENSORS, least_bytes=24)
    cursor.bound("keys", key_count, MAX_KEYS, least_bytes=12)
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(key_count):
        _pair(cursor, metadata, lengths)
    tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    return Header(version, metadata, lengths, tensors)


def _version(cursor: _Cursor) -> int:
    magic = cursor.take(4)
    if magic != b"GGUF":
        hint = "A GGUF file starts with these four letters. Is the download complete, and no Git LFS pointer?"
        raise SourceError("not a GGUF file", reason="broken", where=cursor.where, got=repr(magic), hint=hint)
    version = cursor.number("<I")
    if version in (2, 3):
        return int(version)
    if version & 0xFFFF == 0:
        hint = "gguf-py's gguf_convert_endian.py turns it round."
        raise SourceError("a big-endian GGUF file", reason="broken", where=cursor.where, hint=hint)
    hint = "It reads versions 2 and 3: convert the model anew."
    what = "a GGUF version that llama.cpp does not read"
    raise SourceError(what, reason="broken", where=cursor.where, got=str(version), hint=hint)


def _pair(cursor: _Cursor, metadata: dict[str, Any], lengths: dict[str, int]) -> None:
    key = cursor.name("key")
    if key in metadata or key in lengths:
        raise ConfigError("the key stands there twice", where=cursor.where, got=repr(key[:80]))
    kind = cursor.number("<I")
    if kind == ARRAY:
        values, count = _array(cursor, key)
        if values is None:
            lengths[key] = count
        else:
            metadata[key] = values
    elif kind == STRING:
        text = cursor.text(MAX_TEXT)
        if text is not None:
            metadata[key] = text
    else:
        metadata[key] = cursor.number(_scalar(cursor, kind, key))


def _scalar(cursor: _Cursor, kind: int, key: str) -> str:
    found = SCALARS.get(kind)
    if found is None:
        raise ConfigError(f"{key[:80]!r} has a value of unknown type", where=cursor.where, got=str(kind))
    return found


def _array(cursor: _Cursor, key: str) -> tuple[list[Any] | None, int]:
    """The elements, or None where there are too many to keep; and how many they are."""
    kind, count = cursor.number("<I"), cursor.number("<Q")
    if kind == ARRAY:
        raise ConfigError(f"{key[:80]!r} is an array of arrays, which llama.cpp does not read", where=cursor.where)
    if kind == STRING:
        cursor.skip_strings(count, key)
        return None, count
    form = _scalar(cursor, kind, key)
    size = count * struct.calcsize(form)
    cursor.ahead(size)
    if count > MAX_KEPT or cursor.kept + count > MAX_KEPT_IN_ALL:
        cursor.at += size
        return None, count
    cursor.kept += count
    return list(struct.unpack(f"<{count}{form[1]}", cursor.take(size))), count


def _tensor(cursor: _Cursor) -> Tensor:
    name, axes = cursor.name("tensor name"), cursor.number("<I")
    if axes > 4:
        raise ConfigError(f"tensor {name[:80]!r} has more than 4 axes", where=cursor.where, got=f"{axes:,}")
    shape = struct.unpack(f"<{axes}Q", cursor.take(8 * axes))
    code, _offset = cursor.number("<I"), cursor.number("<Q")
    found = TENSOR_TYPES.get(code)
    if found is None:
        hint = "A newer llama.cpp's? The config.json of the model it was made from gives the same cache."
        raise ConfigError(f"tensor {name[:80]!r} has an unknown type", where=cursor.where, got=str(code), hint=hint)
    kind, elements, size = found
    rows, rest = divmod(shape[0] if shape else 1, elements)
    total = prod(shape[1:]) * rows * size
    if rest or total > MAX_TENSOR_BYTES:
        raise ConfigError(f"tensor {name[:80]!r} cannot be", where=cursor.where, got=f"{kind} {list(shape)}")
    return Tensor(name, kind, shape, total)


class _Cursor:
    """A place in the file, and a window of bytes around it."""

    def __init__(self, read: Read, file_bytes: int, where: str):
        self.read, self.file_bytes, self.where = read, file_bytes, where
        self.at = self.strings = self.kept = 0
        self._data, self._start, self._looked_at = b"", 0, 0
        self._chunk = CHUNK

    def ahead(self, count: int) -> None:
        """Refuse what would reach beyond the end of the file."""
        if self.at + count > self.file_bytes:
            got = f"{self.file_bytes:,} bytes"
            hint = "Is the download complete? If so, its header claims more than the file holds."
            raise SourceError("the header is cut off", reason="broken", where=self.where, got=got, hint=hint)

    def bound(self, what: str, count: int, most: int, least_bytes: int) -> None:
        """Refuse a count that no file has, or that this one is too short for."""
        if count > most:
            hint = f"Real files have far fewer than {most:,}."
            raise ConfigError(f"too many {what}", where=self.where, got=f"{count:,}", hint=hint)
        self.ahead(count * least_bytes)

    def _window(self, count: int) -> int:
        """Have `count` bytes at hand from here on; returns where in the window they start."""
        self.ahead(count)
        if not self._start <= self.at <= self.at + count <= self._start + len(self._data):
            wanted = min(max(count, self._chunk), self.file_bytes - self.at)
            self._chunk = min(2 * self._chunk, MAX_CHUNK)
            self._looked_at += wanted
            if self._looked_at > MAX_READ:
                raise SourceError(f"a header of more than {MAX_READ:,} bytes", reason="too_large", where=self.where)
            self._data, self._start = self.read(self.at, wanted), self.at
            if len(self._data) < count:
                raise SourceError("the file ends before its header", reason="broken", where=self.where)
        return self.at - self._start

    def take(self, count: int) -> bytes:
        """The next bytes."""
        place = self._window(count)
        self.at += count
        return self._data[place : place + count]

    def number(self, form: str) -> Any:
        """The next number, in struct's notation."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, longest: int) -> str | None:
        """The next string, or None (and past it) where it is longer than is worth keeping."""
        length = self.number("<Q")
        self.ahead(length)
        if length > longest:
            self.at += length
            return None
        return self.take(length).decode("utf-8", "replace")

    def name(self, what: str) -> str:
        """The next string, which must be a short one."""
        text = self.text(MAX_NAME)
        if text is None:
            raise ConfigError(f"a {what} of more than {MAX_NAME:,} bytes", where=self.where)
        return text

    def skip_strings(self, count: int, key: str) -> None:
        """Walk past an array of strings: each one's length says where the next one starts."""
        self.strings += count
        if self.strings > MAX_STRINGS:
            got = f"{count:,} in {key[:80]!r}"
            raise ConfigError("more strings than any vocabulary", where=self.where, got=got)
        self.ahead(8 * count)
        while count:
            place = self._window(8)
            data, last = self._data, len(self._data) - 8
            while count and place <= last:
                place += 8 + int.from_bytes(data[place : place + 8], "little")
                count -= 1
            self.at = self._start + place
            self.ahead(0)
