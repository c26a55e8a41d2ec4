"""One config object read as its class would: names, nulls, defaults, nesting, and messages that name the field."""

import json

import pytest

from kvsize.architectures import geometry
from kvsize.config import layer_overrides, open_config, text_config
from kvsize.errors import ConfigError, UnknownArchitectureError
from kvsize.jsonfile import parse

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3}


def view(**raw):
    return text_config(open_config(raw))


def store(raw):
    return geometry(raw).layers[0].stores[0]


# -- names and nulls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("n_layer", "n_head", "n_embd"), ("num_hidden_layers", "num_attention_heads", "hidden_size")]
)
def test_a_class_is_read_under_its_own_names_and_the_standard_ones(names):
    cfg = view(model_type="gpt2", **dict(zip(names, (3, 4, 64), strict=True)))
    assert [cfg.need(key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")] == [3, 4, 64]


def test_reads_say_where_a_value_came_from():
    cfg = view(model_type="gpt2", n_layer=3, n_head=4)
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        cfg.need(key)
    assert [str(read) for read in cfg.reads.values()] == [
        "$.n_layer = 3 (alias)",
        "$.n_head = 4 (alias)",
        "$.n_embd = 768 (class default)",
    ]


def test_a_conflict_names_both_fields():
    with pytest.raises(ConfigError) as caught:
        geometry({"model_type": "gpt2", "n_layer": 3, "num_hidden_layers": 4})
    assert "n_layer and num_hidden_layers name the same thing and disagree" in str(caught.value)
    assert caught.value.got == "3 and 4"


def test_one_fact_twice_is_no_conflict():
    assert view(model_type="gpt2", n_layer=3, num_hidden_layers=3).need("num_hidden_layers") == 3


@pytest.mark.parametrize(
    "given", [{"n_layer": None, "num_hidden_layers": 4}, {"n_layer": 4, "num_hidden_layers": None}]
)
def test_a_null_beside_a_value_says_nothing(given):
    assert view(model_type="gpt2", **given).need("num_hidden_layers") == 4


def test_a_null_overrides_a_class_default():
    assert view(model_type="mistral").maybe("sliding_window") == 4096
    assert view(model_type="mistral", sliding_window=None).maybe("sliding_window") is None


def test_null_heads_mean_one_for_each_query_head():
    assert store({**LLAMA, "num_key_value_heads": None, "head_dim": None}).entry.count == 8


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["8", 8.5, True, [8], {"a": 8}, float("nan"), float("inf"), -8, 0, 2**40])
def test_a_number_of_the_wrong_kind_is_refused_with_its_path(value):
    with pytest.raises(ConfigError) as caught:
        geometry({**LLAMA, "num_key_value_heads": value})
    assert caught.value.where == "$.num_key_value_heads"
    assert caught.value.exit_code == 4


def test_a_whole_float_is_a_number():
    assert store({**LLAMA, "num_key_value_heads": 2.0}).entry.count == 2


def test_infinity_and_nan_elsewhere_do_not_matter():
    raw = parse(json.dumps({**LLAMA, "rope_theta": float("inf"), "router_coef": float("nan")}).encode(), "config.json")
    assert len(geometry(raw).layers) == 3


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),
        ({"torch_dtype": "float8_e4m3fn"}, None),
        ({}, None),
    ],
)
def test_the_compute_dtype(given, dtype):
    assert geometry({**LLAMA, **given}).dtype == dtype


# -- nesting -----------------------------------------------------------------------------------------------------------


def test_a_nested_config_is_found_and_its_paths_are_full():
    with pytest.raises(ConfigError) as caught:
        geometry({"model_type": "gemma3", "text_config": {"num_hidden_layers": "many"}})
    assert caught.value.where == "$.text_config.num_hidden_layers"


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_other_names_of_the_text_config(name):
    assert len(geometry({"model_type": "llava", name: {**LLAMA, "num_hidden_layers": 5}}).layers) == 5


def test_an_outer_class_has_defaults_of_its_own_for_an_absent_text_config():
    found = geometry({"model_type": "paligemma"})  # 18 layers of one head, where gemma's own default is 28 of 16
    assert (len(found.layers), found.layers[0].stores[0].entry.count) == (18, 1)
    assert "the config has no text_config" in found.notes[0]


def test_text_keys_that_lie_flat_in_the_outer_config():
    flat = {"model_type": "qwen2_vl", "num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8}
    assert len(geometry(flat).layers) == 3


def test_a_text_config_that_is_no_object():
    with pytest.raises(ConfigError, match="must be an object"):
        geometry({"model_type": "gemma3", "text_config": "gemma"})


@pytest.mark.parametrize("raw", [{}, {"model_type": None}, {"model_type": 7}, {"model_type": ["llama"]}])
def test_a_config_without_a_type(raw):
    with pytest.raises(ConfigError) as caught:
        geometry(raw)
    assert caught.value.where == "$.model_type"


def test_an_unknown_type_shows_what_was_seen_and_what_is_near():
    with pytest.raises(UnknownArchitectureError) as caught:
        geometry({"model_type": "llamas2", "num_hidden_layers": 4, "ssm_state_size": 16})
    assert "num_hidden_layers 4, ssm_state_size 16" in str(caught.value)
    assert "Nearest known: llama" in str(caught.value)
    assert "--probe" in str(caught.value)


# -- per_layer_config --------------------------------------------------------------------------------------------------


def test_layers_with_sizes_of_their_own():
    heads = {"2": {"num_key_value_heads": 1}, "00": {"num_key_value_heads": 2, "head_dim": 32}}
    found = geometry({**LLAMA, "per_layer_config": heads})
    entries = [layer.stores[0].entry for layer in found.layers]
    assert [(entry.count, entry.k_dim) for entry in entries] == [(2, 32), (8, 64), (1, 64)]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"3": {"head_dim": 32}}, "$.per_layer_config.3"),
        ({"one": {"head_dim": 32}}, "$.per_layer_config.one"),
        ({"-1": {"head_dim": 32}}, "$.per_layer_config.-1"),
        ({"1": 32}, "$.per_layer_config.1"),
        ([{"head_dim": 32}], "$.per_layer_config"),
        ({"1": {"skip": ["attention"]}}, "$.per_layer_config.1"),
        ({"1": {"head_dim": "wide"}}, "$.head_dim"),
    ],
)
def test_overrides_that_fit_no_layer_are_refused(given, where):
    with pytest.raises(ConfigError) as caught:
        geometry({**LLAMA, "per_layer_config": given})
    assert caught.value.where == where


def test_overrides_are_bounded():
    many = {str(index): {"head_dim": index + 1} for index in range(4096)}
    with pytest.raises(ConfigError, match="at most 32 different entries"):
        layer_overrides(view(**{**LLAMA, "num_hidden_layers": 4096, "per_layer_config": many}))
