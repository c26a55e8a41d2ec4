"""What must hold for any model and any request, whatever the numbers are."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).parent))  # the suite has no packages

import hostile
import shapes
from inprocess import kvsize

from kvsize.architectures import geometry
from kvsize.documents import SizeDoc, to_dict
from kvsize.engines import CacheSize, Workload, load_engine
from kvsize.engines import transformers as engine
from kvsize.errors import KvsizeError, UnsupportedError
from kvsize.geometry import Attention, Chunked, Full, Geometry, Heads, Layer, Reference, Sliding

LINEAR = ("dynamic", "static", "offloaded", "offloaded_static")
anything = shapes.geometries(shapes.attentions, shapes.recurrents)
with_compressed = shapes.geometries(shapes.attentions, shapes.recurrents, shapes.compressed)
square = st.builds(lambda count, width: Attention(Heads(count, width, width)), shapes.small, shapes.small)
grouped = st.builds(lambda count, width: Attention(Heads(count, 64 * width, 64)), shapes.small, st.integers(1, 3))


def uniform(store: st.SearchStrategy) -> st.SearchStrategy[Geometry]:
    """Models whose layers are all alike."""
    return st.builds(lambda one, count: Geometry("shape", (Layer((one,)),) * count), store, st.integers(1, 5))


FIGURES = ("total_bytes", "logical_bytes", "after_prefill_bytes", "peak_bytes")


def sized(model: Geometry, tokens: int, sequences: int = 1, encoder: int | None = 7, **options: object) -> CacheSize:
    workload = Workload(tokens, sequences, "bfloat16", "bfloat16", encoder)
    return engine.size(model, workload, engine.Options(**options))


def figures(size: CacheSize) -> tuple[int, ...]:
    return tuple(getattr(size, name) for name in FIGURES)


# -- transformers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", LINEAR)
@given(model=anything, tokens=shapes.tokens, more=st.integers(1, 300), sequences=shapes.sequences)
def test_more_tokens_never_take_less(cache, model, tokens, more, sequences):
    less = figures(answer_or_skip(model, tokens, sequences, cache))
    greater = figures(answer_or_skip(model, tokens + more, sequences, cache))
    assert all(a <= b for a, b in zip(less, greater, strict=True))


@given(model=with_compressed, steps=st.integers(1, 5), more=st.integers(1, 5))
def test_compressed_attention_grows_from_one_full_block_to_the_next(model, steps, more):
    """Between them it shrinks: at the end of a block, buffered tokens become one entry."""
    rate = 128  # a multiple of 4, the other rate
    before, after = sized(model, steps * rate), sized(model, (steps + more) * rate)
    assert all(a <= b for a, b in zip(figures(before), figures(after), strict=True))


@pytest.mark.parametrize("cache", LINEAR)
@given(model=anything, tokens=shapes.tokens, sequences=shapes.sequences)
def test_a_batch_takes_as_much_as_its_sequences_apart(cache, model, tokens, sequences):
    one, batch = (figures(answer_or_skip(model, tokens, n, cache)) for n in (1, sequences))
    assert batch == tuple(sequences * figure for figure in one)


def answer_or_skip(model: Geometry, tokens: int, sequences: int, cache: str) -> CacheSize:
    try:
        return sized(model, tokens, sequences, cache=cache)
    except UnsupportedError:  # offloaded_static refuses stores that a static cache has no layer for
        assume(False)
        raise


@given(model=with_compressed, tokens=shapes.tokens, sequences=shapes.sequences)
def test_what_is_shown_is_held_and_the_prefill_held_no_less(model, tokens, sequences):
    for layer in sized(model, tokens, sequences).layers:
        assert 0 <= layer.logical <= layer.held <= layer.after_prefill


@given(model=anything, tokens=shapes.tokens, beyond=st.integers(1, 100))
def test_a_window_beyond_the_request_changes_nothing(model, tokens, beyond):
    window = tokens + beyond + 32  # CPM-Ant's prompt
    full, sliding, chunked = (
        sized(respanned(model, span), tokens) for span in (Full(), Sliding(window), Chunked(window))
    )
    assert full.layers == sliding.layers == chunked.layers
    assert full.peak_bytes == sliding.peak_bytes == chunked.peak_bytes


def respanned(model: Geometry, span: Full | Sliding | Chunked) -> Geometry:
    """The same model with another span wherever a store keeps the request's own tokens."""

    def change(layer: Layer) -> Layer:
        stores = (
            replace(store, span=span)
            if isinstance(store, Attention) and isinstance(store.span, Full | Sliding | Chunked | Reference)
            else store
            for store in layer.stores
        )
        return replace(layer, stores=tuple(stores))

    return replace(model, layers=tuple(change(layer) for layer in model.layers))


@given(model=anything, tokens=shapes.tokens)
def test_a_static_cache_of_the_requests_length_holds_what_full_attention_does(model, tokens):
    window = tokens + 32
    static = sized(respanned(model, Sliding(window)), tokens, cache="static")
    dynamic = sized(respanned(model, Full()), tokens)
    assert static.total_bytes == dynamic.total_bytes
    assert static.logical_bytes == dynamic.logical_bytes


@given(model=anything, tokens=shapes.tokens, window=shapes.windows)
def test_a_static_window_holds_no_more_than_a_dynamic_one(model, tokens, window):
    narrow = respanned(model, Sliding(window))
    assert sized(narrow, tokens, cache="static").total_bytes <= sized(narrow, tokens).total_bytes


@given(model=anything, tokens=shapes.tokens)
def test_offloading_moves_bytes_and_makes_none(model, tokens):
    """It may lose some: a window's view leaves the storage behind it when it is copied to the host."""
    for kept, moved in (("dynamic", "offloaded"), ("static", "offloaded_static")):
        offloaded, stays = answer_or_skip(model, tokens, 1, moved), sized(model, tokens, cache=kept)
        assert stays.logical_bytes == offloaded.logical_bytes <= offloaded.total_bytes <= stays.total_bytes
        assert 0 <= offloaded.host_bytes <= offloaded.total_bytes


@given(model=uniform(grouped), blocks=st.integers(1, 6), more=st.integers(0, 4), sequences=shapes.sequences)
def test_a_quantised_cache_grows_with_each_repacking(model, blocks, more, sequences):
    """Between two repackings it shrinks: the newest tokens are kept in full precision until there are 128."""
    few, many = (sized(model, 1 + 128 * n, sequences, cache="quantized").total_bytes for n in (blocks, blocks + more))
    assert few <= many < sized(model, 1 + 128 * (blocks + more), sequences).total_bytes


@given(model=uniform(square), tokens=shapes.tokens, more=st.integers(0, 600), page=st.sampled_from((1, 16, 256)))
def test_pages_grow_with_tokens_and_hold_at_least_the_elements(model, tokens, more, page):
    few, many = (sized(model, n, cache="paged", page_size=page).total_bytes for n in (tokens, tokens + more))
    assert sized(model, tokens).logical_bytes <= few <= many


@given(model=anything, tokens=shapes.tokens, beams=st.integers(1, 4), answers=st.integers(1, 4))
def test_beams_and_answers_are_sequences(model, tokens, beams, answers):
    both = sized(model, tokens, num_beams=beams, num_return_sequences=answers)
    assert figures(both) == figures(sized(model, tokens, max(beams, answers)))


# -- every engine, on real models --------------------------------------------------------------------------------------

real = st.sampled_from(range(len(hostile.corpus())))


def real_model(index: int) -> Geometry:
    try:
        return geometry(hostile.corpus()[index])
    except KvsizeError:
        assume(False)
        raise


def by_engine(way: hostile.Way, model: Geometry, tokens: int, sequences: int) -> CacheSize:
    size = hostile.sized(model, way, tokens, sequences)
    assume(not isinstance(size, KvsizeError))
    return size


WAYS = hostile.ways()


def plain_ways() -> list[hostile.Way]:
    """Those without a law of their own above."""
    return [way for way in WAYS if ("cache", "quantized") not in way.settings]


@pytest.mark.parametrize("way", plain_ways(), ids=str)
@given(index=real, tokens=st.integers(1, 200_000), more=st.integers(1, 200_000), sequences=shapes.sequences)
def test_every_engine_grows_with_tokens_and_sequences(way, index, tokens, more, sequences):
    model = real_model(index)
    assume(not any(type(store).__name__ == "Compressed" for layer in model.layers for store in layer.stores))
    size = by_engine(way, model, tokens, sequences)
    assert size.total_bytes <= by_engine(way, model, tokens + more, sequences).total_bytes
    assert size.total_bytes <= by_engine(way, model, tokens, sequences + 1).total_bytes


@pytest.mark.parametrize("way", WAYS, ids=str)
@given(index=real, tokens=st.integers(1, 200_000), more=st.integers(0, 200_000), sequences=shapes.sequences)
def test_documents_survive_json_and_their_totals_are_sums(way, index, tokens, more, sequences):
    text = document(way, index, f"{tokens},{tokens + more}", sequences)
    again = json.loads(text)
    assert to_dict(TypeAdapter(SizeDoc).validate_json(text, strict=True)) == again
    assert json.dumps(again, ensure_ascii=False) + "\n" == text
    assert [row["ctx"] for row in again["rows"]] == [tokens, tokens + more]
    assert again["cache"] == again["rows"][0]["cache"]
    sums_hold(again)


def document(way: hostile.Way, index: int, ctx: str, sequences: int) -> str:
    arguments = ["-", "--ctx", ctx, "--batch", str(sequences), "--json", *way.arguments]
    done = kvsize(arguments, json.dumps(hostile.corpus()[index]).encode())
    assert done.code in (0, 4, 5)
    assume(done.code == 0)
    return done.out


def sums_hold(size: dict) -> None:
    cache, overheads = size["cache"], sum(part["bytes"] for part in size["overheads"])
    parts = {"total_bytes": "bytes", "logical_bytes": "logical_bytes", "after_prefill_bytes": "after_prefill_bytes"}
    for total, part in parts.items():
        assert cache[total] == sum(layer[part] for layer in size["layers"]) + overheads
    assert cache["host_bytes"] == sum(layer["host_bytes"] for layer in size["layers"])
    for row in size["rows"]:
        one = row["cache"]
        assert one["total_bytes"] == one["fixed_bytes"] + one["marginal_bytes_per_token"] * row["ctx"]
        assert one["peak_bytes"] >= max(one["total_bytes"], one["after_prefill_bytes"]) >= one["host_bytes"] >= 0
    indices = sorted(index for layer in size["layers"] for index in layer["indices"])
    assert indices == list(range(size["model"]["num_layers"]))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_engines_answer_a_plain_model(way):
    """So that the laws above cannot hold for want of answers."""
    llama = geometry(json.loads((hostile.ROOT / "configs/models/meta-llama--Llama-3.1-8B.json").read_text())["config"])
    size = load_engine(way.engine).size(llama, Workload(32_768), way.options)
    assert size.total_bytes >= 2**30
