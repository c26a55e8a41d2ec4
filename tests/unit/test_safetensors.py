"""Headers of safetensors files: what is read, how little of it, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize.errors import SourceError
from kvsize.weights.safetensors import DTYPE_BITS, FIRST_BYTES, MAX_HEADER_BYTES, Tensor, header, read_header

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from safetensorsfile import encoded, entry

GOOD = {
    "__metadata__": {"format": "pt"},
    "b": entry("F32", [2], 24, 32),
    "a": entry("BF16", [3, 4], 0, 24),
    "c": entry("F8_E4M3", [], 32, 33),
}


def of(file: bytes) -> tuple[Tensor, ...]:
    return header(lambda start, count: file[start : start + count], len(file), "x.safetensors")


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded(GOOD))
    tensors = read_header(path)
    assert [(t.name, t.dtype, t.shape, t.bytes, t.elements) for t in tensors] == [
        ("b", "F32", (2,), 8, 2),
        ("a", "BF16", (3, 4), 24, 12),
        ("c", "F8_E4M3", (), 1, 1),
    ]


def test_four_bits_and_formats_to_come() -> None:
    (packed, new) = of(encoded({"a": entry("F4", [2, 3], 0, 3), "b": entry("F3_X", [5], 3, 10)}))
    assert (packed.bytes, packed.elements, new.bytes) == (3, 6, 7)
    assert DTYPE_BITS["F6_E2M3"] == 6


def test_the_header_alone_is_read() -> None:
    asked: list[tuple[int, int]] = []
    names = {f"layer.{i}.weight": entry("BF16", [4], 8 * i, 8 * i + 8) for i in range(5000)}
    file = encoded(names, data=5000 * 8)
    text = int.from_bytes(file[:8], "little")
    assert text > FIRST_BYTES

    def read(start: int, count: int) -> bytes:
        asked.append((start, count))
        return file[start : start + count]

    assert len(header(read, len(file), "x")) == 5000
    assert asked == [(0, FIRST_BYTES), (FIRST_BYTES, 8 + text - FIRST_BYTES)]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "too short"),
        (b"version", "too short"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(64), "more than 100,000,000 bytes (got 100,000,001)"),
        (b"\xff" * 64, "more than 100,000,000 bytes"),
        ((65).to_bytes(8, "little") + bytes(64), "longer than the file"),
        (encoded(b"{"), "is not JSON"),
        (encoded(b"[1]", 0), "no JSON object"),
        (encoded(b'{"a":' + b"[" * 100_000 + b"}", 0), "not JSON|nested too deep"),
        (encoded({"a": entry("BF16", [3], 0, 8)}), "does not fill its bytes"),
        (encoded({"a": entry("BF16", [4], 2, 10)}), "overlap or leave gaps"),
        (encoded({"a": entry("BF16", [4], 0, 8), "b": entry("BF16", [4], 4, 12)}), "overlap or leave gaps"),
        (encoded(GOOD, 20), "not as long as its header says"),
        (encoded(GOOD, 40), "not as long as its header says"),
        (encoded({"a": entry("BF16", [-4, -1], 0, 8)}), "makes no sense"),
        (encoded({"a": entry("BF16", [4], 8, 0)}, 8), "makes no sense"),
        (encoded({"a": entry("BF16", [True] * 4, 0, 2)}), "makes no sense"),
        (encoded({"a": {"dtype": "BF16"}}, 0), "makes no sense"),
        (encoded({"a": 3}, 0), "makes no sense"),
        (encoded({"a": entry("BF16", [1] * 17, 0, 2)}), "makes no sense"),
        (encoded({"a": {"dtype": 7, "shape": [1], "data_offsets": [0, 2]}}, 2), "makes no sense"),
    ],
)
def test_what_is_refused(file: bytes, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        of(file)
    assert caught.value.reason in {"broken", "not_json"}
    assert any(word in str(caught.value) for word in words.split("|"))


def test_a_reader_that_ends_early() -> None:
    file = encoded(GOOD)
    with pytest.raises(SourceError, match="the header is cut off"):
        header(lambda start, count: file[start : start + min(count, 20)], len(file), "x")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_header(tmp_path / "none.safetensors")
    with pytest.raises(SourceError, match=r"not a regular file|cannot be read"):
        read_header(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_noise_is_refused_or_read(noise: bytes, size: int) -> None:
    file = size.to_bytes(8, "little") + noise
    try:
        tensors = of(file)
    except SourceError:
        return
    assert sum(tensor.bytes for tensor in tensors) == len(file) - 8 - size
