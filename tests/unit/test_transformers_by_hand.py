"""transformers: the release that each rule and model came with, and bytes worked out by hand from its cache classes."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Workload
from kvsize.engines import transformers as engine
from kvsize.engines.transformers.history import CHANGES
from kvsize.engines.transformers.versions import FIRST_RELEASE, release
from kvsize.errors import UnsupportedError
from kvsize.geometry import (
    Attention,
    Chunked,
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
