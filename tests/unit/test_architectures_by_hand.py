"""Shapes worked out by hand where published configs leave a field out, or set one that few set.

Defaults are those of transformers@5.23.0's config classes; remote code is that of the named repository.
"""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError
from kvsize.geometry import (
    Attention,
    Compressed,
    Encoder,
    Full,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    State,
)


def layers(model_type: str, **fields: object) -> tuple[Layer, ...]:
    return geometry({"model_type": model_type, **fields}).layers


def indexed(model_type: str, **fields: object) -> list[int]:
    """The layers with index keys of their own."""
    found = layers(model_type, **fields)
    return [i for i, layer in enumerate(found) if any(isinstance(s.entry, IndexKey) for s in layer.stores)]


SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}

# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gpt_neox", "llama", "bloom", "gpt2"])
def test_as_many_heads_as_channels_leave_one_channel_each(model_type):
    sizes = {"hidden_size": 8, "n_embd": 8, "num_attention_heads": 8, "n_head": 8}
    entry = layers(model_type, **sizes)[0].stores[0].entry
    assert (entry.count, entry.k_dim) == (8, 1)
    with pytest.raises(ConfigError, match="exceeds"):
        layers(model_type, **{**sizes, "hidden_size": 7, "n_embd": 7})


def test_bart_too():
    sizes = {"d_model": 8, "decoder_attention_heads": 8}
    assert layers("bart", **sizes)[0].stores[0].entry == Heads(8, 1, 1)
    with pytest.raises(ConfigError, match="exceeds"):
        layers("bart", **{**sizes, "d_model": 7})


@pytest.mark.parametrize(("given", "window"), [(None, 512), (False, 512), ("vision", 512), (True, 257), ("all", 257)])
def test_gemma_3_halves_its_window_where_attention_looks_both_ways(given, window):
    found = layers("gemma3_text", sliding_window=512, use_bidirectional_attention=given)
    assert found[0].stores[0].span == Sliding(window)


# -- latents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "count"), [({"num_layers": 3}, 6), ({"num_hidden_layers": 7}, 6)])
def test_longcat_has_two_blocks_a_layer(fields, count):
    assert len(layers("longcat_flash", **fields)) == count


def test_hunyuan_4_runs_an_indexer_first_and_then_in_each_fourth_layer():
    assert indexed("hy_v4", num_hidden_layers=10) == [0, 1, 5, 9]


@pytest.mark.parametrize(
    ("fields", "bare"),
    [({"num_hidden_layers": 9}, [3, 7]), ({"num_hidden_layers": 5, "no_rope_layer_interval": 2}, [1, 3])],
)
def test_mistral_large_4_has_layers_without_a_rotary_part(fields, bare):
    found = layers("mistral_large4_text", **fields)
    assert [i for i, layer in enumerate(found) if layer.stores[0].entry.rope_dim == 0] == bare


DOTS = {"num_hidden_layers": 7}


def test_dots_note_s_windows_have_a_latent_of_their_own():
    """configuration_dots3_note.py: 64 heads of 192 + 64 and 128 over a latent of 1,024, unless swa_ keys say so."""
    found = layers("dots3_note_text", **DOTS)
    assert [layer.kind[0] for layer in found] == list("iisssis")
    assert found[2].stores == (Attention(Latent(1024, 64, Heads(64, 256, 128)), Sliding(512)),)


def test_dots_note_s_swa_keys():
    sizes = {"swa_head_dim": 96, "swa_qk_nope_head_dim": 64, "swa_num_attention_heads": 16, "swa_v_head_dim": 48}
    found = layers("dots3_note_text", **DOTS, **sizes, swa_kv_lora_rank=256, sliding_window=100)
    assert found[2].stores == (Attention(Latent(256, 32, Heads(16, 96, 48)), Sliding(100)),)


# -- states ------------------------------------------------------------------------------------------------------------


def test_zamba2_s_hybrid_layers():
    both = [i for i, layer in enumerate(layers("zamba2")) if len(layer.stores) == 2]
    assert both == [6, 12, 18, 24, 30, 36, 42, 47, 51]
    assert len(layers("zamba2")) == 54


def test_olmo_hybrid_s_widths_follow_from_the_hidden_size():
    states = layers("olmo_hybrid", hidden_size=512, num_attention_heads=4)[0].stores[0].states
    assert states[1] == State("recurrent", (4, 96, 192), "float32")
    assert states[0].shape[0] == 2 * 4 * 96 + 4 * 192


# -- encoder and decoder -----------------------------------------------------------------------------------------------


def test_llama_3_2_vision_looks_at_the_image_in_eight_layers():
    found = layers("mllama_text_model")
    cross = [i for i, layer in enumerate(found) if layer.kind == "cross_attention"]
    assert cross == [3, 8, 13, 18, 23, 28, 33, 38]
    assert found[3].stores[0].span == Encoder(optional=True)


def test_pix2struct_always_reads_its_patches():
    found = geometry({"model_type": "pix2struct", "text_config": {"d_kv": 64, "num_heads": 4, "num_layers": 3}}).layers
    assert found == (Layer((Attention(Heads(4, 64, 64)), Attention(Heads(4, 64, 64), Encoder()))),) * 3


@pytest.mark.parametrize(
    ("model_type", "fields", "width"),
    [
        ("t5", {}, 64),
        ("t5", {"d_kv": 32}, 32),
        ("t5", {"head_dim": 32}, 32),  # the class's attribute_map: was 64
        ("udop", {"head_dim": 32}, 64),  # no such name there
        ("pop2piano", {"d_kv": 48}, 48),
    ],
)
def test_t5_s_heads(model_type, fields, width):
    entry = Heads(8, width, width)
    found = layers(model_type, **{"num_heads": 8, "num_layers": 2, **fields})
    assert found == (Layer((Attention(entry), Attention(entry, Encoder()))),) * 2


@pytest.mark.parametrize(("fields", "count"), [({}, 6), ({"num_layers": 3}, 3), ({"num_decoder_layers": 2}, 2)])
def test_t5_s_decoder_is_as_deep_as_its_encoder_unless_told(fields, count):
    assert len(layers("t5", **fields)) == count


def test_a_decoder_alone_reads_no_encoder():
    alone = layers("bart", d_model=64, decoder_attention_heads=4, decoder_layers=2, is_encoder_decoder=False)
    assert alone == (Layer((Attention(Heads(4, 16, 16)),)),) * 2


@pytest.mark.parametrize(("fields", "tokens"), [({}, 1500), ({"max_source_positions": 3000}, 3000)])
def test_whisper_s_encoder_yields_as_many_frames_whatever_the_sound(fields, tokens):
    entry = Heads(4, 16, 16)
    found = layers("whisper", d_model=64, decoder_attention_heads=4, decoder_layers=2, **fields)
    assert found == (Layer((Attention(entry), Attention(entry, Encoder(tokens=tokens)))),) * 2


@pytest.mark.parametrize(("fields", "width"), [({}, 40), ({"head_dim": 24}, 24)])
def test_moonshine_s_streaming_decoder(fields, width):
    entry = Heads(2, width, width)
    found = layers("moonshine_streaming", num_key_value_heads=2, num_hidden_layers=3, **fields)
    assert found == (Layer((Attention(entry), Attention(entry, Encoder()))),) * 3


def test_t5_gemma_s_windows_stop_at_the_encoder():
    small = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    (first, second) = layers("t5_gemma_module", num_hidden_layers=2, sliding_window=32, **small)
    entry = Heads(2, 16, 16)
    assert first == Layer((Attention(entry, Sliding(32)), Attention(entry, Encoder())), kind="sliding_attention")
    assert second == Layer((Attention(entry), Attention(entry, Encoder())))
    kinds = [layer.kind[0] for layer in layers("t5gemma2_decoder", num_hidden_layers=7)]
    assert kinds == list("sssssfs")


def test_dia_s_cross_attention_has_heads_of_its_own():
    decoder = {"num_hidden_layers": 2, "cross_num_key_value_heads": 4, "cross_head_dim": 32}
    found = geometry({"model_type": "dia", "decoder_config": decoder}).layers
    assert found == (Layer((Attention(Heads(4, 128, 128)), Attention(Heads(4, 32, 32), Encoder()))),) * 2


def test_a_decoder_of_states_alone_has_no_heads_to_read_an_encoder_with():
    decoder = {"model_type": "mamba", "num_hidden_layers": 2}
    found = geometry({"model_type": "encoder-decoder", "decoder": decoder}).layers
    assert [[type(store) for store in layer.stores] for layer in found] == [[Recurrent]] * 2


def test_musicgen_s_text_encoder_may_be_left_out():
    decoder = {"model_type": "musicgen_decoder", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    (layer,) = geometry({"model_type": "musicgen", "decoder": decoder}).layers
    assert layer.stores[1].span == Encoder(optional=True)


# -- models unlike any other -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "letters"), [(1, "h"), (2, "hh"), (5, "hhhch")])
def test_deepseek_v4_starts_with_two_heavily_compressed_layers(count, letters):
    assert "".join(layer.kind[0] for layer in layers("deepseek_v4", num_hidden_layers=count)) == letters


def test_deepseek_v4_s_entries():
    found = layers("deepseek_v4", num_hidden_layers=3, compress_ratios=[0, 4, 128])
    assert [layer.stores for layer in found] == [
        (Attention(Heads(1, 512, 512), Sliding(128)),),
        (Compressed(512, 128, 4, overlap=True, index_dim=128),),
        (Compressed(512, 128, 128, overlap=False, index_dim=0),),
    ]


@pytest.mark.parametrize(
    ("fields", "rates"),
    [
        ({}, [4, 128]),
        ({"compress_rates": {"compressed_sparse_attention": 8}}, [8, 128]),
        ({"compress_rates": {"heavily_compressed_attention": 64}}, [4, 64]),
        ({"compress_rate_csa": 2, "compress_rate_hca": 32}, [2, 32]),
    ],
)
def test_deepseek_v4_s_rates(fields, rates):
    listed = ["compressed_sparse_attention", "heavily_compressed_attention"]
    found = layers("deepseek_v4", num_hidden_layers=2, layer_types=listed, **fields)
    assert [layer.stores[0].rate for layer in found] == rates


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"compress_ratios": [0, 4]}, "has 2 entries for 3 layers"),
        ({"compress_ratios": [0, 4, 7, 128]}, "a list of 0, 4 and 128"),
        ({"compress_ratios": [0, 4, 128, 7]}, "a list of 0, 4 and 128"),  # was a crash
        ({"layer_types": ["sliding_attention"] * 2}, "has 2 entries for 3 layers"),
        ({"layer_types": ["chunked_attention"] * 3}, "unknown layer type 'chunked_attention'"),
    ],
)
def test_deepseek_v4_s_lists(fields, words):
    with pytest.raises(ConfigError, match=words):
        layers("deepseek_v4", num_hidden_layers=3, **fields)


def test_deepseek_v4_s_layer_types_count_before_its_ratios():
    (layer,) = layers("deepseek_v4", num_hidden_layers=1, layer_types=["sliding_attention"], compress_ratios=[4])
    assert layer.kind == "sliding_attention"


def test_what_stands_behind_deepseek_v4_s_layers_is_for_drafts():
    assert len(layers("deepseek_v4", num_hidden_layers=3, compress_ratios=[0, 4, 128, 0])) == 3


@pytest.mark.parametrize("listed", [["full_attention"], ["full_attention", "sparse"], ["minimax_m3_sparse"] * 3])
def test_minimax_m3_s_lists(listed):
    with pytest.raises(ConfigError) as caught:
        layers("minimax_m3_vl_text", num_hidden_layers=2, layer_types=listed)
    assert caught.value.where == "$.layer_types"


def test_minimax_m3_s_index_keys_stand_where_the_file_says():
    published = {"sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1], "sparse_index_dim": 96}}
    assert indexed("minimax_m3_vl_text", num_hidden_layers=4, **published) == [2, 3]
    saved = {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_head_dim": 64}
    assert indexed("minimax_m3_vl_text", num_hidden_layers=2, **saved) == [1]
    assert indexed("minimax_m3_vl_text", num_hidden_layers=4) == []
    both = {**saved, "sparse_attention_config": {"sparse_attention_freq": [1, 1]}}
    assert indexed("minimax_m3_vl_text", num_hidden_layers=2, **both) == [1]
    assert layers("minimax_m3_vl_text", num_hidden_layers=2, **saved)[1].kind == "minimax_m3_sparse"
    assert layers("minimax_m3_vl_text", num_hidden_layers=4, **published)[3].stores[1] == Attention(IndexKey(96))


def test_unlimited_ocr_keeps_the_prompt():
    spans = [layer.stores[0].span for layer in layers("unlimited_ocr_text", num_hidden_layers=2)]
    assert spans == [Reference(128)] * 2
    kinds = {layer.kind for layer in layers("unlimited_ocr_text")}
    assert kinds == {"reference_sliding_attention"}
    for given in ({"layer_types": ["full_attention"]}, {"sliding_window": None}):
        (full,) = layers("unlimited_ocr_text", num_hidden_layers=1, **given)
        assert (full.stores[0].span, full.kind) == (Full(), "full_attention")


@pytest.mark.parametrize(("fields", "extra"), [({}, 32), ({"prompt_length": 0}, 0), ({"prompt_length": 8}, 8)])
def test_cpm_ant_s_prompt(fields, extra):
    assert layers("cpmant", **fields)[0].stores[0].extra_tokens == extra


@pytest.mark.parametrize(("fields", "width"), [({}, 128), ({"dim_head": 64}, 64)])
def test_cpm_ant_s_heads(fields, width):
    assert layers("cpmant", num_hidden_layers=2, num_attention_heads=16, **fields)[1].stores == (
        Attention(Heads(16, width, width), extra_tokens=32),
    )


@pytest.mark.parametrize(
    ("fields", "span"), [({}, Sliding(513)), ({"mem_len": None}, Full()), ({"mem_len": 8}, Sliding(9))]
)
def test_xlnet_keeps_hidden_states(fields, span):
    found = layers("xlnet", d_model=64, n_head=4, n_layer=3, **fields)
    assert found == (Layer((Attention(Heads(1, 64, 0), span),)),) * 3


@pytest.mark.parametrize(
    ("model_type", "fields", "where"),
    [
        ("cpmant", {"dim_head": None}, "$.dim_head"),
        ("cpmant", {"prompt_length": -1}, "$.prompt_length"),
        ("cpmant", {"prompt_length": None}, "$.prompt_length"),
        ("xlnet", {"mem_len": 0}, "$.mem_len"),
        ("reformer", {"attn_layers": []}, "$.attn_layers"),
        ("blt", {"encoder_config": {"hidden_size": 4, "num_attention_heads": 8, "num_hidden_layers": 1},
                 "decoder_config": {"hidden_size": 8, "num_attention_heads": 8, "num_hidden_layers": 1}}, "$"),
        ("openelm", {"head_dim": 64, "num_transformer_layers": 2, "num_kv_heads": [1]}, "$.num_kv_heads"),
        ("nemotron-nas", {**SMALL, "block_configs": [{"attention": {"no_op": True}}]},
         "$.num_key_value_heads_per_layer"),
        ("nemotron-nas", {**SMALL, "num_hidden_layers": 1, "block_configs": [None]}, "$.block_configs[0].attention"),
        ("rwkv5", {"hidden_size": 100, "head_size": 64, "num_hidden_layers": 1}, "$"),
    ],
)  # fmt: skip
def test_sizes_that_make_no_model(model_type, fields, where):
    with pytest.raises(ConfigError) as caught:
        layers(model_type, **fields)
    assert caught.value.where == where


def test_reformer_counts_buckets_in_lsh_layers():
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "attn_layers": ["local", "lsh"]}
    states = Attention(Heads(1, 256, 0))
    for given, hashes in (({}, 1), ({"num_hashes": 4}, 4), ({"num_hashes": None}, 1)):
        local, lsh = layers("reformer", **sizes, **given)
        assert local.stores == (states,)
        assert lsh.stores == (states, Attention(IndexKey(2 * hashes), format="int64"))


def test_blt_s_byte_level_layers():
    encoder = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 1}
    decoder = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 2}
    found = layers("blt", encoder_config=encoder, decoder_config=decoder)
    assert [layer.stores[0].entry for layer in found] == [Heads(16, 64, 64), Heads(2, 64, 64), Heads(2, 64, 64)]


# -- remote code -------------------------------------------------------------------------------------------------------


def test_nemotron_nas_kinds():
    assert nas(n_heads_in_group=None, no_op=True).kind == "no_attention"
    assert nas(n_heads_in_group=4, window_length=8).kind == "sliding_attention"


def nas(**attention: object) -> Layer:
    """One layer of DeciLM's block_configs (nvidia/Llama-3_1-Nemotron-51B-Instruct)."""
    block = {"attention": attention}
    return layers("nemotron-nas", hidden_size=1024, num_attention_heads=8, num_hidden_layers=1, block_configs=[block])[
        0
    ]


@pytest.mark.parametrize("group", [1, 2, 8])
def test_nemotron_nas_groups(group):
    assert nas(n_heads_in_group=group).stores == (Attention(Heads(8 // group, 128, 128)),)


@pytest.mark.parametrize("left_out", [{"no_op": True}, {"replace_with_linear": True}])
def test_nemotron_nas_blocks_without_attention(left_out):
    assert nas(n_heads_in_group=None, **left_out).stores == ()


@pytest.mark.parametrize(("window", "span"), [(None, Full()), (1, Sliding(1)), (8192, Sliding(8192))])
def test_nemotron_nas_windows(window, span):
    assert nas(n_heads_in_group=4, window_length=window).stores[0].span == span


@pytest.mark.parametrize(
    "attention",
    [
        {"n_heads_in_group": group, "window_length": window}
        for group, window in ((3, None), (0, None), ("4", None), (True, None), (4, 0), (4, True), (4, "8k"))
    ],
)
def test_nemotron_nas_blocks_that_add_up_to_nothing(attention):
    with pytest.raises(ConfigError, match=r"block_configs\[0\].attention"):
        nas(**attention)


@pytest.mark.parametrize(("factor", "shares"), [(2, [None, 0, None, 2]), (3, [None, 0, 0, None]), (1, [None] * 4)])
def test_hunyuan_s_neighbours_share(factor, shares):
    found = layers("hunyuan", **SMALL, use_cla=True, cla_share_factor=factor)
    assert [layer.shares for layer in found] == shares
    assert [layer.shares for layer in layers("hunyuan", **SMALL, cla_share_factor=2)] == [None] * 4
    assert [layer.shares for layer in layers("hunyuan", **SMALL, use_cla=True)] == [None] * 4


def test_rwkv_5_keeps_two_vectors_and_a_matrix_a_head():
    found = layers("rwkv5", hidden_size=512, head_size=64, num_hidden_layers=3, attention_hidden_size=1024)
    vector = State("conv", (512, 1))
    assert (
        found
        == (
            Layer(
                (Recurrent("rwkv", (vector, vector, State("recurrent", (16, 64, 64), "float32"))),),
                kind="linear_attention",
            ),
        )
        * 3
    )


def test_chatglm_s_groups():
    sizes = {"num_layers": 2, "kv_channels": 128, "num_attention_heads": 32, "multi_query_group_num": 2}
    assert layers("chatglm", **sizes, multi_query_attention=True)[0].stores[0].entry == Heads(2, 128, 128)
    assert layers("chatglm", **sizes)[0].stores[0].entry == Heads(32, 128, 128)
    narrow = {"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8}
    assert layers("chatglm", **narrow)[0].stores[0].entry == Heads(8, 64, 64)


def test_qwen_s_heads_are_kv_channels_wide():
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 3}
    assert layers("qwen", **sizes, kv_channels=96) == (Layer((Attention(Heads(4, 96, 96)),)),) * 3
    assert layers("qwen", **sizes)[0].stores[0].entry == Heads(4, 128, 128)


def test_deci_s_heads_differ_by_layer():
    found = layers("deci", **SMALL, num_key_value_heads_per_layer=[1, 2, 4, 8])
    assert [layer.stores[0].entry for layer in found] == [Heads(count, 64, 64) for count in (1, 2, 4, 8)]


@pytest.mark.parametrize(("given", "counts"), [([1, 3], [1, 3]), (2, [2, 2])])
def test_openelm_s_heads_differ_by_layer(given, counts):
    found = layers("openelm", head_dim=64, num_transformer_layers=2, num_kv_heads=given)
    assert [layer.stores[0].entry for layer in found] == [Heads(count, 64, 64) for count in counts]


def test_step_3_has_groups():
    found = layers("step3_text", head_dim=256, num_attention_groups=1, num_hidden_layers=3)
    assert found == (Layer((Attention(Heads(1, 256, 256)),)),) * 3


@pytest.mark.parametrize(("fields", "side"), [({"head_size": 32}, 32), ({"head_dim": 64}, 64)])
def test_rwkv_7_s_matrices(fields, side):
    (store,) = layers("rwkv7", hidden_size=128, num_hidden_layers=1, **fields)[0].stores
    assert store.states[2].shape == (128 // side, side, side)


def test_hunyuan_s_heads():
    (first, *_) = layers("hunyuan", **SMALL, num_key_value_heads=2, attention_head_dim=96)
    assert first.stores == (Attention(Heads(2, 96, 96)),)
    assert layers("hunyuan", **SMALL)[0].stores == (Attention(Heads(8, 64, 64)),)


def test_minicpm_v_has_windows_where_it_says_so():
    windows = {**SMALL, "sliding_window": 64, "max_window_layers": 2}
    assert [layer.kind[0] for layer in layers("minicpmv", **windows)] == list("ffff")
    assert [layer.kind[0] for layer in layers("minicpmv", **windows, use_sliding_window=True)] == list("ffss")
