"""What each rank holds: by the tensors' names, by their sum, and what no layout can do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize.errors import ConfigError, UnsupportedError, UsageError
from kvsize.ranges import Range, exactly
from kvsize.weights import Weights, per_rank, per_stage
from kvsize.weights.facts import facts_of
from kvsize.weights.layout import Layout, partition
from kvsize.weights.safetensors import Tensor
from kvsize.weights.values import Part, parts_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTURE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 32, "head_dim": 8}
LATENT: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}


def tensor(name: str, *shape: int, width: int = 2) -> Tensor:
    size = width
    for axis in shape:
        size *= axis
    return Tensor(name, {2: "BF16", 4: "F32"}[width], shape, size)


def attention(config: dict[str, Any], at: str) -> list[Tensor]:
    h, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    d = h // heads
    if "kv_lora_rank" in config:
        rank, rope, nope, v, q = 16, 4, 8, 8, 24
        return [
            tensor(f"{at}.self_attn.q_a_proj.weight", q, h),
            tensor(f"{at}.self_attn.q_a_layernorm.weight", q),
            tensor(f"{at}.self_attn.q_b_proj.weight", heads * (nope + rope), q),
            tensor(f"{at}.self_attn.kv_a_proj_with_mqa.weight", rank + rope, h),
            tensor(f"{at}.self_attn.kv_a_layernorm.weight", rank),
            tensor(f"{at}.self_attn.kv_b_proj.weight", heads * (nope + v), rank),
            tensor(f"{at}.self_attn.o_proj.weight", h, heads * v),
        ]
    return [
        tensor(f"{at}.self_attn.q_proj.weight", heads * d, h),
        tensor(f"{at}.self_attn.k_proj.weight", kv * d, h),
        tensor(f"{at}.self_attn.v_proj.weight", kv * d, h),
        tensor(f"{at}.self_attn.o_proj.weight", h, heads * d),
    ]


def mlp(at: str, hidden: int, width: int) -> list[Tensor]:
    return [
        tensor(f"{at}.gate_proj.weight", width, hidden),
        tensor(f"{at}.up_proj.weight", width, hidden),
        tensor(f"{at}.down_proj.weight", hidden, width),
    ]


def layer(config: dict[str, Any], index: int) -> list[Tensor]:
    at, h = f"model.layers.{index}", config["hidden_size"]
    experts = config.get("num_experts") or config.get("n_routed_experts") or 0
    tensors = attention(config, at)
    tensors += [tensor(f"{at}.input_layernorm.weight", h), tensor(f"{at}.post_attention_layernorm.weight", h)]
    if experts and index >= config.get("first_k_dense_replace", 0):
        tensors.append(tensor(f"{at}.mlp.gate.weight", experts, h, width=4))
        for expert in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{expert}", h, config["moe_intermediate_size"])
        return tensors
    return tensors + mlp(f"{at}.mlp", h, config["intermediate_size"])


def checkpoint(config: dict[str, Any]) -> list[Tensor]:
    h, vocab, count = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    drafts = config.get("num_nextn_predict_layers", 0)
    tensors = [tensor("model.embed_tokens.weight", vocab, h), tensor("model.norm.weight", h)]
    if not config["tie_word_embeddings"]:
        tensors.append(tensor("lm_head.weight", vocab, h))
    for index in range(count + drafts):
        tensors += layer(config, index)
    for index in range(count, count + drafts):
        tensors.append(tensor(f"model.layers.{index}.eh_proj.weight", h, 2 * h))
        tensors.append(tensor(f"model.layers.{index}.embed_tokens.weight", vocab, h))
        tensors.append(tensor(f"model.layers.{index}.shared_head.head.weight", vocab, h))
    return tensors


def exact(tensors: list[Tensor]) -> Weights:
    found = tuple(tensors)
    return Weights(sum(t.bytes for t in found), "exact", "headers", parts_of(found), 1, tensors=found)


def summed(tensors: list[Tensor]) -> Weights:
    whole = exact(tensors)
    return Weights(whole.total_bytes, "exact", "listing", whole.parts, 1)


def held(config: dict[str, Any], **layout: Any) -> Range:
    return per_rank(exact(checkpoint(config)), config, **layout)


# -- by name -----------------------------------------------------------------------------------------------------------


def test_one_rank_holds_everything() -> None:
    assert held(LLAMA) == exactly(sum(t.bytes for t in checkpoint(LLAMA)))


def test_linear_layers_are_split_and_norms_repeated() -> None:
    norms = (2 * 4 + 1) * 64 * 2
    whole = sum(t.bytes for t in checkpoint(LLAMA))
    assert held(LLAMA, tp=2) == exactly((whole - norms) // 2 + norms)


def test_fewer_kv_heads_than_ranks_are_repeated() -> None:
    norms, keys_and_values = (2 * 4 + 1) * 64 * 2, 4 * 2 * (2 * 8) * 64 * 2
    whole = sum(t.bytes for t in checkpoint(LLAMA))
    rest = whole - norms - keys_and_values
    assert held(LLAMA, tp=8) == exactly(rest // 8 + norms + keys_and_values // 2), "one of two KV heads on each rank"


def test_fused_query_key_value() -> None:
    fused = [tensor("transformer.h.0.attn.c_attn.weight", (8 + 2 * 2) * 8, 64)]
    assert per_rank(exact(fused), LLAMA, tp=4) == exactly(fused[0].bytes * (2 + 2) // 12)


def test_down_projections_of_mla_and_routers_are_repeated() -> None:
    repeated = ("q_a_proj", "kv_a_proj", "norm", "mlp.gate.")
    main = [t for t in checkpoint(LATENT) if "layers.4." not in t.name]
    kept = sum(t.bytes for t in main if any(word in t.name for word in repeated))
    split = sum(t.bytes for t in main) - kept
    assert kept > 4 * 64 * (24 + 20) * 2
    assert held(LATENT, tp=8) == exactly(split // 8 + kept)


def test_draft_layers_are_counted_on_demand() -> None:
    whole = sum(t.bytes for t in checkpoint(LATENT))
    draft = sum(t.bytes for t in checkpoint(LATENT) if "layers.4." in t.name)
    assert held(LATENT) == exactly(whole - draft)
    assert held(LATENT, draft=True) == exactly(whole)
    named = [*checkpoint(LLAMA), tensor("mtp.layers.0.mlp.up_proj.weight", 128, 64)]
    assert per_rank(exact(named), LLAMA) == held(LLAMA)


def test_experts_are_dealt_whole() -> None:
    experts = sum(t.bytes for t in checkpoint(MIXTURE) if ".experts." in t.name)
    assert held(MIXTURE, tp=2, ep=2) == held(MIXTURE, tp=2)
    assert held(MIXTURE, ep=8).high == held(MIXTURE).high - experts * 7 // 8
    three = held(MIXTURE, ep=3).high
    assert three == held(MIXTURE).high - experts * 5 // 8, "three of eight experts on the fullest rank"


def test_the_vocabulary_is_padded() -> None:
    odd = {**LLAMA, "vocab_size": 50257}
    table = [tensor("model.embed_tokens.weight", 50257, 64)]
    assert per_rank(exact(table), odd, tp=2) == Range(-(-50257 * 128 // 2), 50304 * 128 // 2)
    assert per_rank(exact(table), {**odd, "num_attention_heads": 6, "num_key_value_heads": 6}, tp=3).high == 16768 * 128


def test_a_tied_head_is_loaded_once() -> None:
    tied = {**LLAMA, "tie_word_embeddings": True}
    stored_twice = checkpoint(LLAMA)
    assert per_rank(exact(stored_twice), tied) == held(tied)
    unsaid = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert per_rank(exact(checkpoint(tied)), unsaid, pp=2) == held(tied, pp=2)


def test_what_no_rule_knows_is_a_range() -> None:
    odd = [tensor("model.layers.0.quux.weight", 64, 64), tensor("visual.blocks.0.attn.qkv.weight", 64, 64)]
    size = sum(t.bytes for t in odd)
    assert per_rank(exact(odd), LLAMA, tp=2) == Range(size // 2, size)
    bias = [tensor("model.layers.0.self_attn.o_proj.bias", 64)]
    assert per_rank(exact(bias), LLAMA, tp=2) == Range(64, 128)


@pytest.mark.parametrize(
    ("layers", "stages", "parts"),
    [(32, 4, (8, 8, 8, 8)), (61, 2, (31, 30)), (61, 4, (15, 15, 16, 15)), (62, 4, (15, 16, 16, 15)), (5, 5, (1,) * 5)],
)
def test_partition_like_vllm(layers: int, stages: int, parts: tuple[int, ...]) -> None:
    assert partition(layers, Layout(pipeline=stages)) == parts


def test_stages_hold_their_layers_and_the_ends_the_vocabulary() -> None:
    first, last = per_stage(exact(checkpoint(LLAMA)), LLAMA, pp=2)
    one = sum(t.bytes for t in layer(LLAMA, 0))
    table = 256 * 64 * 2
    assert (first, last) == (exactly(2 * one + table), exactly(2 * one + table + 128))
    tied = {**LLAMA, "tie_word_embeddings": True}
    assert per_stage(exact(checkpoint(tied)), tied, pp=2)[1] == last, "a tied table lies on both ends"
    assert per_rank(exact(checkpoint(LLAMA)), LLAMA, pp=2) == last


# -- by the sum --------------------------------------------------------------------------------------------------------

LAYOUTS = st.fixed_dictionaries(
    {"tp": st.sampled_from([1, 2, 4, 8]), "pp": st.sampled_from([1, 2, 3, 4]), "ep": st.sampled_from([1, 2, 3, 8, 16])}
)
CONFIGS = st.builds(
    lambda base, vocab, layers, tied, unsaid: {
        **{key: value for key, value in base.items() if not (unsaid and key == "tie_word_embeddings")},
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        **({} if unsaid else {"tie_word_embeddings": tied}),
    },
    st.sampled_from([LLAMA, MIXTURE, LATENT]),
    st.sampled_from([64, 250, 1024]),
    st.integers(4, 9),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(CONFIGS, LAYOUTS)
def test_the_sum_gives_a_range_around_what_the_names_give(config: dict[str, Any], layout: dict[str, int]) -> None:
    tensors = checkpoint({"tie_word_embeddings": False, **config})
    by_name = per_stage(exact(tensors), config, **layout)
    by_sum = per_stage(summed(tensors), config, **layout)
    assert len(by_name) == len(by_sum) == layout["pp"]
    for known, bounds in zip(by_name, by_sum, strict=True):
        assert bounds.low <= known.low <= known.high <= bounds.high


@settings(max_examples=100, deadline=None)
@given(CONFIGS, LAYOUTS)
def test_more_ranks_never_hold_more(config: dict[str, Any], layout: dict[str, int]) -> None:
    weights = exact(checkpoint({"tie_word_embeddings": False, **config}))
    alone = per_rank(weights, config)
    assert per_rank(weights, config, **layout).high <= alone.high
    ranks = layout["tp"] * layout["pp"] * layout["ep"]
    assert per_rank(weights, config, **layout).high * ranks >= alone.low


def test_dense_models_are_known_to_a_thousandth() -> None:
    """Llama-3.1-8B by its published sum: what is repeated is norms."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }
    weights = Weights(16_060_522_496, "derived", "recorded")
    assert per_rank(weights, config) == exactly(16_060_522_496)
    for ranks in (2, 4, 8):
        bounds = per_rank(weights, config, tp=ranks)
        assert 0 <= bounds.width < bounds.low // 500
        assert bounds.low == -(-16_060_522_496 // ranks)


def test_quantised_latents_may_be_unpacked_once_more() -> None:
    quantised = {**LATENT, "quantization_config": {"quant_method": "fp8"}}
    plain = per_rank(exact(checkpoint(LATENT)), LATENT)
    more = per_rank(exact(checkpoint(LATENT)), quantised)
    assert more == Range(plain.low, plain.high + 4 * 16 * 8 * (8 + 8) * 2)


def test_mxfp4_experts_may_be_padded() -> None:
    """gpt-oss-20b: 12.82 GiB stored, of which vLLM 0.19 made 13.72 on an A100."""
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    weights = Weights(13_761_300_984, "derived", "recorded")
    bounds = per_rank(weights, config)
    padding = 24 * 32 * 3 * (2944 * 3072 - 2880 * 2880) * 17 // 32
    assert bounds == Range(13_761_300_984, 13_761_300_984 + padding)
    assert 13.6 < bounds.high / 2**30 < 13.8


def test_encoders_of_images_may_be_repeated() -> None:
    config = {
        "model_type": "gemma3",
        "text_config": {**LLAMA, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 8},
        "vision_config": {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32},
    }
    weights = Weights(10**6, "derived", "recorded")
    tower = 3 * 2 * 16 * (4 * 16 + 3 * 32) + 2 * 64 * (8 * 16 + 2 * 64)
    assert facts_of(config).towers == tower
    assert per_rank(weights, config, tp=2).high >= 500_000 + tower // 2
    assert facts_of({**config, "vision_config": {}}).towers > tower, "of unknown size"
    assert facts_of(LLAMA).towers == 0


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 3}, "8 attention heads cannot be split over 3 ranks"),
        ({"tp": 16}, "8 attention heads"),
        ({"pp": 5}, "4 layers make no 5 stages"),
    ],
)
def test_layouts_that_vllm_refuses(layout: dict[str, int], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        held(LLAMA, **layout)


def test_kv_heads_that_cannot_be_dealt() -> None:
    config = {**LLAMA, "num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 96}
    with pytest.raises(UnsupportedError, match="4 KV heads can be neither split over 6 ranks"):
        held(config, tp=6)


@pytest.mark.parametrize("layout", [{"tp": 0}, {"pp": -1}, {"ep": 0}])
def test_no_ranks(layout: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1 rank"):
        held(LLAMA, **layout)


def test_stated_weights_need_no_config() -> None:
    assert per_rank(Weights(15, "assumed", "as given"), {}) == exactly(15)
    with pytest.raises(ConfigError):
        per_rank(Weights(15, "assumed", "as given"), {}, tp=2)


def test_tables_are_loaded_like_the_rest() -> None:
    """A float32 config of a checkpoint that is loaded as 16 bits: its two tables were more than all of the weights."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 1280,
        "dtype": "float32",
        "tie_word_embeddings": False,
    }
    table, body = 2 * 1280 * 64, 400_000
    total = 2 * table + body
    weights = Weights(total, "derived", "listed", (Part("BF16", total // 2, total),))
    first, last = per_stage(weights, config, pp=2)
    norms = 16 * 64
    assert first.low == last.low == (body - norms) // 2 + table
    assert last.high == body // 2 + table + norms
    unknown = Weights(200_000, "derived", "recorded")
    assert all(stage.low <= stage.high <= 200_000 for stage in per_stage(unknown, config, pp=2))
