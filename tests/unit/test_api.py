"""The library's three calls, as its docstring and README show them."""

from __future__ import annotations

import json
import re

import pytest

import kvsize
from kvsize.errors import ConfigError, SourceError, UnknownArchitectureError, UnsupportedError, UsageError

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def llama():
    return kvsize.load(LLAMA)


def test_the_docstring_says_the_truth():
    """Each line that ends in a comment gives what it says."""
    lines = [line.split("#") for line in kvsize.__doc__.splitlines() if re.search(r"# +\w+$", line)]
    assert len(lines) == 2
    geometry = kvsize.load(LLAMA)
    for expression, said in lines:
        assert str(eval(expression, {"kvsize": kvsize, "geometry": geometry})) == said.strip()


def test_load_gives_a_geometry(llama):
    assert isinstance(llama, kvsize.Geometry)
    assert (llama.model_type, len(llama.layers), llama.max_tokens, llama.dtype) == ("llama", 32, 131_072, "bfloat16")


def test_a_folder_and_a_file_load_too(tmp_path, llama):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 8}))
    assert kvsize.load(str(tmp_path)).layers == kvsize.load(str(tmp_path / "config.json")).layers == llama.layers


def test_size_gives_bytes(llama):
    size = kvsize.size(llama, 32_768)
    assert isinstance(size, kvsize.CacheSize)
    assert size.total_bytes == 4_294_967_296
    assert (size.engine, size.cache, size.k_format) == ("transformers", "dynamic", "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        ({"sequences": 4}, 4 * 4_294_967_296),
        ({"kv_format": "float32"}, 2 * 4_294_967_296),
        ({"kv_format": "fp8"}, 4_294_967_296 // 2),
        ({"cache": "static", "max_cache_len": 65_536}, 2 * 4_294_967_296),
        ({"num_beams": 3}, 3 * 4_294_967_296),
        ({"engine": "transformers@5.13.1"}, 4_294_967_296),
    ],
)
def test_settings(llama, arguments, total):
    assert kvsize.size(llama, 32_768, **arguments).total_bytes == total


def test_the_version_is_part_of_the_answer(llama):
    assert kvsize.size(llama, 16, engine="transformers@5.13.1").version == "5.13.1"
    old, new = (
        kvsize.size(kvsize.load("deepseek-ai/DeepSeek-V3"), 32_768, engine=f"transformers@{version}").total_bytes
        for version in ("5.13.1", "5.23.0")
    )
    assert old == 61 * 128 * (192 + 128) * 2 * 32_768
    assert new == 61 * (512 + 64) * 2 * 32_768  # 71 times less


def test_k_and_v_may_differ_where_the_engine_can(llama):
    assert kvsize.size(llama, 512, engine="llama.cpp", kv_format="q8_0", v_format="f16").v_format == "float16"
    with pytest.raises(UnsupportedError, match="K and V in one format"):
        kvsize.size(llama, 512, kv_format="float16", v_format="float32")


def test_encoder_tokens_are_counted_only_when_given():
    whisper = kvsize.load("openai/whisper-large-v3")
    none, some = (kvsize.size(whisper, 448, encoder_tokens=count) for count in (None, 1500))
    assert some.total_bytes - none.total_bytes == 32 * 1500 * 2 * 1280 * 2
    assert "encoder" in " ".join(none.notes)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda llama: kvsize.size(llama, 0), UsageError),
        (lambda llama: kvsize.size(llama, 16, engine="exllama"), UsageError),
        (lambda llama: kvsize.size(llama, 16, kv_format="int5"), UsageError),
        (lambda llama: kvsize.size(llama, 16, colour="red"), UsageError),
        (lambda llama: kvsize.size(llama, 16, engine="transformers@4.57"), UnsupportedError),
        (lambda _: kvsize.load("org/not-in-the-catalogue", offline=True), SourceError),
    ],
)
def test_errors_are_of_one_family(llama, call, error):
    with pytest.raises(error) as caught:
        call(llama)
    assert isinstance(caught.value, kvsize.KvsizeError)


@pytest.mark.parametrize(
    ("config", "error"),
    [({"model_type": "llamma"}, UnknownArchitectureError), ({"model_type": "mistral", "head_dim": -1}, ConfigError)],
)
def test_configs_that_do_not_add_up(tmp_path, config, error):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error):
        kvsize.load(str(tmp_path))


# -- fit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "arguments", "verdict"),
    [
        ("h100", {}, "fits"),
        ("h100", {"sequences": 400}, "does_not_fit"),
        ("24GiB", {"sequences": 2, "kv_format": "fp8", "gpu_memory_utilization": 0.97}, "fits"),
        ("24GiB", {"overrides": {"activations": 6 * 2**30}}, "does_not_fit"),
        ("2x24GiB", {"engine": "llama.cpp", "sequences": 4}, "fits"),
        ("4xl40s", {"data_parallel": 2, "block_size": 32}, "fits"),
        ("16GiB", {"weight_bytes": 5 * 2**30}, "fits"),
    ],
)
def test_fit_judges(gpu, arguments, verdict):
    found = kvsize.fit(LLAMA, gpu, 32_768, offline=True, **arguments)
    assert found.verdict == verdict
    assert (found.headroom.low >= 0) == (verdict == "fits")


def test_fit_says_how_much_more():
    found = kvsize.fit(LLAMA, "h100", 32_768, offline=True)
    assert found.capacity.max_tokens == 131_072
    more = kvsize.fit(LLAMA, "h100", 32_768, sequences=found.capacity.max_sequences, offline=True)
    assert more.verdict == "fits"
    beyond = kvsize.fit(LLAMA, "h100", 32_768, sequences=found.capacity.max_sequences + 1, offline=True)
    assert beyond.verdict != "fits"


def test_fit_does_not_guess_weights(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = kvsize.fit(str(tmp_path), "h100", 512)
    assert (found.verdict, found.headroom, found.capacity) == ("unknown", None, None)


@pytest.mark.parametrize(("gpu", "arguments"), [("h1000", {}), ("h100", {"colour": 1}), ("h100", {"data_parallel": 2})])
def test_fit_refuses_what_means_nothing(gpu, arguments):
    with pytest.raises(UsageError):
        kvsize.fit(LLAMA, gpu, 512, offline=True, **arguments)
