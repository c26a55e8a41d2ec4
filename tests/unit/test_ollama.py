"""Ollama: what it makes of its settings before llama.cpp sees them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from gguffile import metadata

from kvsize.architectures import geometry
from kvsize.engines import CacheSize, Workload, engine_options, ollama
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import Geometry

KEYS = {
    "block_count": 4,
    "context_length": 8192,
    "embedding_length": 256,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}
CELL = 4 * 2 * 2 * 32 * 2  # bytes: layers, K and V, heads, width, float16


def model(arch: str = "llama", **keys: object) -> Geometry:
    """A small model; keys with __ for the dot."""
    return geometry(metadata(arch, {**KEYS, **{key.replace("__", "."): of for key, of in keys.items()}}))


def of_ollama(found: Geometry, tokens: int = 4096, sequences: int = 1, **settings: object) -> CacheSize:
    return ollama.size(found, Workload(tokens, sequences), ollama.Options(**settings))


def test_ollama_gives_each_request_a_stream_of_num_ctx():
    size = of_ollama(model(), 4000, 3)
    assert size.total_bytes == 3 * 4096 * 4 * 256
    assert (size.engine, size.version, size.evidence) == ("ollama", "2026-08-21", "derived")
    assert of_ollama(model(), 4000, 3, n_parallel=2, n_ctx=2048).total_bytes == 2 * 2048 * 4 * 256


def test_ollama_never_goes_beyond_the_training_context():
    size = of_ollama(model(), 100_000)
    assert size.total_bytes == 8192 * 4 * 256
    assert any("cuts num_ctx to the 8,192 tokens" in note for note in size.notes)


def test_ollamas_batches_widen_windows():
    found = model("gemma3", context_length=131_072, attention__sliding_window=512)
    cells = {tokens: of_ollama(found, tokens).total_bytes // (4 * 256) for tokens in (4096, 8192, 65_536)}
    assert cells == {4096: 1024, 8192: 1536, 65_536: 2560}
    assert of_ollama(found, 65_536, n_ubatch=512).total_bytes == 1024 * 4 * 256


@pytest.mark.parametrize(("tokens", "step"), [(4096, -256), (4352, 256), (32_768, -256), (32_600, -256), (40_000, 256)])
def test_the_slope_is_taken_on_this_side_of_a_jump(tokens, step):
    found = model("gemma3", context_length=131_072, block_count=6, attention__sliding_window=512)
    size = of_ollama(found, tokens)
    assert size.step_tokens == step
    near = of_ollama(found, tokens + step)
    assert (near.total_bytes - size.total_bytes) // step == 256  # one full layer of two heads of 32, K and V


def test_ollama_serves_some_models_one_at_a_time():
    size = of_ollama(model("lfm2", shortconv__l_cache=3), 4096, 4)
    assert size.total_bytes == 4096 * 4 * 256
    assert any("one request at a time" in note for note in size.notes)


def test_ollama_has_one_cache_type():
    assert ollama.size(model(), Workload(4096, 1, "q8_0", "q8_0"), ollama.Options()).k_format == "q8_0"
    with pytest.raises(UnsupportedError, match="one type"):
        ollama.size(model(), Workload(4096, 1, "q8_0", "f16"), ollama.Options())
    with pytest.raises(UnsupportedError, match="needs flash attention"):
        ollama.size(model(), Workload(4096, 1, "q8_0", "q8_0"), ollama.Options(flash_attn="off"))


def test_ollamas_own_refusals():
    with pytest.raises(UnsupportedError, match="was not read"):
        of_ollama(model(), version="0.1")
    with pytest.raises(UsageError, match="at least 1"):
        of_ollama(model(), n_ctx=0)
    with pytest.raises(UsageError, match="--swa-full means nothing to ollama"):
        engine_options("ollama", {"swa_full": True})


@pytest.mark.parametrize("given", [0, -1])
def test_llama_servers_own_choice_of_sequences_is_not_ollamas(given):
    with pytest.raises(UsageError, match="--parallel must be at least 1 for Ollama"):
        of_ollama(model(), n_parallel=given)


# -- edges, worked out by hand ----------------------------------------------------------------------------------------

LONG = model(context_length=131_072)


@pytest.mark.parametrize(
    ("tokens", "batch"),
    [(1, 4), (4, 4), (5, 5), (4096, 512), (4097, 1024), (32_768, 1024), (32_769, 2048), (131_072, 2048)],
)
def test_num_batch_by_num_ctx(tokens, batch):
    """Never above the context, which is at least 4."""
    assert of_ollama(LONG, tokens).scratch.ubatch == batch


def test_requests_are_streams_of_their_own():
    found = of_ollama(model(), 100, 3)
    assert (found.cache, found.total_bytes) == ("streams", 3 * 256 * CELL)


def test_a_model_without_a_stated_context_is_not_cut():
    assert of_ollama(model(context_length=None), 100_000).total_bytes == 100_096 * CELL  # 391 x 256


def test_layers_left_on_the_host():
    assert [bool(layer.host) for layer in of_ollama(model(), n_gpu_layers=3).layers] == [True, True, False, False]


NOTES = {
    "a whole context": (model(), 8192, 1, {}, "cuts num_ctx", False),
    "a token more": (model(), 8193, 1, {}, "cuts num_ctx to the 8,192 tokens", True),
    "a small batch": (model(), 4096, 1, {}, "num_batch as Ollama sets it", False),
    "a larger batch": (model(), 4097, 1, {}, "num_batch as Ollama sets it", True),
    "the batch given": (model(), 4097, 1, {"n_ubatch": 512}, "num_batch as Ollama sets it", False),
    "several requests": (model(), 4096, 4, {}, "one request at a time", False),
    "one request": (model("lfm2", shortconv__l_cache=3), 4096, 1, {}, "one request at a time", False),
    "the request's own": (model(), 4096, 4, {}, "those of --parallel", False),
    "two of three": (model(), 4096, 3, {"n_parallel": 2}, "those of --parallel", False),
    "what runs": (model(), 4096, 1, {}, "Ollama of 2026-08-21 runs llama.cpp b10488", True),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case):
    found, tokens, sequences, settings, words, said = NOTES[case]
    assert any(words in note for note in of_ollama(found, tokens, sequences, **settings).notes) == said


@pytest.mark.parametrize("ubatch", [None, 512])
def test_a_batch_that_was_given_does_not_jump(ubatch):
    found = of_ollama(model("gemma3", context_length=131_072, attention__sliding_window=512), 4096, n_ubatch=ubatch)
    assert found.step_tokens == (-256 if ubatch is None else 256)
