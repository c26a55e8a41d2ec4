"""Sizes as people write them: what is read to the last token and byte, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.cli.options import MAX_TOKENS, complete_model, parse_bytes, parse_token_list, parse_tokens
from kvsize.errors import UsageError


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("4096", 4096),
        ("32k", 32_768),
        ("128K", 131_072),
        ("1m", 1_048_576),
        ("1M", 1_048_576),
        ("131_072", 131_072),
        (" 8k ", 8192),
        (str(MAX_TOKENS), 2**40),
        ("1048576m", 2**40),
    ],
)
def test_tokens(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "k", "1.5k", "32kb", "4 096", "1e3", "0x10", "٣", "1048577m", str(2**40 + 1), "9" * 14, "8k8"],
)
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(UsageError, match="--prompt takes a number of tokens") as caught:
        parse_tokens(text, "--prompt")
    assert caught.value.got == text


@given(st.integers(1, MAX_TOKENS))
def test_tokens_round_trip(tokens):
    assert parse_tokens(str(tokens)) == parse_tokens(f"{tokens:_}") == tokens


@given(st.integers(1, 2**20), st.sampled_from(("k", "K", "m", "M")))
def test_suffixes_are_powers_of_two(count, suffix):
    assert parse_tokens(f"{count}{suffix}") == count * 1024 ** " km".index(suffix.lower())


def test_a_list_of_tokens():
    assert parse_token_list("8k") == [8192]
    assert parse_token_list("8k,32k, 128k,") == [8192, 32_768, 131_072]
    assert parse_token_list(",".join(["1"] * 1000)) == [1] * 1000


@pytest.mark.parametrize("text", ["", ",", " , ", "8k;32k", "8k,x", ",".join(["1"] * 1001)])
def test_what_is_no_list(text):
    with pytest.raises(UsageError, match="--ctx takes"):
        parse_token_list(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64424509440", 64_424_509_440),
        ("60GiB", 60 * 2**30),
        ("60gib", 60 * 2**30),
        ("60Gi", 60 * 2**30),
        ("60GB", 60 * 10**9),
        ("60G", 60 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("512MiB", 2**29),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("100 B", 100),
        ("64,424,509,440", 64_424_509_440),
        ("1_000_000", 1_000_000),
        ("0", 0),
        ("0.3KiB", 307),  # a part of a byte is dropped
        ("1.001GB", 1_001_000_000),  # 1,000,999,999 when it passed through a float
    ],
)
def test_bytes(text, size):
    assert parse_bytes(text, "--kv-memory") == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GB", "1e9", "60,5GB", "60iB", ".5GB", "5.GB", "1PiB", "1 000", "٣GB", "9" * 41, "nan", "1,00"],
)
def test_what_is_no_number_of_bytes(text):
    """60,5GB was read as 605 GB: a comma stands between thousands, or not at all."""
    with pytest.raises(UsageError, match="--kv-memory takes bytes such as 60GiB"):
        parse_bytes(text, "--kv-memory")


@given(st.integers(0, 10**24))
def test_bytes_round_trip(size):
    assert parse_bytes(str(size), "x") == parse_bytes(f"{size:,}", "x") == parse_bytes(f"{size:_}B", "x") == size


@given(st.integers(0, 10**6), st.integers(0, 10**9 - 1), st.sampled_from("kmgt"), st.booleans())
def test_decimals_are_exact(whole, billionths, letter, binary):
    text = f"{whole}.{billionths:09}{letter}{'i' if binary else ''}B"
    unit = (1024 if binary else 1000) ** " kmgt".index(letter)
    exact = (Decimal(whole) + Decimal(billionths).scaleb(-9)) * unit
    assert parse_bytes(text, "x") == int(exact)


def test_completion_offers_models_whatever_their_case():
    assert "meta-llama/Llama-3.1-8B" in complete_model("META-llama/llama-3.1")
    assert complete_model("nothing starts like this") == []
