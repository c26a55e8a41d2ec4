"""transformers: figures that no measured row holds in place, worked out by hand, and where its releases differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsize.engines import CacheSize, Workload
from kvsize.engines import transformers as engine
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import (
    Attention,
    Compressed,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
)

HEADS = Heads(8, 128, 128)
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(512)),), kind="sliding_attention")
STATES = Layer((Recurrent("mamba", (State("conv", (64, 4)),)),), kind="linear_attention")
TOKEN = 2 * 8 * 128 * 2  # bytes of one token in one layer


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    values = {"num_attention_heads": 32, "hidden_size": 4096, "vocab_size": 32_000, "dtype": "bfloat16", **fields}
    return Geometry(kind, layers, **values)


def size(geometry: Geometry, tokens: int = 1000, *, encoder: int | None = None, **options: object) -> CacheSize:
    return engine.size(geometry, Workload(tokens, encoder_tokens=encoder), engine.Options(**options))


# -- the peak: torch.cat holds one old tensor of one layer beside the new one -----------------------------------------


def test_one_tensor_of_the_largest_layer_is_copied():
    found = size(model(FULL, WINDOW, FULL), 1000)
    assert found.transient_bytes == 1000 * TOKEN // 2  # K or V
    assert found.peak_bytes == 2000 * TOKEN + 1000 * TOKEN + 1000 * TOKEN // 2  # the window's prefill is whole


def test_a_static_cache_copies_nothing():
    found = size(model(FULL, WINDOW), cache="static")
    assert found.transient_bytes == 0
    assert found.peak_bytes == found.total_bytes == 1512 * TOKEN


@pytest.mark.parametrize(
    ("entry", "widest"),
    [
        (Heads(4, 192, 128), 4 * 192),
        (Heads(4, 128, 192), 4 * 192),
        (Heads(8, 64, 64, broadcast=32), 32 * 64),
        (Latent(512, 64, Heads(128, 192, 128)), 512),
        (Latent(16, 64, Heads(128, 192, 128)), 64),
        (IndexKey(128), 128),
    ],
)
def test_the_wider_of_the_two_tensors_counts(entry, widest):
    assert size(model(Layer((Attention(entry),)))).transient_bytes == 1000 * 2 * widest


def test_the_encoders_tokens_are_never_copied():
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder())))
    assert size(model(both), 10, encoder=4000).transient_bytes == 10 * TOKEN // 2


def test_states_are_updated_in_place():
    assert size(model(STATES)).transient_bytes == 0


def test_a_quantised_layer_is_unpacked_and_concatenated():
    assert size(model(FULL), cache="quantized").transient_bytes == 2 * 1000 * TOKEN // 2


# -- notes that stand for bytes ----------------------------------------------------------------------------------------


def test_an_encoder_left_out_is_told_in_bytes():
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder(tokens=1500))))
    (note,) = size(model(both, both)).notes
    assert f"they take {2 * TOKEN:,} bytes for each of its tokens" in note
    assert "--encoder-ctx 1500" in note
    assert size(model(both, both), encoder=0).notes == ()
    assert size(model(FULL)).notes == ()


@pytest.mark.parametrize(("cache", "noted"), [("dynamic", True), ("static", False), ("offloaded_static", False)])
def test_slots_that_a_dynamic_cache_ignores(cache, noted):
    notes = size(model(FULL, FULL, FULL), cache=cache, max_cache_len=4096).notes
    assert any("max_cache_len is ignored" in note for note in notes) == noted


@pytest.mark.parametrize(
    ("asked", "meant"), [("hybrid", "dynamic"), ("sliding_window", "static"), ("offloaded_hybrid", "offloaded_static")]
)
def test_deprecated_names_are_taken_and_named(asked, meant):
    """generation/utils.py: hybrid alone is dropped, so that Gemma's checkpoints get the default."""
    old, new = (size(model(FULL, WINDOW, FULL, FULL), cache=cache) for cache in (asked, meant))
    assert (old.layers, old.cache) == (new.layers, meant)
    assert old.notes == (f"cache_implementation={asked} is a deprecated name; generate makes it {meant}", *new.notes)


# -- the request -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beams", "answers", "copies"), [(1, 1, 1), (3, 1, 3), (1, 2, 2), (4, 2, 4), (2, 5, 5)])
def test_a_request_is_expanded_by_the_larger_of_beams_and_answers(beams, answers, copies):
    found = size(model(FULL), num_beams=beams, num_return_sequences=answers)
    assert found.total_bytes == copies * 1000 * TOKEN


def test_a_models_own_cache_has_one_beam():
    assert size(model(STATES, kind="rwkv"), num_beams=1).total_bytes == 64 * 4 * 2
    with pytest.raises(UnsupportedError, match="rwkv's own cache cannot be reordered for beams"):
        size(model(STATES, kind="rwkv"), num_beams=2)


@pytest.mark.parametrize(("prompt", "held"), [(1, 512), (999, 512), (1000, 1000)])
def test_a_window_is_cut_by_the_first_token_after_the_prompt(prompt, held):
    found = engine.size(model(WINDOW), Workload(1000, prompt_tokens=prompt), engine.Options())
    assert found.total_bytes == held * TOKEN
    assert found.after_prefill_bytes == prompt * TOKEN


@pytest.mark.parametrize("prompt", [0, -1, 1001])
def test_a_prompt_outside_what_is_cached_is_refused(prompt):
    with pytest.raises(UsageError, match="--prompt must lie between 1 and the cached tokens"):
        engine.size(model(WINDOW), Workload(1000, prompt_tokens=prompt), engine.Options())


def test_a_static_cache_has_the_more_slots_of_the_two():
    for tokens, slots, held in ((1000, None, 1000), (1000, 4096, 4096), (1000, 10, 1000)):
        assert size(model(FULL), tokens, cache="static", max_cache_len=slots).total_bytes == held * TOKEN


# -- offloading --------------------------------------------------------------------------------------------------------


def test_two_layers_stay_on_the_device():
    found = size(model(*[FULL] * 5), cache="offloaded")
    assert found.host_bytes == 3 * 1000 * TOKEN


def test_a_layer_alone_or_sharing_has_nothing_to_move():
    shared = replace(FULL, shares=0)
    assert size(model(FULL), cache="offloaded").host_bytes == 0
    assert size(model(FULL, FULL, shared, shared), cache="offloaded").host_bytes == 0


def test_a_model_of_states_cannot_be_offloaded():
    with pytest.raises(UnsupportedError, match="no layer of jamba can be offloaded"):
        size(model(STATES, Layer(kind="mlp"), kind="jamba"), cache="offloaded")


def test_an_encoder_is_why_it_is_not_quantised():
    """Layers "are full_attention" was said of Whisper, as if that were a reason."""
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder(tokens=1500))))
    with pytest.raises(UnsupportedError, match="refuses whisper: layers 0-1 read an encoder"):
        size(model(both, both, kind="whisper"), cache="quantized", encoder=1500)


# -- paged -------------------------------------------------------------------------------------------------------------


def test_sectors_of_a_model_with_one_kind_of_layer():
    found = size(model(*[FULL] * 4), cache="paged", num_blocks=10)
    assert found.total_bytes == 4 * TOKEN * 1024  # 4 pages of 256
    assert (found.pool.bytes_per_block, found.pool.block_size) == (4 * TOKEN * 256, 256)
    assert (found.pool.request_blocks, found.pool.num_blocks, found.pool.tokens) == (4, 10, 2 * 1000)


def test_a_sector_is_cut_into_blocks_of_either_kind():
    """Six full layers and two windows: a sector is one block of the six, or three blocks of the two."""
    found = size(model(*[FULL] * 6, *[WINDOW] * 2), cache="paged", num_blocks=100)
    page = 256 * TOKEN
    assert (found.pool.bytes_per_block, found.pool.block_size) == (6 * page, 3 * 256)
    assert found.pool.request_blocks == 4 + 1  # 1,000 tokens in 4 blocks; 512 in 2 blocks of one sector
    assert found.total_bytes == 5 * 6 * page
    assert found.overhead_bytes == 1 * 2 * page  # the third block of that sector


def test_a_paged_cache_feeds_no_encoder():
    """T5's 64 tokens were given 3,145,728 bytes, without its encoder's; its generate_batch fails."""
    both = Layer((Attention(HEADS), Attention(HEADS, Encoder())))
    with pytest.raises(UnsupportedError, match="feeds no encoder; layer 1 reads one"):
        size(model(FULL, both), cache="paged", encoder=50)


def test_requests_share_sectors():
    """Three requests' six window blocks fill two sectors, where three were counted; seven take 28 + 5, not 35."""
    options = engine.Options(cache="paged", num_blocks=25)
    three = engine.size(model(*[FULL] * 6, *[WINDOW] * 2), Workload(1000, 3), options)
    page = 256 * TOKEN
    assert (three.total_bytes, three.overhead_bytes) == ((3 * 4 + 2) * 6 * page, 0)
    assert three.pool.num_blocks == 34  # 25 blocks of 8 pages, in sectors of 6
    assert (three.pool.max_concurrency, three.pool.tokens) == (7, 7000)


def test_the_smallest_budget_that_holds_a_sector():
    """One sector is a pool; the step's activations and mask come first."""
    low, high = 1, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sectors(middle) else (middle, high)
    assert sectors(high) == 1
    with pytest.raises(UnsupportedError, match=f"{low:,} free bytes hold no sector of {256 * TOKEN:,}"):
        size(model(FULL), cache="paged", kv_memory=low)


def sectors(memory: int) -> int:
    try:
        return size(model(FULL), cache="paged", kv_memory=memory).pool.num_blocks
    except UnsupportedError:
        return 0


def test_a_step_has_8192_tokens_unless_told():
    """continuous_batching/cache.py _default_max_batch_tokens"""
    told, untold = (
        size(model(FULL), cache="paged", kv_memory=1 << 36, **given).pool
        for given in ({"max_num_batched_tokens": 8192}, {})
    )
    assert told == untold


# -- releases: the last without a rule, and the first with it ----------------------------------------------------------


def test_pages_grew_from_32_to_256_tokens():
    before, after = (size(model(FULL), 1, cache="paged", version=version) for version in ("5.3.0", "5.4.0"))
    assert (before.total_bytes, after.total_bytes) == (32 * TOKEN, 256 * TOKEN)


def test_fp8_caches_came_with_5_21():
    assert size(model(FULL), cache="quantized", backend="fp8", version="5.21.1").total_bytes == 1000 * TOKEN // 2 + 8
    with pytest.raises(UnsupportedError, match="fp8"):
        size(model(FULL), cache="quantized", backend="fp8", version="5.20.2")


def test_quantised_windows_are_refused_since_5_14():
    assert size(model(FULL, WINDOW), cache="quantized", version="5.13.1").total_bytes > 0
    with pytest.raises(UnsupportedError, match="layers 1 are sliding_attention"):
        size(model(FULL, WINDOW), cache="quantized", version="5.14.1")


@pytest.mark.parametrize(("version", "windows"), [("5.11.0", 1000), ("5.12.1", 512), ("5.13.1", 512), ("5.14.1", 1000)])
def test_dynamic_full_was_dynamic_for_two_releases(version, windows):
    assert size(model(WINDOW), cache="dynamic_full", version=version).total_bytes == windows * TOKEN


@pytest.mark.parametrize(
    ("kind", "last"), [("deepseek_v4", "5.7.0"), ("minicpm3", "5.12.1"), ("kimi_linear", "5.16.1")]
)
def test_a_model_that_came_later_is_not_sized_for_an_earlier_release(kind, last):
    with pytest.raises(UnsupportedError, match=kind):
        size(model(FULL, kind=kind), version=last)


# -- compressed attention ----------------------------------------------------------------------------------------------


def test_compressed_attention_by_hand():
    """1,000 tokens, a window of 128, one entry for 4 tokens (and its indexer): nothing is buffered at a multiple."""
    store = Compressed(512, 128, 4, overlap=True, index_dim=128)
    found = size(model(Layer((store,))))
    entries = 250 * (512 + 128) * 2
    carried = 4 * (2 + 4) * (512 + 128)
    buffered = 2 * 2 * 2 * (512 + 128)  # a token's values and gates, for two windows
    assert found.logical_bytes == 127 * 512 * 2 + entries + carried
    assert found.total_bytes == 128 * 512 * 2 + entries + carried + 4 * buffered
    assert found.after_prefill_bytes == 1000 * 512 * 2 + entries + carried + 1000 * buffered


def test_without_overlap_nothing_is_carried():
    store = Compressed(512, 128, 128, overlap=False)
    found = size(model(Layer((store,))), 300)
    assert found.logical_bytes == 127 * 512 * 2 + 2 * 512 * 2 + (300 - 256) * 2 * 512 * 2


def test_a_window_of_one_token():
    """It keeps everything: cache_utils.py takes [-1 + 1 :], the whole tensor."""
    assert size(model(Layer((Attention(HEADS, Sliding(1)),)))).total_bytes == size(model(FULL)).total_bytes
