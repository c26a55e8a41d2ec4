"""Layer types, windows and heads of plain attention, worked out from the config classes of transformers@5.23.0."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError
from kvsize.geometry import Chunked, Full, Heads, Layer, Sliding

SMALL = {"hidden_size": 512, "num_attention_heads": 8}


def layers(model_type: str, **fields: object) -> tuple[Layer, ...]:
    return geometry({"model_type": model_type, **fields}).layers


def kinds(model_type: str, count: int, **fields: object) -> str:
    found = layers(model_type, num_hidden_layers=count, **fields)
    assert all(isinstance(layer.stores[0].span, SPANS[layer.kind]) for layer in found)
    return "".join(layer.kind[0] for layer in found)


SPANS = {"full_attention": Full, "sliding_attention": Sliding, "chunked_attention": Chunked}

WINDOWS = {"use_sliding_window": True, "sliding_window": 64}


@pytest.mark.parametrize(
    ("model_type", "count", "fields", "letters"),
    [
        # configuration_qwen2.py, configuration_qwen3.py: from max_window_layers on
        ("qwen2", 4, {**WINDOWS, "max_window_layers": 0}, "ssss"),
        ("qwen2", 4, {**WINDOWS, "max_window_layers": 4}, "ffff"),
        ("qwen3", 4, {**WINDOWS, "max_window_layers": 3}, "fffs"),
        ("qwen3", 4, {**WINDOWS, "max_window_layers": 4, "sliding_window": 0}, "ffff"),
        ("qwen2", 4, {**WINDOWS, "max_window_layers": 0, "sliding_window": None}, "ffff"),
        # configuration_dots1.py: the same without a switch; the class has max_window_layers 62
        ("dots1", 4, {"max_window_layers": 0}, "ssss"),
        ("dots1", 4, {"max_window_layers": 2}, "ffss"),
        ("dots1", 4, {"max_window_layers": 2, "sliding_window": None}, "ffff"),
        ("dots1", 63, {}, "f" * 62 + "s"),
        # configuration_qwen2_moe.py: every other layer below max_window_layers
        ("qwen2_moe", 6, {**WINDOWS, "max_window_layers": 0}, "ffffff"),
        ("qwen2_moe", 6, {**WINDOWS, "max_window_layers": 4}, "sfsfff"),
        ("qwen2_moe", 6, {**WINDOWS, "max_window_layers": 5}, "sfsfsf"),
        ("qwen2_moe", 6, {**WINDOWS, "max_window_layers": 4, "use_sliding_window": False}, "ffffff"),
        ("qwen3_moe", 3, WINDOWS, "sss"),
        ("qwen3_moe", 3, {**WINDOWS, "use_sliding_window": False}, "fff"),
        # configuration_smollm3.py: the layers without rotary embedding, each fourth
        ("smollm3", 5, WINDOWS, "fffsf"),
        ("smollm3", 5, {**WINDOWS, "no_rope_layer_interval": 2}, "fsfsf"),
        ("smollm3", 3, {**WINDOWS, "no_rope_layers": [0, 1, 0]}, "sfs"),
        ("smollm3", 5, {**WINDOWS, "sliding_window": None}, "fffff"),
        ("llama4_text", 3, {"no_rope_layers": [0, 1, 0]}, "fcf"),
        # configuration_exaone4.py: each fourth is full; a null pattern counts as none given
        ("exaone4", 5, {"sliding_window": None}, "fffff"),
        ("exaone4", 5, {}, "sssfs"),
        ("exaone4", 5, {"sliding_window_pattern": None}, "sssfs"),
        ("exaone4", 5, {"sliding_window_pattern": "LG"}, "sfsfs"),
        # configuration_cohere2_moe.py: a pattern of its own for the dense prefix
        ("cohere2_moe", 5, {}, "sssfs"),
        ("cohere2_moe", 5, {"first_k_dense_replace": 0}, "sssfs"),
        ("cohere2_moe", 5, {"first_k_dense_replace": 1}, "fsssf"),
        ("cohere2_moe", 8, {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 3}, "ssfsssfs"),
        ("cohere2_moe", 4, {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 3}, "ssss"),
        ("cohere2_moe", 4, {"sliding_window_pattern": 2}, "sfsf"),
        # periods that the classes have no field for
        ("cohere2", 5, {}, "sssfs"),
        ("gemma2", 3, {}, "sfs"),
        ("gemma3n_text", 6, {"num_kv_shared_layers": 0}, "ssssfs"),
        ("gpt_oss", 3, {}, "sfs"),
        ("olmo3", 5, {"sliding_window": 64}, "sssfs"),
        ("vaultgemma", 3, {}, "sfs"),
        ("afmoe", 5, {}, "sssfs"),
        ("afmoe", 5, {"global_attn_every_n_layers": None}, "sssfs"),
        ("beam", 8, {}, "sssssfsf"),
        ("cwm", 6, {}, "fsssfs"),
        ("granite_swa", 6, {}, "fsssfs"),
        ("granitemoe_swa", 6, {}, "fsssfs"),
        ("kolibri1", 6, {}, "ssssfs"),
        ("muse_glimmer_text", 6, {}, "sfsssf"),
        ("muse_spark_text", 6, {}, "sfsssf"),
        ("flint", 9, {}, "ffsssfssf"),
        ("mimo_v2_flash", 8, {}, "fssssfss"),
        ("exaone_moe", 5, {}, "sssfs"),
        # one window, or one chunk size, for all
        ("ministral", 3, {"sliding_window": 32}, "sss"),
        ("ministral", 3, {"sliding_window": None}, "fff"),
        ("llama", 3, {**SMALL, "attention_chunk_size": 16}, "ccc"),
        ("llama", 3, {**SMALL, "sliding_window": 16, "attention_chunk_size": 16}, "sss"),
    ],
)
def test_kinds_of_layers(model_type, count, fields, letters):
    assert kinds(model_type, count, **fields) == letters


@pytest.mark.parametrize(
    ("model_type", "fields", "where"),
    [
        ("cohere2_moe", {"sliding_window_pattern": None}, "$.sliding_window_pattern"),
        ("cohere2_moe", {"prefix_dense_sliding_window_pattern": None}, "$.prefix_dense_sliding_window_pattern"),
        ("cohere2_moe", {"first_k_dense_replace": -1}, "$.first_k_dense_replace"),
        ("modernbert-decoder", {"local_attention": 1}, "$.local_attention"),
        ("hrm_text", {"num_hidden_layers": 683, "H_cycles": 3, "L_cycles": 1}, "$.H_cycles"),
        ("dots1", {"max_window_layers": -1}, "$.max_window_layers"),
        ("exaone4", {"sliding_window_pattern": ""}, "$.sliding_window_pattern"),
    ],
)
def test_what_the_classes_refuse_is_refused(model_type, fields, where):
    with pytest.raises(ConfigError) as caught:
        layers(model_type, **fields)
    assert caught.value.where == where


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "fields", "window"),
    [
        ("modernbert-decoder", {}, 64),  # half of local_attention's 128
        ("modernbert-decoder", {"local_attention": 2}, 1),
        ("modernbert-decoder", {"local_attention": 7}, 3),
        ("modernbert-decoder", {"sliding_window": 100}, 100),
        ("mimo_v2_flash", {"sliding_window": 64}, 64),
        ("mimo_v2_flash", {"sliding_window_size": 64}, 65),
        ("gemma4_text", {"sliding_window": 512, "use_bidirectional_attention": "vision"}, 512),
        ("gemma4_text", {"sliding_window": 512, "use_bidirectional_attention": "all"}, 257),
        ("gemma4_text", {"sliding_window": 513, "use_bidirectional_attention": "all"}, 257),
    ],
)
def test_windows(model_type, fields, window):
    assert {layer.stores[0].span for layer in layers(model_type, **fields)} == {Full(), Sliding(window)}


@pytest.mark.parametrize(("fields", "letters"), [({}, "fssfs"), ({"global_attn_every_n_layers": 2}, "fsfsf")])
def test_modernbert_s_global_layers(fields, letters):
    assert kinds("modernbert-decoder", 5, **fields) == letters


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "fields", "full"),
    [
        ("gemma4_text", {}, Heads(4, 512, 512)),
        ("gemma4_text", {"global_head_dim": 128}, Heads(4, 128, 128)),
        ("gemma4_text", {"num_global_key_value_heads": 2}, Heads(4, 512, 512)),  # only where K is V
        ("gemma4_text", {"num_global_key_value_heads": 2, "attention_k_eq_v": True}, Heads(2, 512, 512)),
        ("gemma4_text", {"attention_k_eq_v": True}, Heads(4, 512, 512)),
        ("diffusion_gemma_text", {"num_global_key_value_heads": 2}, Heads(2, 512, 512)),  # has no such switch
    ],
)
def test_gemma_4_s_full_layers(model_type, fields, full):
    found = layers(model_type, num_hidden_layers=6, **fields)
    assert [layer.stores[0].entry for layer in found] == [Heads(4, 256, 256)] * 5 + [full]


def test_gemma_4_s_last_layer_is_full_and_the_last_ones_share():
    found = layers("gemma4_text", num_hidden_layers=8, num_kv_shared_layers=2)
    assert "".join(layer.kind[0] for layer in found) == "sssssfsf"
    assert [layer.shares for layer in found] == [None] * 6 + [4, 5]


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 1), ({"attn_config": None}, 1), ({"attn_config": {}}, 1), ({"attn_config": {"kv_n_heads": 8}}, 8)],
)
def test_dbrx_has_one_kv_head_unless_told(fields, count):
    assert layers("dbrx", n_layers=2, **fields)[1].stores[0].entry == Heads(count, 128, 128)


@pytest.mark.parametrize(
    ("fields", "full", "sliding"),
    [
        ({"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128}, Heads(4, 192, 128), Heads(8, 192, 128)),
        (
            {"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "swa_num_key_value_heads": 2},
            Heads(4, 192, 128),
            Heads(2, 192, 128),
        ),
        (
            {"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "swa_head_dim": 96, "swa_v_head_dim": 64},
            Heads(4, 192, 128),
            Heads(8, 96, 64),
        ),
    ],
)
def test_mimo_s_sliding_heads(fields, full, sliding):
    found = layers("mimo_v2_flash", num_hidden_layers=2, **fields)
    assert [layer.stores[0].entry for layer in found] == [full, sliding]


@pytest.mark.parametrize(
    ("model_type", "fields", "entry"),
    [
        ("gpt2", {"n_embd": 96, "n_head": 4, "head_dim": 8, "num_key_value_heads": 2}, Heads(4, 24, 24)),  # strays
        ("opt", {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 8}, Heads(4, 24, 24)),
        ("llama", {**SMALL, "head_dim": 8, "num_key_value_heads": 2}, Heads(2, 8, 8)),
        ("falcon", {**SMALL, "new_decoder_architecture": True}, Heads(8, 64, 64, broadcast=8)),
        ("falcon", {**SMALL, "multi_query": False, "num_kv_heads": 2}, Heads(8, 64, 64)),
        ("RefinedWeb", {**SMALL, "n_layer": 1, "n_head": 8, "n_head_kv": 2, "new_decoder_architecture": True},
         Heads(2, 64, 64, broadcast=8)),
    ],
)  # fmt: skip
def test_keys_that_the_code_reads(model_type, fields, entry):
    assert layers(model_type, **fields)[0].stores[0].entry == entry


def test_a_feed_forward_layer_keeps_nothing():
    kinds = ["mlp", "full_attention", "moe"]
    found = layers("llama", **SMALL, num_hidden_layers=3, layer_types=kinds)
    assert [(layer.kind, len(layer.stores)) for layer in found] == [("mlp", 0), ("full_attention", 1), ("moe", 0)]


# -- counts of layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 128),  # 16 layers x 2 H cycles x (3 L cycles + 1)
        ({"num_hidden_layers": 2, "H_cycles": 3, "L_cycles": 1}, 12),
        ({"num_hidden_layers": 1024, "H_cycles": 2, "L_cycles": 1}, 4096),
        ({"num_hidden_layers": 12, "num_layers_per_stack": 2}, 12),  # as saved: multiplied already
    ],
)
def test_hrm_keeps_one_cache_a_pass(fields, count):
    assert len(layers("hrm_text", **fields)) == count


@pytest.mark.parametrize("model_type", ["openai-gpt", "xlm"])
def test_models_that_keep_nothing(model_type):
    assert layers(model_type, n_layer=3, n_layers=3) == (Layer(kind="no_cache"),) * 3


STEP = {"num_hidden_layers": 3, "sliding_window": 64}


@pytest.mark.parametrize(
    ("listed", "letters"),
    [
        (["full_attention", "sliding_attention", "full_attention"], "fsf"),
        (["full_attention", "sliding_attention"] * 3, "fsf"),  # three more for the MTP layers
        (["attention"] * 3, "fff"),  # an older name
        (None, "fff"),
    ],
)
def test_step_s_list_may_run_on(listed, letters):
    assert "".join(layer.kind[0] for layer in layers("step3p5", **STEP, layer_types=listed)) == letters


def test_step_s_list_may_not_be_short():
    with pytest.raises(ConfigError, match="has 2 entries, num_hidden_layers says 3"):
        layers("step3p5", **STEP, layer_types=["full_attention"] * 2)
