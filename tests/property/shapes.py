"""Geometries out of nowhere: every store, every span, any order; small numbers, so that boundaries are met often."""

from __future__ import annotations

from hypothesis import strategies as st

from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    State,
)

small = st.integers(1, 64)
tokens = st.integers(1, 300)
sequences = st.integers(1, 5)
windows = st.integers(1, 320)
plain_formats = st.sampled_from(("float32", "float16", "bfloat16", "fp8_e4m3"))

heads = st.builds(Heads, small, small, st.integers(0, 64))
latents = st.builds(Latent, small, st.integers(0, 16), heads)
entries = st.one_of(heads, latents, st.builds(IndexKey, small))
spans = st.one_of(
    st.just(Full()),
    st.builds(Sliding, windows),
    st.builds(Chunked, windows),
    st.builds(Reference, windows),
    st.builds(Encoder, st.booleans()),
)
formats = st.sampled_from((None, "float32", "int64"))
attentions = st.one_of(
    st.builds(Attention, entries, spans, formats),
    st.builds(Attention, heads, st.just(Full()), formats, extra_tokens=st.just(32)),  # CPM-Ant's prompt
)
states = st.builds(
    State, st.sampled_from(("conv", "recurrent")), st.tuples(small, small), st.sampled_from((None, "float32"))
)
recurrents = st.builds(
    Recurrent, st.sampled_from(("mamba", "mamba2", "gated_delta", "rwkv")), st.tuples(states, states)
)
compressed = st.builds(Compressed, small, windows, st.sampled_from((4, 128)), st.booleans(), st.integers(1, 32))


def layers_of(*stores: st.SearchStrategy) -> st.SearchStrategy[Layer]:
    """Layers that keep up to three of these stores."""
    return st.builds(Layer, st.lists(st.one_of(*stores), max_size=3).map(tuple))


def geometries(*stores: st.SearchStrategy) -> st.SearchStrategy[Geometry]:
    """Models of up to five such layers; the last may read the cache of the first."""
    some = st.lists(layers_of(*stores), min_size=1, max_size=5)
    shared = st.builds(lambda layers: (*layers, Layer(layers[0].stores, shares=0)), some)
    return st.one_of(some.map(tuple), shared).map(lambda layers: Geometry("shape", layers, dtype="bfloat16"))
