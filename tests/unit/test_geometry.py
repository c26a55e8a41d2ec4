"""Geometry: values that are right from construction, and the two ways to say which layers are alike."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Read,
    Recurrent,
    Reference,
    Sliding,
    State,
    index_ranges,
)


@pytest.mark.parametrize(
    ("entry", "elements"),
    [
        (Heads(8, 128, 128), 2048),
        (Heads(4, 192, 128), 1280),
        (Heads(1, 4096, 0), 4096),
        (Heads(8, 128, 128, broadcast=128), 2048),  # repeated by some code, stored once by most
        (Latent(512, 64, expanded=Heads(128, 192, 128)), 576),
        (Latent(512, 0, expanded=Heads(128, 128, 128)), 512),
        (IndexKey(128), 128),
        (State("conv", (6144, 4)), 24_576),
        (State("recurrent", (32, 128, 128), "float32"), 524_288),
    ],
)
def test_elements(entry, elements):
    assert entry.elements == elements


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Heads(0, 128, 128), "count must be positive, got 0"),
        (lambda: Heads(8, 0, 128), "k_dim must be positive, got 0"),
        (lambda: Heads(8, 128, -1), "v_dim must not be negative, got -1"),
        (lambda: Heads(8, 128, 128, broadcast=12), "broadcast 12 is no multiple of 8 heads"),
        (lambda: Latent(0, 64, Heads(1, 1, 1)), "rank must be positive, got 0"),
        (lambda: Latent(512, -64, Heads(1, 1, 1)), "rope_dim must not be negative, got -64"),
        (lambda: IndexKey(0), "dim must be positive, got 0"),
        (lambda: Sliding(0), "window must be positive, got 0"),
        (lambda: Chunked(-1), "size must be positive, got -1"),
        (lambda: Reference(0), "window must be positive, got 0"),
        (lambda: State("conv", (4, 0)), "shape[1] must be positive, got 0"),
        (lambda: Compressed(512, 0, 4, overlap=False), "window must be positive, got 0"),
        (lambda: Compressed(512, 128, 0, overlap=False), "rate must be positive, got 0"),
        (lambda: Compressed(512, 128, 4, overlap=True), "index_dim must be positive, got 0"),
        (lambda: Geometry("x", (Layer(shares=0),)), "layer 0 shares layer 0, which is not an earlier one"),
        (lambda: Geometry("x", (Layer(), Layer(shares=2), Layer())), "layer 1 shares layer 2, which is not an"),
        (lambda: Geometry("x", (Layer(), Layer(shares=-1))), "layer 1 shares layer -1, which is not an earlier one"),
    ],
)
def test_a_value_that_means_nothing_cannot_be_built(build, message):
    with pytest.raises(ValueError, match=r"must|multiple|earlier") as caught:
        build()
    assert str(caught.value).startswith(message)


def test_values_that_lie_on_their_bounds():
    assert Heads(1, 1, 0).elements == 1
    assert Compressed(512, 128, 128, overlap=False).index_dim == 0
    assert Geometry("x", (Layer(), Layer(shares=0))).layers[1].shares == 0
    assert Sliding(1).window == Chunked(1).size == 1


def test_values_compare_by_content_and_do_not_change():
    assert Attention(Heads(8, 64, 64)) == Attention(Heads(8, 64, 64), Full())
    assert Attention(Heads(8, 64, 64)) != Attention(Heads(8, 64, 64), Sliding(8))
    with pytest.raises(AttributeError):
        Sliding(8).window = 16


def test_where_a_geometry_was_read_is_no_part_of_it():
    read = Read("$.head_dim", "128", "config")
    assert Geometry("x", (), reads=(read,), notes=("note",)) == Geometry("x", ())


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        ("config", "$.head_dim = 256"),
        ("alias", "$.head_dim = 256 (alias)"),
        ("default", "$.head_dim = 256 (class default)"),
        ("derived", "$.head_dim = 256 (derived)"),
    ],
)
def test_a_read_says_where_it_is_from(origin, text):
    assert str(Read("$.head_dim", "256", origin)) == text


def test_equal_layers_run_together_in_order_of_appearance():
    full, window = Layer((Attention(Heads(8, 64, 64)),)), Layer((Attention(Heads(8, 64, 64), Sliding(8)),))
    states = Layer((Recurrent("mamba", (State("conv", (8, 4)),)),), kind="linear_attention")
    model = Geometry("x", (window, full, window, states, full))
    assert model.runs() == ((window, (0, 2)), (full, (1, 4)), (states, (3,)))
    assert Geometry("x", ()).runs() == ()


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ((), ""),
        ((5,), "5"),
        ((0, 1), "0-1"),
        ((0, 1, 2, 5), "0-2, 5"),
        ((1, 3, 5), "1, 3, 5"),
        ((0, 2, 3, 4, 9, 10), "0, 2-4, 9-10"),
    ],
)
def test_index_ranges(indices, text):
    assert index_ranges(indices) == text


def read_ranges(text: str) -> tuple[int, ...]:
    """The indices that a text of ranges names."""
    parts = [part.split("-") for part in text.split(", ")] if text else []
    return tuple(index for ends in parts for index in range(int(ends[0]), int(ends[-1]) + 1))


@given(st.sets(st.integers(0, 4096), max_size=60).map(lambda found: tuple(sorted(found))))
def test_index_ranges_say_exactly_which(indices):
    assert read_ranges(index_ranges(indices)) == indices


@given(st.sets(st.integers(0, 200), min_size=1, max_size=60).map(lambda found: tuple(sorted(found))))
def test_index_ranges_are_as_short_as_can_be(indices):
    breaks = sum(b - a != 1 for a, b in pairwise(indices))
    assert index_ranges(indices).count(", ") == breaks
