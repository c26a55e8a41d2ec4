"""Formats: bytes of whole blocks, integers only, and the names that people and files use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.errors import UsageError
from kvsize.formats import ALIASES, FORMATS, Format, canonical, format_of

# ggml-common.h: a block of 32 holds its quants, one half-precision scale, and for q4_1 and q5_1 a minimum too.
SCALE = 2
BITS_OF_HIGH = 4  # q5 keeps the fifth bits apart
BLOCKS = {
    "q8_0": 32 + SCALE,
    "q5_1": 16 + BITS_OF_HIGH + 2 * SCALE,
    "q5_0": 16 + BITS_OF_HIGH + SCALE,
    "q4_1": 16 + 2 * SCALE,
    "q4_0": 16 + SCALE,
    "iq4_nl": 16 + SCALE,
}
PLAIN = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int64": 8}


@pytest.mark.parametrize(("name", "size"), PLAIN.items())
def test_plain_formats(name, size):
    assert FORMATS[name].bytes(1) == size
    assert FORMATS[name].bytes(1_000_003) == 1_000_003 * size


@pytest.mark.parametrize(("name", "size"), BLOCKS.items())
def test_block_formats(name, size):
    assert FORMATS[name].bytes(32) == size
    assert FORMATS[name].bytes(128 * 1024) == 4096 * size


def test_the_tables_name_the_same_formats():
    assert set(FORMATS) == {*PLAIN, *BLOCKS}
    assert all(name == one.name for name, one in FORMATS.items())


@pytest.mark.parametrize("elements", [1, 31, 33, 1000])
def test_a_part_of_a_block_is_refused(elements):
    with pytest.raises(ValueError, match=f"{elements} elements are no whole number of q8_0 blocks of 32"):
        FORMATS["q8_0"].bytes(elements)


@given(one=st.sampled_from(sorted(FORMATS)), blocks=st.integers(0, 10**12), more=st.integers(0, 10**12))
def test_bytes_add_up_and_stay_whole(one, blocks, more):
    unit = FORMATS[one]
    parts = [unit.bytes(n * unit.block_elements) for n in (blocks, more)]
    assert sum(parts) == unit.bytes((blocks + more) * unit.block_elements)
    assert all(type(part) is int for part in parts)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("torch.bfloat16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("half", "float16"),
        ("F32", "float32"),
        ("fp8", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("torch.float8_e5m2", "fp8_e5m2"),
        ("Q8_0", "q8_0"),
        ("float64", "float64"),  # unknown names stay what they are
    ],
)
def test_canonical_names(written, name):
    assert canonical(written) == name
    assert canonical(canonical(written)) == name


def test_every_alias_leads_to_a_format():
    assert {format_of(alias).name for alias in ALIASES} <= set(FORMATS)


@pytest.mark.parametrize("name", ["float64", "", "bf-16", "auto", "int3"])
def test_an_unknown_format_names_the_known_ones(name):
    with pytest.raises(UsageError, match=f"unknown format {name!r}") as caught:
        format_of(name)
    assert caught.value.hint == "Known: " + ", ".join(FORMATS)


def test_a_format_is_a_value():
    assert Format("x", 1, 2) == Format("x", 1, 2)
    with pytest.raises(AttributeError):
        FORMATS["int8"].block_bytes = 0
