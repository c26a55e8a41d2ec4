"""What all engines share: the workload, the answer, the table of engines and the way settings reach them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest

from kvsize.cli.engine_flags import FLAGS
from kvsize.engines import ENGINES, CacheSize, LayerBytes, Overhead, Workload, engine_options, load_engine
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import Attention, Geometry, Heads, Latent, Layer

LLAMA = Geometry(
    "llama",
    (Layer((Attention(Heads(8, 128, 128)),)),) * 4,
    num_attention_heads=8,
    dtype="bfloat16",
    architecture="LlamaForCausalLM",
)
BYTES_PER_TOKEN = 4 * 2 * 8 * 128 * 2


# -- the workload ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": 0}, "--ctx must be at least 1 token"),
        ({"tokens": -5}, "--ctx must be at least 1 token"),
        ({"tokens": 1, "sequences": 0}, "--batch must be at least 1 sequence"),
        ({"tokens": 1, "encoder_tokens": -1}, "--encoder-ctx must not be negative"),
    ],
)
def test_a_workload_that_means_nothing_is_refused(values, message):
    with pytest.raises(UsageError, match=message) as caught:
        Workload(**values)
    assert caught.value.got == str(list(values.values())[-1])


def test_a_workload_on_its_bounds():
    assert Workload(1, 1, encoder_tokens=0).encoder_tokens == 0
    assert Workload(10**12).tokens == 10**12


# -- the answer --------------------------------------------------------------------------------------------------------

SIZE = CacheSize(
    engine="e",
    version="1",
    cache="c",
    k_format="f",
    v_format="f",
    layers=(LayerBytes(1, 20, 300, host=5), LayerBytes(2, 30, 100), LayerBytes()),
    overheads=(Overhead("trash page", 4000), Overhead("scales", 50_000)),
    transient_bytes=600_000,
)


def test_totals_are_sums_of_parts():
    assert SIZE.overhead_bytes == 54_000
    assert SIZE.logical_bytes == 3 + 54_000
    assert SIZE.total_bytes == 50 + 54_000
    assert SIZE.after_prefill_bytes == 400 + 54_000
    assert SIZE.host_bytes == 5


def test_the_peak_is_the_larger_moment_and_what_passes():
    assert SIZE.peak_bytes == 400 + 54_000 + 600_000
    steady = replace(SIZE, layers=(LayerBytes(1, 500, 100),))
    assert steady.peak_bytes == 500 + 54_000 + 600_000


def test_an_empty_cache_takes_nothing():
    empty = replace(SIZE, layers=(), overheads=(), transient_bytes=0)
    assert [empty.total_bytes, empty.logical_bytes, empty.after_prefill_bytes, empty.peak_bytes] == [0] * 4


def test_what_an_answer_leaves_out_is_nothing():
    plain = CacheSize("e", "1", "c", "f", "f", (LayerBytes(7, 7, 7),))
    assert (Workload(10).sequences, plain.step_tokens, plain.peak_bytes) == (1, 1, 7)


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_keeps_the_interface(name):
    module = load_engine(name)
    assert is_dataclass(module.Options)
    assert module.Options.__dataclass_params__.frozen
    assert module.Options().version == module.VERSION
    size = module.size(LLAMA, Workload(4096, 2), module.Options())
    assert (size.engine, size.version) == (name, module.VERSION)
    assert len(size.layers) == len(LLAMA.layers)
    assert size.total_bytes >= 2 * 4096 * BYTES_PER_TOKEN
    assert size.step_tokens != 0


@pytest.mark.parametrize("name", ENGINES)
def test_every_setting_of_an_engine_has_a_flag(name):
    flags = {flag.field for flag in FLAGS}
    settings = {item.name for item in fields(load_engine(name).Options)} - {"version"}
    assert settings <= flags


def test_an_unknown_engine_names_the_known_ones():
    with pytest.raises(UsageError, match="unknown engine 'vlllm'") as caught:
        load_engine("vlllm")
    assert all(name in caught.value.hint for name in ENGINES)


def test_settings_reach_the_engine_and_none_is_not_given():
    options = engine_options("transformers", {"cache": "static", "num_beams": 3, "nbits": None})
    assert (options.cache, options.num_beams, options.nbits) == ("static", 3, None)


def test_an_engine_refuses_a_setting_that_it_does_not_have():
    with pytest.raises(UsageError, match="--gpu-memory-utilization-x means nothing to vllm") as caught:
        engine_options("vllm", {"gpu_memory_utilization_x": 0.9})
    assert "--block-size" in caught.value.hint


# -- found by hostile configs ------------------------------------------------------------------------------------------


def test_a_paged_cache_of_no_width_is_refused():
    """Once a division by zero: MLA without rotary part; its head_dim is qk_rope_head_dim to continuous batching."""
    entry = Latent(512, 0, Heads(64, 128, 128))
    model = Geometry("deepseek_v3", (Layer((Attention(entry),)),), num_attention_heads=64, dtype="bfloat16")
    module = load_engine("transformers")
    with pytest.raises(UnsupportedError, match="qk_rope_head_dim"):
        module.size(model, Workload(16), module.Options(cache="paged"))
