"""Latents, index keys and who has them, worked out from the config classes of transformers@5.23.0."""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, IndexKey, Latent, Layer, Sliding


def layers(model_type: str, **fields: object) -> tuple[Layer, ...]:
    return geometry({"model_type": model_type, **fields}).layers


def indexed(model_type: str, **fields: object) -> list[int]:
    """The layers with index keys of their own."""
    found = layers(model_type, **fields)
    return [i for i, layer in enumerate(found) if any(isinstance(s.entry, IndexKey) for s in layer.stores)]


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"index_topk_freq": 0}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"index_topk_freq": 1}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"index_topk_freq": 3}, [0, 1, 4, 7]),  # two first, then each third
        ({"index_topk_freq": 2, "index_skip_topk_offset": 0}, [1, 3, 5, 7]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [0, 2, 4, 6]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, [0, 1, 2, 4, 6]),
        ({"index_topk_pattern": "FSSSFSSS"}, [0, 4]),
        ({"index_topk_pattern": "SFSSSSSSFF"}, [1]),  # a pattern may run on over the MTP layers
        ({"index_topk_pattern": ["shared"] * 7 + ["full"] * 2}, [7]),  # a list was passed over: all eight
        ({"index_topk_pattern": "FFFFFFFF", "indexer_types": ["shared"] * 7 + ["full"] * 2}, [7]),
    ],
)
def test_glm_5_s_indexers(fields, own):
    assert indexed("glm_moe_dsa", num_hidden_layers=8, **fields) == own


@pytest.mark.parametrize(
    ("model_type", "fields", "where"),
    [
        ("glm_moe_dsa", {"num_hidden_layers": 3, "index_topk_pattern": "FS"}, "$.index_topk_pattern"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "index_topk_pattern": "FXSF"}, "$.index_topk_pattern"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "index_topk_pattern": ""}, "$.index_topk_pattern"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "indexer_types": ["full", "full", "none"]}, "$.indexer_types"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "indexer_types": []}, "$.indexer_types"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "index_topk_pattern": ["F", "F", "F"]}, "$.index_topk_pattern"),
        ("glm_moe_dsa", {"num_hidden_layers": 3, "index_topk_pattern": 3}, "$.index_topk_pattern"),
        ("glm_moe_dsa", {"index_topk_freq": -1}, "$.index_topk_freq"),
        ("deepseek_v3", {"qk_rope_head_dim": -1}, "$.qk_rope_head_dim"),
        ("dots3_note_text", {"num_hidden_layers": 1, "layer_types": ["chunked_attention"]}, "$.layer_types"),
        ("mistral_large4_text", {"num_hidden_layers": 3, "kv_source_layers": [0, 1]}, "$"),
        ("mistral_large4_text", {"num_hidden_layers": 3, "no_rope_layers": [0, 1]}, "$"),
        ("mistral_large4_text", {"num_hidden_layers": 2, "kv_source_layers": [1, 1],
                                 "indexer_types": ["shared", "full"]}, "$.kv_source_layers"),  # was a crash
        ("mistral_large4_text", {"num_hidden_layers": 3, "kv_source_layers": [0, 0, 1]}, "$.kv_source_layers"),
    ],
)  # fmt: skip
def test_lists_that_fit_no_model_are_refused(model_type, fields, where):
    with pytest.raises(ConfigError) as caught:
        layers(model_type, **fields)
    assert caught.value.where == where


def test_a_list_counts_before_hunyuan_4_s_rule():
    assert indexed("hy_v4", num_hidden_layers=3, indexer_types=["shared", "full", "full"]) == [1, 2]


def test_deepseek_v3_2_s_kinds():
    found = layers("deepseek_v32", num_hidden_layers=2, layer_types=["full_attention", "deepseek_sparse_attention"])
    latent = Attention(Latent(512, 64, Heads(128, 192, 128)))
    assert [layer.stores for layer in found] == [(latent,), (latent, Attention(IndexKey(128)))]
    assert indexed("deepseek_v32", num_hidden_layers=3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({"use_mla": False}, Heads(8, 64, 64)),
        ({"kv_lora_rank": None}, Heads(8, 64, 64)),
        ({"use_mla": True}, Latent(512, 64, Heads(8, 192, 128))),
        ({"use_mla": None, "qk_rope_head_dim": 0}, Latent(512, 0, Heads(8, 128, 128))),
    ],
)
def test_deepseek_v2_with_and_without_latents(fields, entry):
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 1}
    assert layers("deepseek_v2", **sizes, **fields)[0].stores == (Attention(entry),)


@pytest.mark.parametrize(("fields", "v_dim"), [({}, 16), ({"v_head_dim": 24}, 24)])
def test_minicpm_3_s_values_are_as_wide_as_a_share_of_the_hidden_size(fields, v_dim):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "kv_lora_rank": 32}
    rope = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    expected = Layer((Attention(Latent(32, 4, Heads(4, 12, v_dim))),))
    assert layers("minicpm3", **sizes, **rope, **fields) == (expected, expected)


# -- dots.note ---------------------------------------------------------------------------------------------------------

DSA = {"use_dsa": True}
PLAIN = {"use_dsa": False}
THREE = {"layer_types": ["full_attention", "sliding_attention", "indexed_attention"]}
SAVED = {"per_layer_config": {"1": {"kv_lora_rank": 256}}}


@pytest.mark.parametrize(
    ("count", "fields", "letters"),
    [
        (7, {}, "iisssis"),
        (7, DSA, "iisssis"),
        (7, PLAIN, "ffsssfs"),
        (7, {"use_sliding_window": True}, "iisssis"),
        (7, {"use_sliding_window": False}, "iiiiiii"),
        (3, {"use_sliding_window": False, **PLAIN}, "fff"),
        # published files call their indexed layers full
        (3, THREE, "isi"),
        (3, {**THREE, **PLAIN}, "fsf"),
        (3, {**THREE, "use_dsa": None}, "fsi"),
        # what transformers saved says which is which
        (3, {**THREE, **SAVED}, "fsi"),
        (3, {**THREE, **SAVED, **DSA}, "isi"),
        (3, {**THREE, **SAVED, **PLAIN}, "fsf"),
    ],
)
def test_dots_note_s_kinds(count, fields, letters):
    assert "".join(layer.kind[0] for layer in layers("dots3_note_text", num_hidden_layers=count, **fields)) == letters


def test_dots_note_s_layers_as_saved():
    found = layers("dots3_note_text", num_hidden_layers=3, **THREE, **SAVED, sliding_window_size=100)
    latent = Attention(Latent(512, 64, Heads(128, 192, 128)), Full())
    assert found[0].stores == (latent,)
    assert found[1].stores == (Attention(Latent(256, 64, Heads(128, 192, 128)), Sliding(100)),)
    assert found[2].stores == (latent, Attention(IndexKey(128), format="float32"))


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({}, Latent(1024, 64, Heads(64, 256, 128))),
        ({"swa_qk_rope_head_dim": 32}, Latent(1024, 32, Heads(64, 224, 128))),
        ({"swa_head_dim": 200}, Latent(1024, 8, Heads(64, 200, 128))),
        ({"swa_head_dim": 200, "swa_qk_rope_head_dim": 32}, Latent(1024, 32, Heads(64, 224, 128))),
    ],
)
def test_dots_note_s_windows(fields, entry):
    (store,) = layers("dots3_note_text", num_hidden_layers=3, **fields)[2].stores
    assert store == Attention(entry, Sliding(512))


# -- Mistral Large 4 ---------------------------------------------------------------------------------------------------


def test_mistral_large_4_shares_latents_and_index_keys_apart():
    types = ["full", "full", "shared", "full"]
    found = layers("mistral_large4_text", num_hidden_layers=4, kv_source_layers=[0, 0, 0, 3], indexer_types=types)
    key = Attention(IndexKey(128))
    assert [layer.shares for layer in found] == [None, None, 0, None]
    assert found[1].stores == (key,)
    assert [len(layer.stores) for layer in found] == [2, 1, 1, 2]
    assert found[0].stores[1] == found[3].stores[1] == key


def test_mistral_large_4_s_bare_layers():
    found = layers("mistral_large4_text", num_hidden_layers=4)
    nope, value = 64, 128
    whole, bare = found[0].stores[0].entry, found[3].stores[0].entry
    assert (whole.rank, whole.rope_dim) == (bare.rank, bare.rope_dim + whole.rope_dim)
    assert (bare.rope_dim, bare.expanded.k_dim, bare.expanded.v_dim) == (0, nope, value)
    assert whole.expanded.k_dim == nope + whole.rope_dim


def test_mistral_large_4_s_own_list_of_rotary_layers():
    found = layers("mistral_large4_text", num_hidden_layers=3, no_rope_layers=[0, 1, 0])
    assert [layer.stores[0].entry.rope_dim > 0 for layer in found] == [False, True, False]
