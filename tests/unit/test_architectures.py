"""Each family's adapter: what it makes of a config, and the field that it names where it makes nothing of one."""

import pytest

from kvsize.architectures import ARCHITECTURES, evidence, geometry
from kvsize.architectures.remote import REMOTE
from kvsize.config import known_types
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Chunked, Compressed, Encoder, Full, Heads, IndexKey, Latent, Recurrent, Sliding

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
CHATGLM = {"model_type": "chatglm", "num_layers": 2, "kv_channels": 128, "num_attention_heads": 32}


def layers(**raw):
    return geometry(raw).layers


def kinds(**raw):
    return "".join(layer.kind[0] for layer in layers(**raw))


def store(index=0, **raw):
    return layers(**raw)[index].stores[0]


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "raw"),
    [
        # attention
        ("$.hidden_size", {"model_type": "llama", "hidden_size": None}),
        ("$.num_attention_heads", {"model_type": "gpt_neox", "num_attention_heads": None}),
        ("$.n_layer", {"model_type": "gpt2", "n_layer": 0}),
        ("$.sliding_window", {"model_type": "gemma3_text", "sliding_window": None}),
        ("$.attention_chunk_size", {"model_type": "llama4_text", "attention_chunk_size": None}),
        ("$.max_window_layers", {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": None}),
        ("$.no_rope_layers", {"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 0]}),
        ("$.sliding_window_pattern", {"model_type": "exaone4", "sliding_window_pattern": "LLXG"}),
        ("$.num_kv_shared_layers", {"model_type": "gemma3n_text", "num_kv_shared_layers": 35}),
        ("$.kv_channels", {"model_type": "jetmoe", "kv_channels": None}),
        ("$.attn_config.kv_n_heads", {"model_type": "dbrx", "attn_config": {"kv_n_heads": -1}}),
        ("$.v_head_dim", {"model_type": "mimo_v2_flash", "v_head_dim": None}),
        ("$.L_cycles", {"model_type": "hrm_text", "L_cycles": "2"}),
        # latent
        ("$.kv_lora_rank", {"model_type": "deepseek_v3", "kv_lora_rank": None}),
        ("$.qk_nope_head_dim", {"model_type": "minicpm3", "qk_nope_head_dim": None}),
        ("$.num_layers", {"model_type": "longcat_flash", "num_layers": None}),
        ("$.index_head_dim", {"model_type": "deepseek_v32", "index_head_dim": None}),
        ("$.indexer_types", {"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "indexer_types": ["full"]}),
        ("$.index_topk_pattern", {"model_type": "glm_moe_dsa", "num_hidden_layers": 3, "index_topk_pattern": "FX"}),
        ("$.layer_types", {"model_type": "dots3_note_text", "num_hidden_layers": 3, "layer_types": ["full_attention"]}),
        # recurrent
        ("$.expand", {"model_type": "mamba", "expand": None}),
        ("$.n_groups", {"model_type": "mamba2", "n_groups": 0}),
        ("$", {"model_type": "mamba2", "num_heads": 3}),
        ("$.mamba_d_head", {"model_type": "bamba", "mamba_d_head": "wide"}),
        ("$.hybrid_override_pattern", {"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}),
        ("$.attn_layer_period", {"model_type": "jamba", "attn_layer_period": None}),
        ("$.layers_block_type", {"model_type": "zamba2", "num_hidden_layers": 2, "layers_block_type": ["mamba"]}),
        ("$.linear_num_key_heads", {"model_type": "qwen3_next", "linear_num_key_heads": None}),
        ("$.linear_attn_config.num_heads", {"model_type": "kimi_linear", "linear_attn_config": {"num_heads": 0}}),
        ("$.layer_group_size", {"model_type": "bailing_hybrid", "layer_group_size": None}),
        ("$.conv_L_cache", {"model_type": "lfm2", "conv_L_cache": None}),
        ("$.local_layer_ids[0]", {"model_type": "inkling_text", "local_layer_ids": [-1]}),
        ("$.attn_type_list", {"model_type": "minimax_m1", "num_hidden_layers": 2, "attn_type_list": [1], **SIZES}),
        ("$.block_types", {"model_type": "recurrent_gemma", "block_types": ["lru"]}),
        ("$.num_heads", {"model_type": "xlstm", "num_heads": None}),
        # encoder and decoder
        ("$.decoder_layers", {"model_type": "bart", "decoder_layers": None}),
        ("$.num_decoder_layers", {"model_type": "prophetnet", "num_decoder_layers": None}),
        ("$.num_layers", {"model_type": "t5", "num_layers": None}),
        ("$.text_config.d_kv", {"model_type": "pix2struct", "text_config": {"d_kv": None}}),
        ("$.num_key_value_heads", {"model_type": "moonshine_streaming"}),
        ("$.decoder_config.cross_head_dim", {"model_type": "dia", "decoder_config": {"cross_head_dim": None}}),
        # singular
        ("$.layer_types", {"model_type": "deepseek_v4", "num_hidden_layers": 1, "layer_types": ["full_attention"]}),
        ("$.compress_ratios", {"model_type": "deepseek_v4", "num_hidden_layers": 1, "compress_ratios": [7]}),
        ("$.layer_types", {"model_type": "minimax_m3_vl_text", "num_hidden_layers": 2, "layer_types": ["sparse"]}),
        ("$.attn_layers", {"model_type": "reformer", "attn_layers": ["full"]}),
        ("$.encoder_config", {"model_type": "blt"}),
        # remote code: no class, so no defaults
        ("$.num_layers", {"model_type": "chatglm", "kv_channels": 128, "num_attention_heads": 2}),
        ("$.multi_query_group_num", {**CHATGLM, "multi_query_attention": True}),
        ("$.num_hidden_layers", {"model_type": "qwen", "kv_channels": 128, "num_attention_heads": 2}),
        ("$.n_layers", {"model_type": "falcon_perception", "dim": 512, "n_heads": 8}),
        ("$.num_kv_heads", {"model_type": "openelm", "head_dim": 64, "num_transformer_layers": 2}),
        ("$.num_attention_groups", {"model_type": "step3_text", "head_dim": 64, "num_hidden_layers": 2}),
        ("$.hidden_size", {"model_type": "rwkv6", "num_hidden_layers": 2}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(where, raw):
    with pytest.raises(ConfigError) as caught:
        geometry(raw)
    assert caught.value.where == where
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layer_types": ["full_attention"] * 3}, "has 3 entries, num_hidden_layers says 4"),
        ({"layer_types": ["full_attention"] * 3 + ["magic"]}, "llama has no rule for layer type 'magic'"),
        ({"layer_types": "full_attention"}, "must be a list of strings"),
        ({"layer_types": [1, 2, 3, 4]}, "must be a list of strings"),
        ({"num_attention_heads": 1024}, "num_attention_heads 1024 exceeds hidden_size 512"),
        ({"num_hidden_layers": 5000}, "at most 4096"),
    ],
)
def test_lists_and_sizes_that_do_not_add_up(given, words):
    with pytest.raises(ConfigError) as caught:
        geometry({**LLAMA, **given})
    assert words in str(caught.value)


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_window_in_the_file_counts_where_the_class_names_no_layer_types():
    assert isinstance(store(**LLAMA, sliding_window=64).span, Sliding)
    assert isinstance(store(model_type="bloom", sliding_window=40).span, Sliding)
    assert isinstance(store(**LLAMA, attention_chunk_size=64).span, Chunked)
    assert isinstance(store(model_type="qwen3", sliding_window=64).span, Full)


def test_a_head_width_counts_where_the_code_reads_it():
    assert store(**LLAMA, head_dim=96).entry == Heads(8, 96, 96)
    assert store(model_type="gpt_neox", hidden_size=512, num_attention_heads=8, head_dim=96).entry.k_dim == 64


def test_patterns_of_windows():
    assert kinds(model_type="gemma3_text", num_hidden_layers=7) == "sssssfs"
    assert kinds(model_type="gemma3_text", num_hidden_layers=5, sliding_window_pattern=2) == "sfsfs"
    assert kinds(model_type="exaone4", num_hidden_layers=5, sliding_window_pattern="LLG", sliding_window=8) == "ssfss"
    assert kinds(model_type="gpt_oss", num_hidden_layers=3) == "sfs"
    assert kinds(model_type="llama4_text", num_hidden_layers=5) == "cccfc"


def test_qwen_windows_start_at_a_layer_and_only_if_used():
    given = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64, "max_window_layers": 2}
    assert kinds(**given) == "ffff"
    assert kinds(**given, use_sliding_window=True) == "ffss"


def test_layers_that_share_keep_nothing():
    found = layers(model_type="gemma3n_text", num_hidden_layers=10, num_kv_shared_layers=4)
    assert [layer.shares for layer in found] == [None] * 6 + [5, 5, 5, 4]


def test_gemma4_global_heads_as_published_and_as_saved():
    published = {"model_type": "gemma4_text", "num_hidden_layers": 6, "global_head_dim": 128}
    saved = {"model_type": "gemma4_text", "num_hidden_layers": 6, "per_layer_config": {"5": {"head_dim": 128}}}
    assert layers(**published) == layers(**saved)
    assert store(5, **published).entry.k_dim == 128
    assert store(0, **published).entry.k_dim == 256


def test_falcon_repeats_its_heads_before_caching_them():
    new = {"model_type": "falcon", "hidden_size": 512, "num_attention_heads": 8, "num_kv_heads": 2}
    assert store(**new).entry == Heads(1, 64, 64)  # multi_query
    assert store(**new, multi_query=False).entry.count == 8
    assert store(**new, new_decoder_architecture=True).entry == Heads(2, 64, 64, broadcast=8)
    assert store(model_type="falcon", num_attention_heads=8, n_embed=256).entry.k_dim == 32


def test_latents():
    entry = store(model_type="deepseek_v3").entry
    assert entry == Latent(512, 64, expanded=Heads(128, 192, 128))
    assert store(model_type="deepseek_v2", use_mla=False, **SIZES).entry == Heads(2, 64, 64)


def test_indexers_by_pattern_and_by_frequency():
    def indexed(**given):
        return [len(layer.stores) for layer in layers(model_type="glm_moe_dsa", num_hidden_layers=5, **given)]

    assert indexed(index_topk_pattern="FSSFS") == [2, 1, 1, 2, 1]
    assert indexed(index_topk_freq=2) == [2, 2, 1, 2, 1]


def test_a_latent_of_another_layer_beside_index_keys_of_its_own():
    found = layers(model_type="mistral_large4_text", num_hidden_layers=3, kv_source_layers=[0, 0, 0])
    assert [layer.shares for layer in found] == [None, None, None]
    assert [type(found[1].stores[0].entry), len(found[1].stores)] == [IndexKey, 1]
    shared = layers(
        model_type="mistral_large4_text", num_hidden_layers=2, kv_source_layers=[0, 0], indexer_types=["full", "shared"]
    )
    assert shared[1].shares == 0


def test_hybrids():
    assert kinds(model_type="jamba", num_hidden_layers=6, attn_layer_period=3, attn_layer_offset=1) == "lfllfl"
    assert kinds(model_type="nemotron_h", hybrid_override_pattern="M*-E", num_hidden_layers=4) == "lfmm"
    assert kinds(model_type="lfm2", num_hidden_layers=4, full_attn_idxs=[1]) == "cfcc"
    states = store(model_type="qwen3_next", num_hidden_layers=1)
    assert isinstance(states, Recurrent)
    assert [(state.role, state.format) for state in states.states] == [("conv", None), ("recurrent", "float32")]


def test_encoders_are_read_once_a_layer():
    spans = [item.span for item in layers(model_type="t5", num_layers=1)[0].stores]
    assert spans == [Full(), Encoder()]
    whisper = layers(model_type="whisper", decoder_layers=1)[0].stores
    assert whisper[1].span == Encoder(tokens=1500)


def test_a_decoder_that_reads_an_encoder_by_itself_does_not_read_it_twice():
    raw = {"model_type": "speech-encoder-decoder", "decoder": {"model_type": "bart", "decoder_layers": 1}}
    assert [item.span for item in geometry(raw).layers[0].stores] == [Full(), Encoder()]


def test_compressed_attention():
    found = layers(model_type="deepseek_v4", num_hidden_layers=3, compress_ratios=[0, 4, 128])
    assert isinstance(found[0].stores[0], Attention)
    assert [(item.rate, item.overlap) for layer in found[1:] for item in layer.stores] == [(4, True), (128, False)]
    assert isinstance(found[1].stores[0], Compressed)


def test_remote_code_is_read_from_its_published_keys():
    assert store(**CHATGLM, multi_query_attention=True, multi_query_group_num=2).entry == Heads(2, 128, 128)
    assert store(**CHATGLM).entry.count == 32


def test_evidence():
    assert evidence("llama") == "exact"
    assert {evidence(name) for name in REMOTE} == {"derived"}


def test_every_rule_has_facts_and_every_decoder_a_rule():
    assert set(ARCHITECTURES) <= set(known_types())
