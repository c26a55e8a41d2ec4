"""transformers: the release that each rule and model came with, and bytes worked out by hand from its cache classes."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.engines import CacheSize, Workload
from kvsize.engines import transformers as engine
from kvsize.engines.transformers.history import CHANGES
from kvsize.engines.transformers.quantized import Quantization, packed_bytes
from kvsize.engines.transformers.versions import FIRST_RELEASE, release
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import format_of
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
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
from kvsize.source import load

HEADS = Heads(8, 128, 128)
TOKEN = 2 * 8 * 128 * 2  # bytes of one token in one layer
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(512)),), kind="sliding_attention")
MLA = Attention(Latent(512, 64, Heads(16, 192, 128)))
HEADS_OF_MLA = 16 * (192 + 128) * 2
CONV, SSM = State("conv", (64, 4)), State("recurrent", (64, 16), "float32")
STATE = Layer((Recurrent("mamba2", (CONV, SSM)),), kind="linear_attention")


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    values = {"num_attention_heads": 32, "hidden_size": 4096, "vocab_size": 32_000, "dtype": "bfloat16", **fields}
    return Geometry(kind, layers, **values)


def size(geometry: Geometry, tokens: int = 1000, sequences: int = 1, **options: object) -> CacheSize:
    given = {key: options.pop(key) for key in ("encoder_tokens", "prompt_tokens") if key in options}
    return engine.size(geometry, Workload(tokens, sequences, **given), engine.Options(**options))


# -- releases ----------------------------------------------------------------------------------------------------------


def before(version: str) -> str:
    """The last number below a minor release's first."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) - 1}.99"


FIRST = {
    "5.2.0": ("glm_moe_dsa", "qwen3_5_text", "qwen3_5_moe_text"),
    "5.3.0": ("olmo_hybrid", "nemotron_h"),
    "5.5.0": ("gemma4_text",),
    "5.7.0": ("laguna",),
    "5.8.0": ("deepseek_v4",),
    "5.11.0": ("deepseek_v32",),
    "5.13.0": ("minicpm3", "mimo_v2_flash", "zaya"),
    "5.14.0": ("inkling_text",),
    "5.15.0": ("axk1",),
    "5.16.0": ("step3p5",),
    "5.17.0": ("kimi_linear",),
}
PLAIN = {"glm_moe_dsa": Layer((MLA, Attention(IndexKey(128))))}


@pytest.mark.parametrize(("first", "kind"), [(first, kind) for first, kinds in FIRST.items() for kind in kinds])
def test_the_first_release_with_a_model(first, kind):
    geometry = model(PLAIN.get(kind, FULL), kind=kind)
    assert size(geometry, version=first).version == first
    with pytest.raises(UnsupportedError, match=f"does not have {kind} yet") as caught:
        size(geometry, version=before(first))
    minor = first.removesuffix(".0")
    assert caught.value.hint == f"It came with {minor}: --engine transformers@{minor}"


def test_every_model_with_a_first_release_is_above():
    assert set(FIRST_RELEASE) == {kind for kinds in FIRST.values() for kind in kinds}


INDEXED = Layer((MLA, Attention(IndexKey(128))))
# (the change's first release, a model, its options, bytes before and since)
MOVED = [
    ("5.15.0", model(Layer((MLA,)), kind="deepseek_v3"), {}, 1000 * HEADS_OF_MLA, 1000 * 576 * 2),
    ("5.18.0", model(INDEXED, kind="deepseek_v32"), {}, 1000 * (HEADS_OF_MLA + 256), 1000 * (1152 + 256)),
    ("5.14.0", model(STATE, kind="mamba2"), {}, 64 * 4 * 2 + 64 * 16 * 2, 64 * 4 * 2 + 64 * 16 * 4),
    ("5.14.0", model(STATE, kind="zamba"), {}, 64 * 4 * 2 + 64 * 16 * 2, 64 * 4 * 2 + 64 * 16 * 4),
    ("5.20.0", model(WINDOW, kind="mimo_v2_flash"), {}, 511 * TOKEN, 512 * TOKEN),
    ("5.14.0", model(WINDOW, kind="gemma3n_text"), {}, 1000 * TOKEN, 512 * TOKEN),
    ("5.14.0", model(WINDOW, kind="gemma3n_text"), {"cache": "static"}, 512 * TOKEN, 512 * TOKEN),
    (
        "5.6.0",
        model(INDEXED, Layer((MLA,)), kind="glm_moe_dsa"),
        {},
        1000 * 2 * (HEADS_OF_MLA + 256),
        1000 * (2 * HEADS_OF_MLA + 256),
    ),
    (
        "5.5.0",
        model(Layer((Recurrent("short_conv", (CONV,)),), kind="conv"), FULL, kind="lfm2"),
        {},
        2 * 64 * 4 * 2 + 1000 * TOKEN,
        64 * 4 * 2 + 1000 * TOKEN,
    ),
]


@pytest.mark.parametrize(("first", "geometry", "options", "then", "now"), MOVED)
def test_what_a_cache_held_before_and_since(first, geometry, options, then, now):
    older, newer = (size(geometry, version=version, **options) for version in (before(first), first))
    assert (older.total_bytes, newer.total_bytes) == (then, now)
    said = [any(note.startswith(f"before {first[:-2]} ") for note in found.notes) for found in (older, newer)]
    assert said == [then != now, False]


def test_static_caches_changed_as_well():
    geometry = model(Layer((MLA,)), kind="deepseek_v3")
    found = [size(geometry, cache="static", version=version).total_bytes for version in ("5.14.99", "5.15.0")]
    assert found == [1000 * HEADS_OF_MLA, 1000 * 576 * 2]


def test_convolutions_of_olmo_hybrid_had_a_column_less():
    """Their own tensor after the prefill, then a view of all columns."""
    geometry = model(STATE, kind="olmo_hybrid")
    older, newer = (size(geometry, version=version) for version in ("5.14.99", "5.15.0"))
    assert newer.logical_bytes == newer.after_prefill_bytes == 64 * 4 * 2 + 64 * 16 * 4
    assert older.logical_bytes == older.after_prefill_bytes == 64 * 3 * 2 + 64 * 16 * 4
    assert older.total_bytes == newer.total_bytes


def test_states_of_zamba_were_float32_in_a_class_of_their_own():
    geometry = model(STATE, kind="zamba")
    found = {version: size(geometry, version=version).total_bytes for version in ("5.4.0", "5.5.0", "5.13.1", "5.14.0")}
    wide, narrow = 64 * 4 * 2 + 64 * 16 * 4, 64 * 4 * 2 + 64 * 16 * 2
    assert found == {"5.4.0": wide, "5.5.0": narrow, "5.13.1": narrow, "5.14.0": wide}


def test_a_window_of_one_was_no_narrower():
    geometry = model(Layer((Attention(HEADS, Sliding(2)),)), kind="mimo_v2_flash")
    assert size(geometry, version="5.20.0").total_bytes == 2 * TOKEN
    assert size(geometry, version="5.19.0").total_bytes == 1000 * TOKEN  # of one token, which keeps everything
    one = model(Layer((Attention(HEADS, Sliding(1)),)), kind="mimo_v2_flash")
    assert size(one, version="5.19.0").total_bytes == 1000 * TOKEN


def test_a_model_whose_layers_share_kept_its_windows():
    geometry = model(WINDOW, Layer(WINDOW.stores, shares=0, kind="sliding_attention"), kind="gemma3n_text")
    assert size(geometry, version="5.13.1").total_bytes == 512 * TOKEN


@pytest.mark.parametrize(
    ("kind", "cache", "first", "words"),
    [
        ("recurrent_gemma", "dynamic", "5.4.0", "windows in module buffers"),
        ("gemma3n_text", "static", "5.6.0", "source layers twice"),
    ],
)
def test_caches_that_lay_elsewhere(kind, cache, first, words):
    geometry = model(FULL, kind=kind)
    assert size(geometry, cache=cache, version=first).total_bytes == 1000 * TOKEN
    with pytest.raises(UnsupportedError, match=words):
        size(geometry, cache=cache, version=before(first))


def test_a_dynamic_gemma_3n_was_as_it_is():
    shared = Layer(FULL.stores, shares=0)
    assert size(model(FULL, shared, kind="gemma3n_text"), version="5.5.4").total_bytes == 1000 * TOKEN


def test_each_change_has_a_row_above():
    tried = [row[0] for row in MOVED if row[3] != row[4]] + ["5.15.0"]
    assert sorted(".".join(map(str, change.first)) for change in CHANGES) == sorted(tried)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.23", "5.23.0"),
        ("5.5", "5.5.4"),
        ("5.10", "5.10.4"),
        ("5.99", "5.99.0"),
        ("5.5.1", "5.5.1"),
        ("5.0", "5.0.0"),
    ],
)
def test_a_release_without_a_patch_is_the_one_that_ran(text, number):
    assert release(text).full_name == number


@pytest.mark.parametrize(("version", "evidence"), [("5.5.4", "exact"), ("5.5.3", "derived"), ("5.24.0", "exact")])
def test_only_releases_that_ran_are_exact(version, evidence):
    assert size(model(FULL), version=version).evidence == evidence


def test_releases_before_5():
    assert size(model(FULL), version="5.0.0").total_bytes == 1000 * TOKEN
    with pytest.raises(UnsupportedError, match="older than the oldest"):
        size(model(FULL), version="4.99.9")


@pytest.mark.parametrize(
    ("first", "cache", "options"), [("5.14.0", "quantized", {}), ("5.21.0", "quantized", {"backend": "fp8"})]
)
def test_quantized_caches_by_release(first, cache, options):
    """Windows are refused since 5.14; fp8 came with 5.21."""
    refused, taken = (first, before(first)) if not options else (before(first), first)
    geometry = model(FULL) if options else model(WINDOW)
    assert size(geometry, 1024, cache=cache, version=taken, **options).total_bytes > 0
    with pytest.raises(UnsupportedError):
        size(geometry, 1024, cache=cache, version=refused, **options)


@pytest.mark.parametrize(
    ("version", "held"),
    [("5.11.99", 1000), ("5.12.0", 512), ("5.13.99", 512), ("5.14.0", 1000), ("5.14.99", 1000), ("5.15.0", None)],
)
def test_dynamic_full_by_release(version, held):
    if held is not None:
        assert size(model(WINDOW), cache="dynamic_full", version=version).total_bytes == held * TOKEN
        return
    with pytest.raises(UnsupportedError, match="no longer accepts cache_implementation=dynamic_full"):
        size(model(WINDOW), cache="dynamic_full", version=version)


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "options", "logical", "held", "prefilled"),
    [
        (Sliding(512), {}, 511, 512, 1000),
        (Chunked(512), {}, 511, 512, 1000),
        (Sliding(512), {"tokens": 511}, 511, 511, 511),
        (Sliding(512), {"tokens": 512}, 511, 512, 512),
        (Sliding(512), {"cache": "static"}, 512, 512, 512),
        (Sliding(512), {"cache": "static", "tokens": 100}, 100, 100, 100),
        (Sliding(512), {"tokens": 1}, 1, 1, 1),
        (Sliding(512), {"prompt_tokens": 1000}, 511, 1000, 1000),
        (Sliding(512), {"prompt_tokens": 600}, 511, 512, 600),
        (Reference(128), {"prompt_tokens": 600}, 600 + 127, 600 + 128, 600),
        (Reference(128), {"prompt_tokens": 900}, 1000, 1000, 900),
        (Reference(128), {"prompt_tokens": 1000}, 1000, 1000, 1000),
        (Reference(128), {"prompt_tokens": 600, "cache": "static"}, 728, 728, 728),
        (Reference(128), {"prompt_tokens": 900, "cache": "static"}, 1000, 1000, 1000),
        (Encoder(), {"encoder_tokens": 77}, 77, 77, 77),
        (Encoder(), {"encoder_tokens": 77, "cache": "static"}, 77, 77, 77),
    ],
)
def test_tokens_that_stay(span, options, logical, held, prefilled):
    found = size(model(Layer((Attention(HEADS, span),))), **options)
    assert found.logical_bytes == logical * TOKEN
    assert found.total_bytes == held * TOKEN
    assert found.after_prefill_bytes == prefilled * TOKEN


def test_entries_beside_the_request_s():
    found = size(model(Layer((Attention(HEADS, extra_tokens=32),))), 1000, 2, prompt_tokens=10)
    assert found.total_bytes == 2 * 1032 * TOKEN
    assert found.after_prefill_bytes == 2 * 42 * TOKEN


def test_a_view_that_shows_one_element_many_times():
    """Until a token is appended only the positions themselves lie in memory, 8 bytes each."""
    store = Attention(IndexKey(16), format="int64", expanded_view=True)
    found = size(model(Layer((store,))), 1000, 2, prompt_tokens=900)
    assert found.total_bytes == 2 * 1000 * 16 * 8
    assert found.after_prefill_bytes == 900 * 8


ROLLING = Layer((Recurrent("rg_lru", (CONV, State("recurrent", (64,), "float32")), rolling=True),), kind="recurrent")


@pytest.mark.parametrize(
    ("tokens", "prompt", "logical", "held", "prefilled"),
    [
        (10, 9, 3, 4, 3),
        (10, 10, 3, 3, 3),
        (10, 1, 3, 4, 4),
        (1, 1, 3, 4, 4),
    ],
)
def test_a_rolling_convolution(tokens, prompt, logical, held, prefilled):
    """Columns of 64 channels: all but one after a prefill, a view of all of them after a step."""
    found = size(model(ROLLING), tokens, prompt_tokens=prompt)
    columns = [(n - 64 * 4) // (64 * 2) for n in (found.logical_bytes, found.total_bytes, found.after_prefill_bytes)]
    assert columns == [logical, held, prefilled]


@pytest.mark.parametrize(
    ("tokens", "entries", "carried", "buffered", "held"),
    [(3, 0, 0, 3, 3), (4, 1, 1, 0, 4), (5, 1, 1, 1, 1), (8, 2, 1, 0, 4)],
)
def test_a_compressor(tokens, entries, carried, buffered, held):
    """Of 512 and an index of 128, in bfloat16; four tokens of values and float32 gates are carried on."""
    found = size(model(Layer((Compressed(512, 128, 4, overlap=True, index_dim=128),))), tokens, prompt_tokens=1)
    fixed = tokens * 512 * 2 + entries * 640 * 2 + carried * 640 * 4 * (2 + 4)
    assert found.logical_bytes == fixed + buffered * 2 * 2 * 640 * 2
    assert found.total_bytes == fixed + held * 2 * 2 * 640 * 2


def test_a_model_without_layers():
    assert size(model()).peak_bytes == 0
    assert size(model(FULL), cache="paged").transient_bytes == 0


# -- quantised ---------------------------------------------------------------------------------------------------------

BF16 = format_of("bfloat16")


@pytest.mark.parametrize(
    ("elements", "channels", "packing", "bytes_"),
    [
        (6400, None, {}, 50 * 64 + 100 * 4),
        (6400, None, {"nbits": 2}, 25 * 64 + 100 * 4),
        (192, None, {"nbits": 2}, 1 * 64 + 3 * 4),  # three groups of 2 bits lie in one byte of each of 64
        (6400, None, {"q_group_size": 32}, 100 * 32 + 200 * 4),
        (6400, 10, {}, 50 * 64 + 100 * 4),
        (6400, None, {"backend": "hqq"}, 100 * 32 + 100 * 4),
        (6400, None, {"backend": "hqq", "nbits": 1}, 100 * 8 + 100 * 4),
        (6400, None, {"backend": "hqq", "nbits": 3}, 100 * 7 * 4 + 100 * 4),  # 64 values ten to an int32
        (6400, None, {"backend": "hqq", "nbits": 8}, 100 * 64 + 100 * 4),
        (6400, 128, {"backend": "hqq"}, 100 * 32 + 100 * 4),  # 50 in a channel: hqq does not mind
        (6399, None, {"backend": "fp8"}, 6399 + 4),
    ],
)
def test_bytes_of_a_packed_tensor(elements, channels, packing, bytes_):
    assert packed_bytes(elements, channels, BF16, Quantization(**packing)) == bytes_


@pytest.mark.parametrize(("elements", "channels"), [(6401, None), (6400, 128)])
def test_elements_that_are_no_whole_groups(elements, channels):
    with pytest.raises(UnsupportedError, match="no whole number of groups of 64"):
        packed_bytes(elements, channels, BF16, Quantization())


def packed(tokens: int) -> int:
    """K and V of 1,024 elements a token in 4 bits, with a scale and a zero point for each 64."""
    return 2 * tokens * (512 + 16 * 4)


@pytest.mark.parametrize(
    ("prompt", "options", "loose"),
    [
        (None, {}, 1),
        (1000, {}, 0),
        (900, {}, 100),
        (873, {}, 127),
        (872, {}, 0),  # 128 of them are packed with the rest
        (800, {}, 72),
        (900, {"residual_length": 100}, 0),
        (900, {"residual_length": 99}, 1),
    ],
)
def test_the_newest_tokens_are_loose(prompt, options, loose):
    found = size(model(FULL), prompt_tokens=prompt, cache="quantized", **options)
    assert found.total_bytes == found.logical_bytes == packed(1000 - loose) + loose * TOKEN
    assert found.after_prefill_bytes == packed(prompt or 1000)
    assert found.transient_bytes == 2 * 1000 * TOKEN // 2


def test_a_single_token_is_packed():
    assert size(model(FULL), 1, cache="quantized").total_bytes == packed(1)
    assert size(model(FULL), 2, cache="quantized").total_bytes == packed(1) + TOKEN


def test_fp8_has_no_loose_tokens():
    found = size(model(FULL), prompt_tokens=900, cache="quantized", backend="fp8")
    assert (found.total_bytes, found.after_prefill_bytes) == (2 * (1000 * 1024 + 4), 2 * (900 * 1024 + 4))


def test_quantised_entries_beside_the_request_s_and_several_sequences():
    found = size(model(Layer((Attention(HEADS, extra_tokens=32),))), 1000, 3, prompt_tokens=900, cache="quantized")
    assert found.total_bytes == 3 * (packed(932) + 100 * TOKEN)


def test_a_latent_is_quantised_in_two_parts():
    """512 and 64 elements a token: 8 groups and one."""
    found = size(model(Layer((MLA,)), kind="deepseek_v3"), prompt_tokens=1000, cache="quantized")
    assert found.total_bytes == 1000 * (256 + 32 + 9 * 4)


@pytest.mark.parametrize(("axes", "fits"), [({}, True), ({"axis_key": -1}, False), ({"axis_value": -1}, False)])
def test_groups_within_a_channel(axes, fits):
    """1,000 tokens of eight heads are 8,000 values in each channel: no whole number of groups of 128."""
    options = {"cache": "quantized", "prompt_tokens": 1000, "q_group_size": 128, **axes}
    if fits:
        assert size(model(FULL), **options).total_bytes == 2 * 1000 * (512 + 8 * 4)
        return
    with pytest.raises(UnsupportedError, match="no whole number of groups of 128"):
        size(model(FULL), **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "quanto-4bit"),
        ({"nbits": 2}, "quanto-2bit"),
        ({"backend": "hqq", "nbits": 8}, "hqq-8bit"),
        ({"backend": "fp8"}, "fp8_e4m3"),
    ],
)
def test_names_of_packed_formats(options, name):
    assert size(model(FULL), cache="quantized", **options).k_format == name


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"nbits": 8}, UnsupportedError, "quanto quantises to"),
        ({"nbits": 3}, UnsupportedError, "quanto quantises to"),
        ({"backend": "hqq", "nbits": 5}, UnsupportedError, "hqq quantises to"),
        ({"axis_key": 1}, UnsupportedError, "axis_key of quanto"),
        ({"axis_value": 1}, UnsupportedError, "axis_value of quanto"),
        ({"backend": "hqq", "axis_key": -1}, UnsupportedError, "axis_key of hqq"),
        ({"backend": "fp8", "nbits": 4}, UnsupportedError, "takes no nbits"),
        ({"backend": "awq"}, UsageError, "unknown backend"),
    ],
)
def test_packings_that_no_backend_has(options, error, words):
    with pytest.raises(error, match=words):
        size(model(FULL), cache="quantized", **options)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_bits_of_hqq(bits):
    packed_group = {1: 8, 2: 16, 3: 28, 4: 32, 8: 64}[bits]
    found = size(model(FULL), cache="quantized", prompt_tokens=1000, backend="hqq", nbits=bits, axis_key=1)
    assert found.total_bytes == 2 * 16_000 * (packed_group + 4)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((FULL, STATE), "layers 1 are linear_attention"),
        ((FULL, Layer(FULL.stores, shares=0)), "layers 1 share another layer's cache"),
        ((Layer((MLA, Attention(IndexKey(128)))),), "layers 0 are full_attention"),
    ],
)
def test_models_that_a_quantised_cache_refuses(layers, words):
    with pytest.raises(UnsupportedError, match=words):
        size(model(*layers), cache="quantized")


def test_three_kinds_of_refused_layers_are_named():
    layers = [Layer(STATE.stores, kind=kind) for kind in ("linear_attention", "conv", "hybrid", "recurrent")]
    words = "layers 0 are linear_attention; layers 1 are conv; layers 2 are hybrid\n"
    with pytest.raises(UnsupportedError, match=words):
        size(model(*layers), cache="quantized")


# -- offloaded ---------------------------------------------------------------------------------------------------------


def hosted(*layers: Layer, **options: object) -> list[int]:
    return [layer.host // TOKEN for layer in size(model(*layers), **options).layers]


@pytest.mark.parametrize(
    ("layers", "options", "host"),
    [
        ((FULL, FULL, FULL), {}, [0, 0, 1000]),
        ((FULL, WINDOW, FULL), {}, [0, 511, 0]),  # the last and the first are the busiest pair
        ((FULL, WINDOW, FULL), {"offload_only_non_sliding": True}, [0, 0, 0]),
        ((FULL, WINDOW, FULL, FULL), {"offload_only_non_sliding": True}, [0, 0, 0, 1000]),
        ((WINDOW, FULL, FULL, WINDOW), {}, [511, 0, 0, 511]),
        ((FULL, WINDOW, FULL, FULL), {"cache": "offloaded_static"}, [0, 0, 0, 1000]),
        (
            (WINDOW, WINDOW, FULL, FULL),
            {"cache": "offloaded_static", "offload_only_non_sliding": False},
            [512, 512, 0, 0],
        ),
        ((FULL, FULL, STATE, FULL, Layer(kind="mlp")), {}, [0, 0, 0, 1000, 0]),
    ],
)
def test_which_layers_wait_on_the_host(layers, options, host):
    assert hosted(*layers, **{"cache": "offloaded", **options}) == host


def test_what_is_moved_is_what_the_tensors_show():
    found = size(model(FULL, WINDOW, FULL), cache="offloaded")
    assert [(layer.held // TOKEN, layer.after_prefill // TOKEN) for layer in found.layers] == [
        (1000, 1000),
        (511, 511),
        (1000, 1000),
    ]
    kept = size(model(FULL, WINDOW, FULL), cache="offloaded", offload_only_non_sliding=True)
    assert kept.layers[1].held == 512 * TOKEN


@pytest.mark.parametrize(
    ("kind", "cache", "moves"), [("hybrid", "offloaded", True), ("hybrid", "offloaded_static", False)]
)
def test_mixed_layers_move_in_a_dynamic_cache_only(kind, cache, moves):
    mixed = Layer(FULL.stores, kind=kind)
    assert hosted(mixed, FULL, FULL, FULL, cache=cache) == ([0, 0, 1000, 1000] if moves else [0, 0, 0, 1000])


@pytest.mark.parametrize("kind", ["linear_attention", "conv", "hybrid_sliding"])
def test_layers_with_states_never_move(kind):
    mixed = Layer(FULL.stores, kind=kind)
    assert hosted(mixed, FULL, FULL, FULL, cache="offloaded") == [0, 0, 0, 1000]


# -- paged -------------------------------------------------------------------------------------------------------------


def test_a_sector_is_aligned_to_128_bytes():
    """A page of 16 tokens of one head of 3 is 192 bytes; 384 are two of them."""
    found = size(model(Layer((Attention(Heads(1, 3, 3)),))), 16, cache="paged", page_size=16, num_blocks=3)
    assert (found.pool.bytes_per_block, found.pool.block_size, found.pool.num_blocks) == (384, 32, 2)
    assert (found.total_bytes, found.overhead_bytes) == (384, 192)
    assert (found.pool.max_concurrency, found.pool.tokens, found.step_tokens) == (4.0, 64, 16)


def test_a_pool_below_one_request():
    found = size(model(FULL), cache="paged", num_blocks=1).pool
    assert (found.num_blocks, found.tokens, found.max_concurrency) == (1, 0, 0.25)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (256, 1), (257, 2), (512, 2), (513, 2), (5000, 2)])
def test_blocks_of_a_window(tokens, blocks):
    found = size(model(WINDOW), tokens, cache="paged", num_blocks=100)
    assert found.pool.groups[0].request_blocks == blocks
    assert found.total_bytes == blocks * 256 * TOKEN


@pytest.mark.parametrize(
    ("geometry", "per_token"),
    [
        (model(Layer((MLA,)), kind="deepseek_v3"), 16 * 64),  # head_dim is qk_rope_head_dim
        (model(Layer((MLA,)), kind="mistral4"), 16 * 192),
        (model(FULL, kind="falcon"), 32 * 128),
        (model(FULL, kind="falcon", num_attention_heads=None), 8 * 128),
        (model(FULL, Layer(WINDOW.stores, kind="sliding_attention")), 8 * 128),
        (model(Layer((Attention(Heads(8, 192, 128)),)), WINDOW, kind="mimo_v2_flash"), 8 * 192),
        (model(WINDOW, Layer((Attention(Heads(4, 64, 64)),)), kind="mimo_v2_flash"), 4 * 64),
    ],
)
def test_pages_are_sized_by_the_config_s_heads(geometry, per_token):
    found = size(geometry, 256, cache="paged")
    assert found.total_bytes == len(geometry.layers) * 256 * 2 * 2 * per_token


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((FULL, STATE), "layer 1 is linear_attention"),
        ((FULL, Layer()), "layer 1 is full_attention"),
        ((Layer((Recurrent("mamba", (CONV,)),)),), "caches nothing that could be paged"),
        ((Layer((Attention(Latent(512, 0, HEADS)),)),), "qk_rope_head_dim, which is 0"),
    ],
)
def test_models_that_cannot_be_paged(layers, words):
    with pytest.raises(UnsupportedError, match=words):
        size(model(*layers), cache="paged")


# 1,024 rows of bfloat16 activations and float32 logits, and two spare sectors of 1 MiB
FIXED = 2 * 256 * TOKEN + 1024 * (2 * 4096 + 4 * 32_000)


@pytest.mark.parametrize(
    ("layers", "attention", "usable", "sectors"),
    [
        # a step's token: 4,096 + (32 + 16 + 16) x 128 values, 8 int32, 2 int64; a sector's: 16 x 128 values, an int64
        ((FULL,), "flash_attention_2", FIXED + 8192 * 24_624 + 100 * (256 * TOKEN + 256 * 4104), 100),
        # K and V repeated: 72 heads at the peak; masks of 8,192 x (25,600 + 8,192) in bfloat16 cost 56 sectors
        ((FULL,), "sdpa", FIXED + 8192 * 38_960 + 100 * (256 * TOKEN + 256 * 18_440), 44),
        # a second group and a second mask
        ((FULL, WINDOW), "sdpa", FIXED + 8192 * 38_976 + 101 * (256 * TOKEN + 256 * 18_448), 22),
    ],
)
def test_sectors_of_the_free_memory(layers, attention, usable, sectors):
    """Nine tenths of it are used."""
    free = -(-usable * 100 // 90)
    options = {"cache": "paged", "attn_implementation": attention}
    assert size(model(*layers), kv_memory=free, **options).pool.num_blocks == sectors
    assert size(model(*layers), kv_memory=free - 1, **options).pool.num_blocks == sectors - 1


@pytest.mark.parametrize("missing", ["hidden_size", "vocab_size", "num_attention_heads"])
def test_sizes_that_the_memory_needs(missing):
    with pytest.raises(UnsupportedError, match="needs hidden_size, vocab_size and num_attention_heads"):
        size(model(FULL, **{missing: None}), cache="paged", kv_memory=1 << 34)


# -- settings and sentences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache": "huge"}, "unknown cache"),
        *(({name: 0}, f"--{name.replace('_', '-')} must be at least 1") for name in engine.POSITIVE),
    ],
)
def test_settings_out_of_bounds(options, words):
    with pytest.raises(UsageError, match=words):
        engine.Options(**options)


@pytest.mark.parametrize("name", engine.POSITIVE)
def test_settings_of_one(name):
    assert getattr(engine.Options(**{name: 1}), name) == 1


CASES = [
    (model(FULL), {}, "deprecated name", None),
    (model(FULL), {"cache": "hybrid"}, "deprecated name", "generate makes it dynamic"),
    (model(FULL), {"cache": "static"}, "brings its own cache", None),
    (model(STATE, kind="rwkv"), {}, "brings its own cache", None),
    (model(STATE, kind="rwkv"), {"cache": "static"}, "brings its own cache", "ignores cache_implementation"),
    (model(FULL), {"max_cache_len": 10}, "max_cache_len", "is ignored by this cache"),
    (model(FULL), {"max_cache_len": 10, "cache": "static"}, "max_cache_len", None),
    (
        model(Layer((Attention(HEADS, Encoder()),))),
        {},
        "encoder's keys",
        f"{TOKEN:,} bytes for each of its tokens: add",
    ),
    (model(Layer((Attention(HEADS, Encoder()),))), {"num_beams": 3}, "encoder's keys", f"{3 * TOKEN:,} bytes"),
    (model(Layer((Attention(HEADS, Encoder()),))), {"encoder_tokens": 0}, "encoder's keys", None),
]


@pytest.mark.parametrize(("geometry", "options", "about", "words"), CASES)
def test_what_is_said(geometry, options, about, words):
    """The sentence about something, or none."""
    said = [note for note in size(geometry, **options).notes if about in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def test_a_model_without_a_dtype_is_sized_in_float32():
    found = size(model(FULL, dtype=None))
    assert (found.k_format, found.total_bytes) == ("float32", 1000 * 2 * TOKEN)
    assert found.format_source.startswith("assumed")
    assert size(model(FULL)).format_source == "config"
    given = engine.size(model(FULL), Workload(10, 1, "fp16", "fp16"), engine.Options())
    assert (given.k_format, given.format_source) == ("float16", "given")
    with pytest.raises(UnsupportedError, match="in one format"):
        engine.size(model(FULL), Workload(10, 1, "fp16", "bf16"), engine.Options())


def test_steps_of_a_cache():
    assert size(model(FULL)).step_tokens == 1
    assert size(model(FULL), cache="paged").step_tokens == 256
    assert size(model(FULL), cache="paged", version="5.3.0").step_tokens == 32
    assert size(model(FULL), cache="paged", page_size=16).step_tokens == 16


def test_blt_has_no_cache_to_build():
    with pytest.raises(UnsupportedError, match="BLT"):
        size(model(FULL, kind="blt"))


def test_a_pool_keeps_sectors_that_no_request_gets():
    """Two of 545,259,520 bytes for Gemma 3 27B, 1.09 GB that its requests' figures do not hold."""
    gemma = geometry(load("google/gemma-3-27b-it", offline=True).config)
    size = engine.size(gemma, Workload(8192), engine.Options(cache="paged"))
    sector = 256 * 8192 * 260  # pages of 256 tokens, 8,192 bytes each in a layer; 10 and 52 layers divide 260
    assert any(note.endswith(f"{2 * sector:,} bytes") for note in size.notes)


def test_continuous_batching_searches_no_beams():
    model = geometry(load("meta-llama/Llama-3.1-8B", offline=True).config)
    with pytest.raises(UnsupportedError, match="searches no beams"):
        engine.size(model, Workload(64), engine.Options(cache="paged", num_beams=2))
    several = engine.size(model, Workload(64), engine.Options(cache="paged", num_return_sequences=3))
    assert several.total_bytes >= 3 * 64 * 131_072
