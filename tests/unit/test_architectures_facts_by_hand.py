"""What a geometry says beside its layers: sizes, context, formats, names; each read off a small config by hand."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError
from kvsize.geometry import Geometry

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}


def llama(**fields: object) -> Geometry:
    return geometry({**LLAMA, **fields})


def llava(text: dict, **outer: object) -> Geometry:
    return geometry({"model_type": "llava", "text_config": {**LLAMA, **text}, **outer})


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "size"),
    [(1, 1), (32_000, 32_000), (2**31, 2**31), (2**31 + 1, None), (0, None), (-1, None), (True, None), ("9", None)],
)
def test_sizes_within_bounds_count(given, size):
    assert llama(vocab_size=given).vocab_size == size


@pytest.mark.parametrize(
    ("text", "outer", "size"),
    [({}, {"vocab_size": 7}, 7), ({"vocab_size": 5}, {}, 5), ({"vocab_size": 5}, {"vocab_size": 7}, 5), ({}, {}, None)],
)
def test_the_text_model_s_vocabulary_comes_first(text, outer, size):
    assert llava(text, **outer).vocab_size == size


def test_names_of_sizes():
    bloom = geometry({"model_type": "bloom", "n_embed": 64, "hidden_size": 32, "n_head": 4, "n_layer": 1})
    assert (bloom.hidden_size, bloom.num_attention_heads) == (64, 4)
    bart = geometry({"model_type": "blenderbot", "d_model": 64, "decoder_attention_heads": 4})
    assert (bart.hidden_size, bart.num_attention_heads) == (64, 4)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_position_embeddings": 100, "n_positions": 50}, 100),
        ({"max_position_embeddings": 10**30, "n_positions": 50}, 50),  # tokenizers write "no limit" so
        ({"n_positions": 50}, 2048),  # the class's own default comes first
    ],
)
def test_the_longest_context(fields, tokens):
    assert llama(**fields).max_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "stated"),
    [
        ({"encoder_layers": 1}, 1),
        ({"encoder_layers": 4096}, 4096),
        ({"encoder_layers": 0}, None),
        ({"encoder_layers": True}, None),
        ({"encoder_layers": 2.0}, None),
        ({"intermediate_size": 2**31}, 2**31),
        ({"intermediate_size": 2**31 + 1}, None),
    ],
)
def test_sizes_as_stated(fields, stated):
    (key,) = fields
    assert dict(llama(**fields).stated).get(key) == stated


def test_stated_layers_are_bounded():
    with pytest.raises(ConfigError, match="at most 4096") as caught:
        llama(encoder_layers=4097)
    assert caught.value.where == "$.encoder_layers"


# -- rope scaling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({}, 1.0),
        ({"rope_scaling": None}, 1.0),
        ({"rope_scaling": "linear"}, 1.0),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 4.0),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 2.5),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4}}, 4.0),
        ({"rope_scaling": {"type": "linear", "factor": 1}}, 1.0),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 1.0),
        ({"rope_scaling": {"type": "linear", "factor": 1.5}}, 1.5),
        ({"rope_scaling": {"type": "linear", "factor": 1024}}, 1024.0),
        ({"rope_scaling": {"type": "linear", "factor": 1024.5}}, 1.0),
        ({"rope_scaling": {"type": "linear", "factor": True}}, 1.0),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, 1.0),
        ({"rope_scaling": {"type": "linear"}}, 1.0),
        ({"rope_scaling": {"factor": 4}}, 1.0),  # no type means the default one
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, 1.0),  # in max_position_embeddings already
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, 1.0),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, 2.0),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"type": "linear", "factor": 4}},
            2.0,
        ),
        ({"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 4}}, 4.0),
        (
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default"},
                    "full_attention": {"rope_type": "linear", "factor": 8},
                }
            },
            8.0,
        ),
    ],
)
def test_how_far_rope_scaling_stretches_the_context(fields, factor):
    assert llama(**fields).context_factor == factor


# -- formats -----------------------------------------------------------------------------------------------------------


def scheme(kind: str, bits: int) -> dict:
    return {"type": kind, "num_bits": bits}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("fp8", None),
        ({"kv_cache_scheme": None}, None),
        ({"kv_cache_scheme": scheme("float", 8)}, "fp8"),
        ({"kv_cache_scheme": scheme("float", 4)}, "nvfp4"),
        ({"kv_cache_scheme": scheme("float", 16)}, None),
        ({"kv_cache_scheme": scheme("int", 8)}, None),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_quant_algo": "INT8"}, None),
        ({"kv_cache_quant_algo": 8}, None),
        ({"kv_cache_scheme": scheme("int", 8), "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": scheme("float", 8)}, "fp8_e4m3"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": scheme("float", 8)}, "fp8"),
        ({"quantization": {"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo": "FP8"}, "nvfp4"),
        ({"quantization": {"quant_algo": "FP8"}, "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quantization": "fp8", "kv_cache_quant_algo": "FP8"}, "fp8"),
    ],
)
def test_the_kv_format_that_a_checkpoint_has_scales_for(given, found):
    assert llama(quantization_config=given).kv_scheme == found


@pytest.mark.parametrize(
    ("text", "outer", "dtype"),
    [
        ({"dtype": "float16"}, {"dtype": "bfloat16"}, "float16"),
        ({"torch_dtype": "float16"}, {"dtype": "bfloat16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "float16"}, {}, "float32"),
        ({}, {"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float8_e4m3fn"}, {"dtype": "bfloat16"}, "bfloat16"),  # a weight format
        ({"dtype": 16}, {}, None),
        ({}, {"quantization_config": {"quant_method": "mxfp4"}}, "bfloat16"),
        ({}, {"quantization_config": {"quant_method": "gptq"}}, None),
        ({}, {"quantization_config": "mxfp4"}, None),
    ],
)
def test_the_dtype_computed_in(text, outer, dtype):
    assert llava(text, **outer).dtype == dtype


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"mamba_ssm_dtype": "float32"}, "float32"),
        ({"mamba_ssm_dtype": "float32", "mamba_ssm_cache_dtype": "bfloat16"}, "bfloat16"),
        ({"mamba_ssm_cache_dtype": None}, None),
    ],
)
def test_the_dtype_of_states(fields, dtype):
    assert llama(**fields).state_dtype == dtype


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["LlamaForCausalLM", "Other"], "LlamaForCausalLM"),
        (["A" * 128], "A" * 128),
        (["A" * 129], None),
        (["Llama For"], None),
        ([7], None),
        ([], None),
        ("LlamaForCausalLM", None),
        (None, None),
    ],
)
def test_a_class_s_name(names, found):
    assert llama(architectures=names).architecture == found


@pytest.mark.parametrize(
    ("model_type", "nested", "found"),
    [
        ("llava", "qwen2", "qwen2"),
        ("llava", "llava_text", "llama"),  # the outer type's own name with a suffix: its class's default
        ("exaone4_5", "exaone4_5_text", "exaone4"),
        ("gemma3", "gemma2", "gemma3_text"),  # the class takes no other
    ],
)
def test_the_text_model_s_type(model_type, nested, found):
    text = {**LLAMA, "model_type": nested}
    assert geometry({"model_type": model_type, "text_config": text}).model_type == found


@pytest.mark.parametrize("nested", ["llavatext", "other_text"])
def test_a_nested_type_that_nobody_knows(nested):
    with pytest.raises(ConfigError, match="does not know the architecture"):
        llava({"model_type": nested})


@pytest.mark.parametrize("nested", [7, None, ["llama"]])
def test_a_nested_type_that_is_no_name(nested):
    with pytest.raises(ConfigError, match="must be a string") as caught:
        llava({"model_type": nested})
    assert caught.value.where == "$.text_config.model_type"
