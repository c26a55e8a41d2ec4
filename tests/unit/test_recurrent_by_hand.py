"""State shapes and layer kinds of recurrent models, worked out from transformers@5.23.0's classes and caches."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, IndexKey, Latent, Layer, Recurrent, Sliding, State

MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "conv_kernel": 4, "state_size": 16, "expand": 2}
MAMBA2 = {**MAMBA, "num_heads": 4, "head_dim": 32, "n_groups": 2}
BAMBA = {"hidden_size": 64, "num_attention_heads": 8, "mamba_n_heads": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
ZAMBA = {"hidden_size": 64, "mamba_d_conv": 4, "mamba_d_state": 16}


def layers(model_type: str, **fields: object) -> tuple[Layer, ...]:
    return geometry({"model_type": model_type, **fields}).layers


KINDS = {"linear_attention", "full_attention", "sliding_attention", "indexed_attention", "hybrid", "conv", "mlp", "moe"}


def kinds(model_type: str, count: int, **fields: object) -> str:
    found = layers(model_type, num_hidden_layers=count, **fields)
    assert {layer.kind for layer in found} <= KINDS
    return "".join(layer.kind[0] for layer in found)


def states(model_type: str, index: int = 0, **fields: object) -> list[tuple[int, ...]]:
    """The shapes of one layer's states."""
    stores = layers(model_type, **fields)[index].stores
    (found,) = [store for store in stores if isinstance(store, Recurrent)]
    return [state.shape for state in found.states]


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "fields", "shapes"),
    [
        ("mamba", MAMBA, [(128, 4), (128, 16)]),
        ("mamba", {**MAMBA, "expand": 1.5}, [(96, 4), (96, 16)]),
        ("mamba", {**MAMBA, "intermediate_size": 100}, [(100, 4), (100, 16)]),
        ("mamba2", MAMBA2, [(128 + 2 * 2 * 16, 4), (4, 32, 16)]),
        ("bamba", {**BAMBA, "mamba_d_head": 4}, [(64 + 2 * 2 * 8, 4), (16, 4, 8)]),
        ("bamba", BAMBA, [(128 + 2 * 2 * 8, 4), (16, 8, 8)]),  # 2 x 64 channels over 16 heads
        ("bamba", {**BAMBA, "mamba_n_heads": 128}, [(128 + 2 * 2 * 8, 4), (128, 1, 8)]),
        ("granitemoehybrid", BAMBA, [(128 + 2 * 2 * 8, 4), (16, 8, 8)]),
        ("falcon_h1", {**BAMBA, "mamba_d_ssm": 96}, [(96 + 2 * 2 * 8, 4), (16, 6, 8)]),
        ("falcon_h1", {**BAMBA, "mamba_d_ssm": None}, [(128 + 2 * 2 * 8, 4), (16, 8, 8)]),
        ("zamba", {**ZAMBA, "n_mamba_heads": 2}, [(128, 4), (2, 64, 16)]),
        ("zamba2", {**ZAMBA, "n_mamba_heads": 4, "mamba_ngroups": 3}, [(128 + 2 * 3 * 16, 4), (4, 32, 16)]),
        ("qwen3_next", {"linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 16},
         [(2 * 2 * 16 + 8 * 128, 4), (8, 16, 128)]),
        ("olmo_hybrid", {"hidden_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
         [(2 * 2 * 24 + 4 * 48, 4), (4, 24, 48)]),
        ("olmo_hybrid", {"linear_key_head_dim": 16, "linear_value_head_dim": 8, "num_attention_heads": 4},
         [(2 * 4 * 16 + 4 * 8, 4), (4, 16, 8)]),
        ("glm5_next_text", {"linear_attn_config": {"num_heads": 2, "head_dim": 64, "short_conv_kernel_size": 3}},
         [(3 * 2 * 64, 3), (2, 64, 64)]),
        ("kimi_linear", {"linear_num_heads": 4}, [(3 * 4 * 128, 4), (4, 128, 128)]),
        ("kimi_linear", {"linear_attn_config": {"num_heads": 2, "head_dim": 64, "short_conv_kernel_size": 3}},
         [(3 * 2 * 64, 3), (2, 64, 64)]),
        ("bailing_hybrid", {"num_attention_heads": 4}, [(3 * 4 * 128, 4), (4, 128, 128)]),
        ("bailing_hybrid", {"num_attention_heads": 4, "head_dim": 64, "linear_head_dim": 32}, [(384, 4), (4, 32, 32)]),
        # 17,582,080 bytes of 35,145,728 were counted where KDA has twice the heads of attention
        ("bailing_hybrid", {"num_attention_heads": 4, "linear_num_heads": 8}, [(3 * 8 * 128, 4), (8, 128, 128)]),
        ("bailing_hybrid", {"num_attention_heads": 4, "linear_conv_kernel_dim": 5}, [(1536, 5), (4, 128, 128)]),
        ("lfm2", {"hidden_size": 96, "conv_L_cache": 5, "layer_types": ["conv"], "num_hidden_layers": 1}, [(96, 5)]),
        ("zaya", {}, [((8 + 2) * 128, 2), (128,)]),
        ("zaya", {"cca_time0": 3, "cca_time1": 4, "num_key_value_heads": 4}, [((8 + 4) * 128, 5), (256,)]),
        ("minimax", {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}, [(4, 64, 64)]),
        ("recurrent_gemma", {}, [(2560, 4), (2560,)]),
        ("recurrent_gemma", {"conv1d_width": 6, "lru_width": 100}, [(100, 6), (100,)]),
        ("rwkv", {"hidden_size": 64, "attention_hidden_size": 96}, [(64, 1), (64, 1), (96,), (96,), (96,)]),
        ("rwkv", {"hidden_size": 64}, [(64, 1), (64, 1), (64,), (64,), (64,)]),
        ("xlstm", {"hidden_size": 8320}, [(8, 520, 1040), (8, 520), (8, 1)]),
        ("xlstm", {"hidden_size": 8000, "num_heads": 4}, [(4, 1008, 2000), (4, 1008), (4, 1)]),  # 4,000 made 63 x 64
    ],
)  # fmt: skip
def test_shapes(model_type, fields, shapes):
    index = {"minimax": 1}.get(model_type, 0)
    assert states(model_type, index, **fields) == shapes


@pytest.mark.parametrize(
    ("model_type", "kind", "roles", "layer"),
    [
        ("mamba", "mamba", "cr", "linear_attention"),
        ("mamba2", "mamba2", "cr", "linear_attention"),
        ("jamba", "mamba", "cr", "linear_attention"),
        ("bamba", "mamba2", "cr", "linear_attention"),
        ("falcon_h1", "mamba2", "cr", "hybrid"),
        ("nemotron_h", "mamba2", "cr", "linear_attention"),
        ("zamba", "mamba", "cr", "linear_attention"),
        ("zamba2", "mamba2", "cr", "linear_attention"),
        ("qwen3_next", "gated_delta", "cr", "linear_attention"),
        ("olmo_hybrid", "gated_delta", "cr", "linear_attention"),
        ("qwen4_exp_text", "gated_delta", "cr", "linear_attention"),
        ("kimi_linear", "kda", "cr", "linear_attention"),
        ("bailing_hybrid", "kda", "cr", "linear_attention"),
        ("glm5_next_text", "kda", "cr", "linear_attention"),
        ("lfm3", "short_conv", "c", "conv"),
        ("inkling_text", "short_conv", "cccc", "hybrid_sliding"),
        ("zaya", "short_conv", "cr", "hybrid"),
        ("recurrent_gemma", "rg_lru", "cr", "linear_attention"),
        ("rwkv", "rwkv", "ccrrr", "linear_attention"),
        ("xlstm", "mlstm", "rrr", "linear_attention"),
    ],
)
def test_roles_of_states(model_type, kind, roles, layer):
    first = layers(model_type)[0]
    (found,) = [store for store in first.stores if isinstance(store, Recurrent)]
    assert (found.kind, [state.role for state in found.states], first.kind) == (
        kind,
        [{"c": "conv", "r": "recurrent"}[role] for role in roles],
        layer,
    )


def test_other_kinds_of_layers():
    second = layers("minimax", num_hidden_layers=2)[1]
    assert (second.kind, second.stores[0].kind, second.stores[0].states[0].role) == (
        "linear_attention",
        "lightning",
        "recurrent",
    )
    assert [layers("zamba")[2].kind, layers("zamba2")[6].kind] == ["hybrid", "hybrid"]
    assert {layer.kind for layer in layers("kimi_linear")} == {"linear_attention", "full_attention"}
    assert layers("recurrent_gemma")[2].kind == "sliding_attention"
    assert layers("qwen4_exp_text")[3].kind == layers("glm5_next_text")[3].kind == "indexed_attention"


def test_attention_alone_needs_no_states():
    listed = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mamba_expand": None}
    assert layers("jamba", **listed) == (Layer((Attention(Heads(8, 128, 128)),)),)


def test_formats_and_kinds_of_states():
    (mamba,) = layers("mamba", **MAMBA)[0].stores
    assert mamba == Recurrent("mamba", (State("conv", (128, 4)), State("recurrent", (128, 16), "float32")))
    (mamba2,) = layers("mamba2", **MAMBA2)[0].stores
    assert (mamba2.kind, mamba2.groups, mamba2.rolling) == ("mamba2", 2, False)
    (gemma,) = layers("recurrent_gemma")[0].stores
    assert (gemma.kind, gemma.rolling, gemma.states[1].format) == ("rg_lru", True, "float32")
    attention, falcon = layers("falcon_h1", **BAMBA, num_key_value_heads=2)[0].stores
    assert attention == Attention(Heads(2, 8, 8))
    assert (falcon.groups, falcon.states[1].format) == (2, "float32")
    (delta,) = layers("qwen3_next")[0].stores
    assert [(state.role, state.format) for state in delta.states] == [("conv", None), ("recurrent", "float32")]
    (lstm,) = layers("xlstm")[0].stores
    assert [state.format for state in lstm.states] == [None, None, None]


@pytest.mark.parametrize(
    ("fields", "count"),
    [({"num_hidden_layers": 3}, 3), ({"num_hidden_layers": None, "num_blocks": 5}, 5), ({"num_blocks": 5}, 32)],
)
def test_xlstm_s_layers(fields, count):
    assert len(layers("xlstm", **fields)) == count


# -- kinds of layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "count", "fields", "letters"),
    [
        ("jamba", 4, {"attn_layer_period": 2, "attn_layer_offset": 0}, "flfl"),
        ("jamba", 5, {"attn_layer_period": 3, "attn_layer_offset": 2}, "llfll"),
        ("bamba", 4, {"attn_layer_indices": [0, 2]}, "flfl"),
        ("bamba", 2, {}, "ll"),
        ("bamba", 4, {"layer_types": ["mamba", "attention", "mlp", "moe"]}, "lfmm"),
        ("granitemoehybrid", 3, {}, "lll"),
        ("zamba", 9, {"attn_layer_period": 3, "attn_layer_offset": 0}, "llhhllhll"),
        ("zamba", 9, {}, "llhllllhl"),
        ("zamba", 2, {"layers_block_type": ["hybrid", "mamba"]}, "hl"),
        ("zamba2", 2, {"layers_block_type": ["hybrid", "mamba"]}, "hl"),
        ("qwen3_next", 5, {}, "lllfl"),
        ("qwen3_next", 4, {"full_attention_interval": 2}, "lflf"),
        ("olmo_hybrid", 3, {}, "llf"),
        ("olmo_hybrid", 9, {}, "lllflllfl"),
        ("kimi_linear", 9, {}, "llllflllf"),
        ("kimi_linear", 4, {"linear_attn_config": {"full_attn_layers": [2, 4]}}, "lflf"),
        ("kimi_linear", 2, {"linear_attn_config": {"full_attn_layers": []}}, "ll"),
        ("bailing_hybrid", 7, {}, "lllllfl"),
        ("bailing_hybrid", 4, {"layer_group_size": 2}, "lflf"),
        ("glm5_next_text", 5, {}, "lllil"),
        ("lfm2", 3, {}, "fff"),
        ("lfm2", 3, {"full_attn_idxs": [0, 2]}, "fcf"),
        ("lfm3", 9, {}, "ccfcscfcs"),
        ("minimax", 5, {}, "flflf"),
        ("minimax", 2, {"attn_type_list": [0, 0]}, "fl"),  # a key of the remote class alone
        ("minimax", 2, {"layer_types": ["linear_attention", "full_attention"]}, "lf"),
        ("qwen4_exp_text", 5, {}, "lllil"),
        ("qwen4_exp_text", 4, {"full_attention_interval": 2}, "lili"),
        ("qwen4_exp_text", 2, {"layer_types": ["full_attention", "linear_attention"]}, "il"),
        ("recurrent_gemma", 4, {}, "llsl"),
        ("recurrent_gemma", 3, {"block_types": ["attention", "recurrent"]}, "sls"),
        ("nemotron_h", 3, {"layer_types": ["mamba", "attention", "moe"]}, "lfm"),
    ],
)  # fmt: skip
def test_kinds_of_layers(model_type, count, fields, letters):
    assert kinds(model_type, count, **fields) == letters


def test_minimax_text_01_lists_its_layers():
    fields = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4}
    assert kinds("minimax_text_01", 3, hidden_size=256, num_attention_heads=4, attn_type_list=[0, 1, 0]) == "lfl"
    assert [layer.kind[0] for layer in layers("minimax_m1", **fields)] == ["f", "l", "f"]


def test_a_list_of_kimi_s_own_overrides_the_published_one():
    listed = ["full_attention", "linear_attention"]
    nested = {"full_attn_layers": [2]}
    assert kinds("kimi_linear", 2, layer_types=listed, linear_attn_config=nested) == "fl"


@pytest.mark.parametrize(("count", "letters"), [(4096, "M"), (1, "*")])
def test_nemotron_s_pattern_may_have_4096_letters(count, letters):
    assert len(layers("nemotron_h", num_hidden_layers=count, hybrid_override_pattern=letters * count)) == count


def test_nemotron_s_default_and_other_names():
    found = layers("nemotron_h", mamba_n_groups=4, n_groups=2, mamba_d_conv=3, conv_kernel=5)
    assert [layer.kind for layer in found] == ["linear_attention", "moe", "full_attention", "mlp"]
    assert (found[0].stores[0].groups, found[0].stores[0].states[0].shape[1]) == (4, 3)
    other = layers("nemotron_h", n_groups=2, conv_kernel=5)[0].stores[0]
    assert (other.groups, other.states[0].shape[1]) == (2, 5)
    assert [len(layer.stores) for layer in found] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("model_type", "fields", "where"),
    [
        ("mamba", {"expand": 0}, "$.expand"),
        ("mamba", {"expand": -1}, "$.expand"),
        ("bamba", {**BAMBA, "mamba_n_heads": 129}, "$"),
        ("zamba", {**ZAMBA, "n_mamba_heads": 256}, "$"),
        ("zamba2", {**ZAMBA, "n_mamba_heads": 256}, "$"),
        ("zamba2", {"num_hidden_layers": 53}, "$.layers_block_type"),
        ("olmo_hybrid", {"hidden_size": 512, "linear_num_key_heads": 1024}, "$"),
        ("nemotron_h", {"hybrid_override_pattern": "M" * 4097}, "$.hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": ""}, "$.hybrid_override_pattern"),
        ("nemotron_h", {"layer_types": ["sliding_attention"]}, "$.layers_block_type"),
        ("bamba", {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "$.layer_types"),
        ("inkling_text", {"swa_head_dim": None}, "$.swa_head_dim"),
        ("inkling_text", {"sliding_window_size": None}, "$.sliding_window_size"),
        ("zaya", {"num_hidden_layers": 1, "layer_types": ["hybrid_sliding"]}, "$.sliding_window"),
        ("minimax_text_01", {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1,
                             "attn_type_list": [0, 1]}, "$.attn_type_list"),
        ("recurrent_gemma", {"block_types": []}, "$.block_types"),
    ],
)  # fmt: skip
def test_what_does_not_add_up_is_refused(model_type, fields, where):
    with pytest.raises(ConfigError) as caught:
        layers(model_type, **fields)
    assert caught.value.where == where


def test_too_many_heads_are_named():
    with pytest.raises(ConfigError, match="128 channels are too few for 129 heads"):
        layers("bamba", **{**BAMBA, "mamba_n_heads": 129})


# -- attention beside states -------------------------------------------------------------------------------------------


def test_zamba_s_heads_are_twice_as_wide():
    found = layers("zamba", hidden_size=64, num_attention_heads=16, num_key_value_heads=4)
    assert found[2].stores[0] == Attention(Heads(4, 8, 8))
    assert layers("zamba", hidden_size=64, attention_head_dim=24)[2].stores[0].entry == Heads(16, 24, 24)
    assert layers("zamba2", hidden_size=72, num_attention_heads=16)[6].stores[0].entry == Heads(16, 9, 9)


def test_kimi_s_and_ling_s_latents():
    assert layers("kimi_linear")[4].stores == (Attention(Latent(512, 64, Heads(32, 192, 128))),)
    assert layers("bailing_hybrid")[5].stores == (Attention(Latent(512, 64, Heads(32, 192, 128))),)


def test_glm_5_next_packs_key_gate_and_a_bit():
    found = layers("glm5_next_text", num_hidden_layers=8, indexer_types=["full"] * 7 + ["shared"])
    latent = Attention(Latent(512, 0, Heads(64, 256, 256)))
    assert found[3].stores == (latent, Attention(IndexKey(2 * 128 + 1)))
    assert found[7].stores == (latent,)


def convolutions(channels: int, wide: int, kernel: int) -> Recurrent:
    shapes = [(channels, kernel)] * 2 + [(wide, kernel)] * 2
    return Recurrent("short_conv", tuple(State("conv", shape, "float32") for shape in shapes))


def test_inkling_s_windows_have_heads_of_their_own():
    found = layers("inkling_text", num_hidden_layers=6, hidden_size=256, swa_head_dim=64)
    assert found[5].stores == (Attention(Heads(8, 128, 128), Full()), convolutions(8 * 128, 256, 4))
    assert found[0].stores == (Attention(Heads(16, 64, 64), Sliding(512)), convolutions(16 * 64, 256, 4))
    assert [layer.kind for layer in found] == ["hybrid_sliding"] * 5 + ["hybrid"]


@pytest.mark.parametrize("model_type", ["inkling_text", "inkling2_text"])
@pytest.mark.parametrize(
    ("fields", "kernel"),
    [
        ({}, 4),
        ({"conv_kernel_size": 5}, 5),
        ({"sconv_kernel_size": 6}, 6),  # two of the four convolutions were counted with 4 columns
        ({"sconv_kernel_size": 6, "conv_kernel_size": 5}, 6),
    ],
)
def test_inkling_s_four_kernels_are_one_field_of_two_names(model_type, fields, kernel):
    assert [shape[1] for shape in states(model_type, **fields)] == [kernel] * 4


def test_inkling_lists_its_windows():
    assert [layer.kind for layer in layers("inkling_text", num_hidden_layers=3, local_layer_ids=[1])] == [
        "hybrid",
        "hybrid_sliding",
        "hybrid",
    ]


def test_inkling_2_lists_none():
    found = layers("inkling2_text", num_hidden_layers=7, local_layer_ids=[5])  # no key of that class
    assert [layer.kind == "hybrid" for layer in found] == [False] * 5 + [True, False]


def test_zaya_s_windows():
    found = layers("zaya", num_hidden_layers=2, layer_types=["hybrid", "hybrid_sliding"], sliding_window=32)
    assert [layer.stores[0] for layer in found] == [
        Attention(Heads(2, 128, 128)),
        Attention(Heads(2, 128, 128), Sliding(32)),
    ]


DELTA = (State("conv", (8192, 4)), State("recurrent", (32, 128, 128), "float32"))


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        ({}, ((2048 * 4, 3 * 3), (2,))),  # hc_count 4, ngram_size 3, ple_conv_kernel_size 4
        ({"hc_count": 2}, ((2048 * 2, 9), (2,))),
        ({"ngram_size": 5}, ((8192, 15), (4,))),
        ({"ple_conv_kernel_size": 3}, ((8192, 6), (2,))),
    ],
)
def test_qwen4_s_n_gram_layers(fields, extra):
    found = layers("qwen4_exp_text", num_hidden_layers=3, ple_layer_ids=[2], **fields)
    wide, tokens = extra
    more = (State("conv", wide), State("conv", tokens, "int64"))
    assert [layer.stores[0].states for layer in found] == [DELTA, (*DELTA, *more), DELTA]


def test_qwen4_keeps_positions_once():
    found = layers("qwen4_exp_text", num_hidden_layers=8, indexer_head_dim=96)
    keys = (Attention(Heads(2, 256, 256)), Attention(IndexKey(96)))
    assert found[3].stores == (*keys, Attention(IndexKey(3), format="int64", expanded_view=True))
    assert found[7].stores == keys
    assert layers("qwen4_exp_text", num_hidden_layers=8)[7].stores[1] == Attention(IndexKey(256))


def test_recurrent_gemma_s_windows():
    assert layers("recurrent_gemma")[2].stores == (Attention(Heads(10, 256, 256), Sliding(2048)),)
