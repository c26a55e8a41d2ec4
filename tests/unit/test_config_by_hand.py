"""The bounds of what a config may hold, key by key, and what is shown of it."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.config import ConfigView, TypeFacts, layer_overrides, open_config, text_config
from kvsize.errors import ConfigError, UnknownArchitectureError
from kvsize.geometry import Attention, Heads

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3}
FACTS = TypeFacts(fields={"n_layer": 12, "window": None}, map={"num_hidden_layers": "n_layer"})


def view(**raw: object) -> ConfigView:
    return ConfigView(raw, "$", "some", FACTS, {}, [])


def refusal(build) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build()
    return caught.value


# -- names -------------------------------------------------------------------------------------------------------------


def test_one_of_two_names_is_enough():
    assert view().declared("num_hidden_layers")
    assert view().declared("window")
    assert not view().declared("hidden_size")
    assert view(n_layer=3).given("num_hidden_layers")
    assert view(num_hidden_layers=None).given("num_hidden_layers")
    assert not view().given("num_hidden_layers")


def test_overlaid_values_take_the_mapped_name():
    assert view(n_layer=3).overlaid({"num_hidden_layers": 5}).raw == {"n_layer": 5}
    assert view(n_layer=3).overlaid({"head_dim": 5}).raw == {"n_layer": 3, "head_dim": 5}
    assert view(num_hidden_layers=3).overlaid({"num_hidden_layers": 5}).raw == {"n_layer": 5}


@pytest.mark.parametrize(
    ("model_type", "fields", "entries"),
    [
        ("step3p5", {"num_attention_groups": 4}, {Heads(4, 128, 128)}),  # was 8
        ("hunyuan_vl_text", {"attention_head_dim": 96, "num_key_value_heads": 2}, {Heads(2, 96, 96)}),  # was 128
        ("jetmoe", {"head_dim": 96, "num_key_value_heads": 2}, {Heads(2, 96, 96)}),
        ("recurrent_gemma", {"sliding_window": 7, "num_key_value_heads": 2}, {Heads(2, 256, 256)}),
    ],
)
def test_other_names_of_a_class_s_own_keys(model_type, fields, entries):
    """attribute_map leads from another name to the class's own field, or from the standard name to it."""
    stores = [store for layer in geometry({"model_type": model_type, **fields}).layers for store in layer.stores]
    assert {store.entry for store in stores if isinstance(store, Attention)} == entries


def test_other_names_of_layer_types_and_context():
    listed = {"num_hidden_layers": 2, "layers_block_type": ["attention", "mamba"]}
    found = geometry({"model_type": "granitemoehybrid", **listed}).layers
    assert [layer.kind for layer in found] == ["full_attention", "linear_attention"]  # were both recurrent
    assert geometry({"model_type": "inkling_text", "model_max_length": 777}).max_tokens == 777
    assert geometry({"model_type": "inkling_text", "max_position_embeddings": 777}).max_tokens == 777


# -- types and bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "found"), [(1, 1), (2.0, 2), (2**31, 2**31), (None, None)])
def test_whole_numbers(value, found):
    assert view(a=value).maybe("a") == found


@pytest.mark.parametrize("value", [0, -1, 2**31 + 1, 1.5, True, "1", [1], float("inf"), float("nan")])
def test_what_is_no_whole_number_within_bounds(value):
    assert refusal(lambda: view(a=value).maybe("a")).where == "$.a"


@pytest.mark.parametrize(
    ("value", "found"), [(0, 0.0), (1, 1.0), (-0.5, -0.5), (2**31 - 1, 2147483647.0), (None, None)]
)
def test_numbers(value, found):
    assert view(a=value).number("a") == found


@pytest.mark.parametrize("value", [True, "1", [1], 2**31, -(2**31), float("inf"), float("nan")])
def test_what_is_no_number(value):
    assert refusal(lambda: view(a=value).number("a")).what == "must be a number"


def test_texts_and_flags():
    assert (view(a="x").text("a"), view(a=None).text("a"), view().text("a")) == ("x", None, None)
    assert refusal(lambda: view(a=5).text("a")).what == "must be a string"
    assert (view(a=True).flag("a"), view(a=False).flag("a"), view(a=None).flag("a")) == (True, False, False)
    assert refusal(lambda: view(a=1).flag("a")).what == "must be true or false"


def test_lists():
    assert view(a=[0, 1.0]).whole_numbers("a") == (0, 1)
    assert view(a=[]).whole_numbers("a") == ()
    assert view().whole_numbers("a") is None
    assert len(view(a=[1] * 4096).whole_numbers("a")) == 4096
    assert (
        refusal(lambda: view(a=[1] * 4097).whole_numbers("a")).what == "must be a list of whole numbers of at most 4096"
    )
    assert refusal(lambda: view(a=[1, 0.5]).whole_numbers("a")).where == "$.a[1]"
    assert refusal(lambda: view(a="ab").strings("a")).where == "$.a"
    assert view(a=["x", "y"]).strings("a") == ("x", "y")


def test_one_of_several_keys():
    assert view(b=3).need_any("a", "b") == 3
    assert view(a=2, b=3).need_any("a", "b") == 2
    assert refusal(lambda: view().need_any("a", "b")).where == "$.a"


@pytest.mark.parametrize(("given", "found"), [(2, (2, 2, 2)), ([1, 2, 3], (1, 2, 3))])
def test_one_number_a_layer(given, found):
    assert view(a=given).per_layer("a", 3) == found


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ([1, 2], "$.a", "has 2 entries for 3 layers"),
        ([1, 2, 3, 4], "$.a", "has 4 entries for 3 layers"),
        ([], "$.a", "has 0 entries for 3 layers"),
        ([1, 0, 1], "$.a[1]", "between 1"),
        (0, "$.a", "between 1"),
        (None, "$.a", "missing"),
        ("123", "$.a", "a whole number"),
    ],
)
def test_lists_that_fit_no_layers(given, where, words):
    error = refusal(lambda: view(a=given).per_layer("a", 3))
    assert error.where == where
    assert words in error.what


def test_layers_are_bounded():
    assert view(n_layer=4096).layers() == 4096
    assert refusal(lambda: view(n_layer=4097).layers()).what == "must be at most 4096"


# -- per_layer_config --------------------------------------------------------------------------------------------------


def overrides(count: int, given: dict) -> list[tuple[ConfigView, frozenset[int]]]:
    return layer_overrides(text_config(open_config({**LLAMA, "num_hidden_layers": count, "per_layer_config": given})))


def test_equal_overrides_are_one_whatever_their_order():
    found = overrides(
        3, {"0": {"head_dim": 8, "num_key_value_heads": 2}, "2": {"num_key_value_heads": 2, "head_dim": 8}}
    )
    assert [indices for _, indices in found] == [{0, 2}]


@pytest.mark.parametrize(("key", "index"), [("1", 1), ("00000001", 1)])
def test_an_index_may_have_eight_digits(key, index):
    assert [indices for _, indices in overrides(2, {key: {"head_dim": 8}})] == [{index}]


@pytest.mark.parametrize("key", ["000000001", "2", "١", "1.0", ""])
def test_an_index_that_is_none(key):
    assert refusal(lambda: overrides(2, {key: {"head_dim": 8}})).where == f"$.per_layer_config.{key}"


def test_the_bound_on_overrides():
    """2**17 layers are worked out in all: 32 different overrides of 4,096 layers."""
    many = {str(index): {"head_dim": index + 1} for index in range(33)}
    assert refusal(lambda: overrides(4096, many)).what == "must be at most 32 different entries"
    del many["32"]
    assert len(overrides(4096, many)) == 32


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1, 2, 3, 4], "[1, 2, 3, 4]"),
        ([1, 2, 3, 4, 5], "[5 entries]"),
        ({"a": 1}, "{…}"),
        ("x" * 46, f'"{"x" * 46}"'),
        ("x" * 47, f'"{"x" * 44}…'),
    ],
)
def test_values_are_shown_in_at_most_48_characters(value, shown):
    seen = view(a=value)
    seen.get("a")
    assert [read.value for read in seen.reads.values()] == [shown]


@pytest.mark.parametrize(("key", "origin"), [("n_layer", "config"), ("num_hidden_layers", "alias")])
def test_where_a_value_came_from(key, origin):
    seen = view(n_layer=3)
    assert seen.get(key) == 3
    assert [read.origin for read in seen.reads.values()] == [origin]


@pytest.mark.parametrize(
    "key", ["state_size", "ssm_cfg", "d_mamba", "conv_size", "kv_lora_rank", "window_size", "linear_heads"]
)
def test_an_unknown_type_shows_the_keys_that_tell_of_its_cache(key):
    with pytest.raises(UnknownArchitectureError) as caught:
        geometry({"model_type": "zzz", "vocab_size": 9, key: 3})
    assert caught.value.hint.splitlines()[0] == f"It saw: {key} 3"


@pytest.mark.parametrize(("outer", "count"), [({}, 2), ({"num_hidden_layers": 3}, 3)])
def test_a_text_only_type_around_a_text_config(outer, count):
    """Ministral 3 is published so."""
    text = {**LLAMA, "model_type": "ministral3", "num_hidden_layers": 2}
    found = geometry({"model_type": "ministral3", "text_config": text, **outer})
    assert len(found.layers) == count


def test_an_unknown_type_shows_eight_fields_and_three_names():
    raw = {"model_type": "lama", **{f"conv_{index}": index for index in range(9)}}
    with pytest.raises(UnknownArchitectureError) as caught:
        geometry(raw)
    seen, nearest, probe = caught.value.hint.splitlines()
    assert seen == "It saw: " + ", ".join(f"conv_{index} {index}" for index in range(8))
    assert nearest.count(",") == 2
    assert nearest.startswith("Nearest known: llama, ")
    assert probe.endswith("on the meta device.")


def test_an_unknown_type_is_shown_in_64_characters():
    with pytest.raises(UnknownArchitectureError) as caught:
        geometry({"model_type": "z" * 65})
    assert f' "{"z" * 64}" yet' in caught.value.what
    assert caught.value.hint.startswith("If your transformers knows it")
