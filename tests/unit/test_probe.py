"""From weighed tensors to a geometry, and what a probe says where it cannot run; no torch needed."""

import json
import sys

import pytest

from kvsize.cli import run
from kvsize.engines import Workload
from kvsize.engines.transformers import Options, size
from kvsize.errors import MissingRequirementError, UnsupportedError
from kvsize.geometry import Attention, Encoder, Full, Geometry, Heads, IndexKey, Layer, Recurrent, Sliding, State
from kvsize.real.probe import Held, HeldLayer, Weighed, measured_layers
from kvsize.real.twin import first_line, libraries

DTYPE = "bfloat16"


def held(name, *shape, dtype=DTYPE, storage=None, shown=None):
    count = 1
    for side in shape:
        count *= side
    logical = count * {"bfloat16": 2, "float32": 4, "int64": 8}[dtype] if shown is None else shown
    return Held(name, shape, dtype, logical, logical if storage is None else storage)


def keys_and_values(tokens, heads=2, k_dim=64, v_dim=64):
    return held("keys", 1, heads, tokens, k_dim), held("values", 1, heads, tokens, v_dim)


def measured(make, counts=(16, 17, 144)):
    """Geometry of the layers that `make` shows at each token count."""
    return measured_layers([Weighed(tokens, make(tokens)) for tokens in counts], DTYPE)


def layer(*tensors, part="self", index=0, kind="DynamicLayer", window=None):
    return HeldLayer(part, index, kind, window, tensors)


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_full_layers_and_layers_that_keep_nothing():
    found = measured(lambda n: (layer(*keys_and_values(n)), layer(index=1, kind="DummyLayer")))
    assert found == (Layer((Attention(Heads(2, 64, 64)),), kind="DynamicLayer"), Layer(kind="DummyLayer"))


def test_windows_are_checked_past_their_end():
    def shown(tokens):
        return (layer(*keys_and_values(min(tokens, 31)), window=32, kind="DynamicSlidingWindowLayer"),)

    assert measured(shown, (16, 17, 33))[0].stores == (Attention(Heads(2, 64, 64), Sliding(32)),)
    with pytest.raises(UnsupportedError) as caught:
        measured(lambda n: (layer(*keys_and_values(n), window=32),), (16, 17, 33))
    assert "33: 33" in str(caught.value.got)


def test_keys_and_values_of_unequal_width_and_of_one_storage():
    assert measured(lambda n: (layer(*keys_and_values(n, 1, 512, 64)),))[0].stores[0].entry == Heads(1, 512, 64)
    assert measured(lambda n: (layer(*keys_and_values(n, 1, 512, 0)),))[0].stores[0].entry == Heads(1, 512, 0)

    def one_tensor(tokens):
        return (layer(held("keys", 1, 1, tokens, 64), held("values", 1, 1, tokens, 64, shown=0)),)

    assert measured(one_tensor)[0].stores[0].entry == Heads(1, 64, 0)


def test_states_index_keys_and_positions():
    def shown(tokens):
        states = held("conv_states", 1, 96, 4), held("recurrent_states", 1, 8, 16, 16, dtype="float32")
        index = held("indexer_keys", 1, tokens, 128, dtype="float32")
        positions = held("positions", 3, 1, tokens, dtype="int64", storage=8 * tokens)
        return layer(*states), layer(*keys_and_values(tokens), index, positions, index=1)

    states, attention = measured(shown)
    recurrent = State("recurrent", (8, 16, 16), "float32")
    assert states.stores == (Recurrent("measured", (State("conv", (96, 4)), recurrent)),)
    assert attention.stores[1:] == (
        Attention(IndexKey(128), format="float32"),
        Attention(IndexKey(3), format="int64", expanded_view=True),
    )


def test_an_encoder_and_a_prompt_of_the_model_s_own():
    def shown(tokens):
        return layer(*keys_and_values(tokens + 32)), layer(*keys_and_values(50), part="cross")

    own, cross = measured(shown)[0].stores
    assert (own.span, own.extra_tokens) == (Full(), 32)
    assert cross.span == Encoder()


@pytest.mark.parametrize(
    "shape",
    [lambda n: (1, n % 4 + 1, 64), lambda n: (1, n // 4, 64), lambda n: (1, n // 128, 64), lambda n: (n, n, 64)],
    ids=["buffer", "compressed", "much compressed", "square"],
)
def test_what_grows_unevenly_is_not_generalised(shape):
    with pytest.raises(UnsupportedError, match="layer 0"):
        measured(lambda n: (layer(held("buffer", *shape(n))),))


def test_heads_that_differ_between_keys_and_values_are_not_generalised():
    with pytest.raises(UnsupportedError, match="cannot generalise"):
        measured(lambda n: (layer(held("keys", 1, 2, n, 64), held("values", 1, 4, n, 64)),))


def test_a_measured_geometry_is_sized_as_any_other():
    found = measured(lambda n: (layer(*keys_and_values(n)), layer(held("conv_states", 1, 96, 4), index=1)))
    answer = size(Geometry("acme", found), Workload(100, 2, DTYPE, DTYPE), Options())
    assert answer.total_bytes == 2 * (100 * 2 * 128 * 2 + 96 * 4 * 2)


# -- without the libraries ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def test_without_torch_the_install_line_is_named(no_torch):
    with pytest.raises(MissingRequirementError) as caught:
        libraries()
    assert caught.value.hint == "pip install 'kvsize[probe]'"


@pytest.mark.parametrize("command", [["probe", "meta-llama/Llama-3.1-8B"], ["meta-llama/Llama-3.1-8B", "--probe"]])
def test_a_command_without_torch_leaves_with_6(command, no_torch, capsys):
    assert run([*command, "--json"]) == 6
    error = json.loads(capsys.readouterr().err)
    assert (error["code"], error["hint"]) == ("missing_requirement", "pip install 'kvsize[probe]'")


def test_errors_of_other_libraries_in_one_line():
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"
    assert first_line(KeyError()) == "KeyError"
