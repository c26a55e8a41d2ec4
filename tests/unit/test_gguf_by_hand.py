"""Layers of GGUF metadata, worked out from llama.cpp@b11434's load_arch_hparams in src/models/*.cpp.

Files of these kinds were not all at hand to be run; a key is written without its architecture's prefix.
"""

from __future__ import annotations

import pytest

from kvsize.architectures import geometry
from kvsize.errors import ConfigError, UnknownArchitectureError
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
)

WINDOW = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
DRAFTS = "nextn_predict_layers"
SMALL = {"embedding_length": 64, "attention.head_count": 8, "attention.head_count_kv": 2, "block_count": 4}
PLAIN = Heads(2, 8, 8)


def model(arch: str, given: dict | None = None, **whole: object) -> Geometry:
    """A geometry of SMALL with other keys; `whole` are keys of the file itself."""
    keys = {**SMALL, **(given or {})}
    named = {f"{arch}.{key}": value for key, value in keys.items() if value is not None}
    return geometry({"general.architecture": arch, **named, **whole})


def layers(arch: str, given: dict | None = None) -> tuple[Layer, ...]:
    return model(arch, given).layers


def letters(found: tuple[Layer, ...]) -> str:
    return "".join(layer.kind[0] for layer in found)


def blocks(count: int, **given: object) -> dict:
    return {"block_count": count, **given}


def refused(arch: str, given: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        model(arch, given)
    return caught.value.where.removeprefix(f"{arch}.")


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        ({}, PLAIN),
        ({"attention.head_count_kv": None}, Heads(8, 8, 8)),
        ({"attention.key_length": 16}, Heads(2, 16, 8)),
        ({"attention.value_length": 4}, Heads(2, 8, 4)),
        ({"attention.head_count_kv": [2, 2, 2, 2]}, PLAIN),
        ({"attention.head_count": [4, 8, 8, 8]}, Heads(2, 16, 16)),  # as wide as layer 0's
    ],
)
def test_heads(given, entry):
    assert layers("llama", given) == (Layer((Attention(entry),)),) * 4


def test_widths_of_windows():
    given = {WINDOW: 32, "attention.key_length_swa": 16, "attention.value_length_swa": 4}
    found = model("gpt-oss", given)
    assert [layer.stores[0].entry for layer in found.layers] == [Heads(2, 16, 4), PLAIN] * 2
    assert dict(found.stated) == {
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 4,
    }


@pytest.mark.parametrize(("key", "other"), [("key", "value"), ("value", "key")])
def test_one_width_of_windows_is_enough_to_state_both(key, other):
    stated = dict(model("gpt-oss", {WINDOW: 32, f"attention.{key}_length_swa": 16}).stated)
    assert (stated[f"attention.{key}_length_swa"], stated[f"attention.{other}_length_swa"]) == (16, 8)
    assert set(dict(model("gpt-oss", {WINDOW: 32}).stated)) == {"attention.key_length", "attention.value_length"}


def test_layers_without_heads_keep_nothing():
    found = layers("deci", {"attention.head_count_kv": [0, 2, 1, 0]})
    assert found == (
        Layer(kind="no_attention"),
        Layer((Attention(PLAIN),)),
        Layer((Attention(Heads(1, 8, 8)),)),
        Layer(kind="no_attention"),
    )


@pytest.mark.parametrize(
    ("given", "heads"),
    [
        ({}, 8),
        ({"attention.head_count": [4, 8, 2, 4], "attention.head_count_kv": 1}, 8),
        ({"attention.head_count": None}, None),
    ],
)
def test_the_most_heads_of_any_layer(given, heads):
    found = model("mamba", {**SSM, **given})
    assert (found.num_attention_heads, found.hidden_size, found.max_tokens) == (heads, 64, None)


@pytest.mark.parametrize(
    ("given", "whole", "size"),
    [
        ({"vocab_size": 5}, {"kvsize.vocab_size": 7}, 5),
        ({}, {"kvsize.vocab_size": 7}, 7),
        ({}, {"kvsize.vocab_size": "7"}, None),
        ({}, {"kvsize.vocab_size": True}, None),
        ({}, {}, None),
    ],
)
def test_the_vocabulary_is_stated_or_counted(given, whole, size):
    assert model("llama", given, **whole).vocab_size == size


@pytest.mark.parametrize(
    ("missing", "notes"),
    [
        (None, 0),
        ([], 0),
        ("m-2.gguf", 0),
        (["m-2.gguf"], "m-2.gguf is not beside this file: the cache is whole, the weights are not known"),
        (["m-2.gguf", "m-3.gguf"], "m-2.gguf and 1 more is not beside this file"),
        (["a", "b", "c"], "a and 2 more is not"),
    ],
)
def test_missing_parts_are_noted(missing, notes):
    found = model("llama", **{"kvsize.missing_parts": missing}).notes
    assert found == () if notes == 0 else found[0].startswith(notes)


def test_what_is_no_architecture():
    def refusal(arch: object) -> UnknownArchitectureError:
        with pytest.raises(UnknownArchitectureError) as caught:
            geometry({"general.architecture": arch})
        return caught.value

    assert refusal("clip").what == "general.architecture is clip"
    near = refusal("lama")
    assert near.hint.startswith("Nearest known: llama, ")
    assert near.hint.count(",") == 2
    assert refusal("z" * 65).got == f"'{'z' * 64}'"
    for far in ("zzz", 7, None, ["llama"]):
        assert refusal(far).hint == "It may be newer than llama.cpp b11739."
        assert refusal(far).got == repr(far)
    assert refusal(["x" * 100]).got == "['" + "x" * 78


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "given", "kinds"),
    [
        # each period-th is full: its last, or its first
        ("gemma2", blocks(5, **{WINDOW: 32}), "sfsfs"),
        ("gpt-oss", blocks(3, **{WINDOW: 32}), "sfs"),
        ("gemma3", blocks(7, **{WINDOW: 32}), "sssssfs"),
        ("gemma3n", blocks(6, **{WINDOW: 32}), "ssssfs"),
        ("plamo3", blocks(9, **{WINDOW: 32}), "sssssssfs"),
        ("muse-glimmer", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("cohere2", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("cohere2moe", blocks(5, **{WINDOW: 32}), "fsssf"),
        ("exaone-moe", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("afmoe", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("olmo2", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("mellum", blocks(5, **{WINDOW: 32}), "sssfs"),
        ("laguna", blocks(5, **{WINDOW: 32}), "fsssf"),
        ("smallthinker", blocks(5, **{WINDOW: 32}), "fsssf"),
        ("llama4", blocks(5, **{WINDOW: 32}), "cccfc"),
        ("llama4", blocks(5), "cccfc"),
        ("llama4", blocks(5, **{WINDOW: 0}), "fffff"),
        ("llama", {WINDOW: 32}, "ssss"),
        ("phi3", {WINDOW: 32}, "ssss"),
        # without a size
        *((arch, {}, "ffff") for arch in
          ("afmoe", "gemma3", "laguna", "mellum", "olmo2", "plamo3", "smallthinker", "llama", "qwen2")),
        *((arch, {WINDOW: 0}, "ffff") for arch in ("olmo2", "gemma3", "smallthinker", "llama")),
        ("gemma2", {}, "sfsf"),
        # a pattern in the file: a period, or a mark a layer; layers behind its end have none
        ("gemma3", blocks(5, **{WINDOW: 32, PATTERN: 2}), "sfsfs"),
        ("gemma3", blocks(3, **{WINDOW: 32, PATTERN: 0}), "sss"),
        ("gemma3", blocks(3, **{WINDOW: 32, PATTERN: 1}), "fff"),
        ("cohere2moe", blocks(3, **{WINDOW: 32, PATTERN: 2}), "fsf"),
        ("gemma3", blocks(5, **{WINDOW: 32, PATTERN: [True, False]}), "sffff"),
        ("gemma3", blocks(2, **{WINDOW: 32, PATTERN: [1, 0, 1]}), "sf"),
        ("gemma4", blocks(3, **{WINDOW: 32, PATTERN: [True, True, False]}), "ssf"),
        ("step35", blocks(2, **{WINDOW: 32, PATTERN: [False, True]}), "fs"),
        # drafting layers have no window
        ("cohere2", blocks(6, **{WINDOW: 32, DRAFTS: 1}), "sssfs"),
        # keys that llama.cpp does not read there
        ("qwen2", {WINDOW: 32}, "ffff"),
        ("qwen2", {WINDOW: 32, PATTERN: [True] * 4}, "ffff"),
        ("exaone4", {WINDOW: 32, PATTERN: 2}, "ffff"),
    ],
)  # fmt: skip
def test_kinds_of_layers(arch, given, kinds):
    assert letters(layers(arch, given)) == kinds


@pytest.mark.parametrize(
    ("arch", "given", "span"),
    [
        ("gemma2", {}, Sliding(4096)),
        ("gemma2", {WINDOW: 32}, Sliding(32)),
        ("smallthinker", {WINDOW: 32}, Sliding(4096)),
        ("llama4", {WINDOW: 32}, Chunked(8192)),
    ],
)
def test_sizes_of_windows(arch, given, span):
    assert {layer.stores[0].span for layer in layers(arch, given)} == {Full(), span}


@pytest.mark.parametrize(
    ("arch", "given", "where"),
    [
        ("cohere2", {}, WINDOW),
        ("cohere2", {WINDOW: 0}, WINDOW),
        ("gpt-oss", {WINDOW: -1}, WINDOW),
        ("gemma4", {WINDOW: 32}, PATTERN),
        ("gemma3", {WINDOW: 32, PATTERN: -1}, PATTERN),
        ("gemma3", {WINDOW: 32, PATTERN: [True, 2]}, PATTERN),
        ("gemma4", {WINDOW: 32, PATTERN: [True], "attention.shared_kv_layers": 4}, "attention.shared_kv_layers"),
        ("nanbeige", {"num_loops": 129}, "num_loops"),
        ("nanbeige", {"num_loops": 171, "block_count": 3}, "num_loops"),
        ("llama", {DRAFTS: 5}, DRAFTS),
        ("llama", {"attention.head_count_kv": [1, 2]}, "attention.head_count_kv"),
        ("llama", {"attention.head_count": [8] * 5}, "attention.head_count"),
    ],
)
def test_what_llama_cpp_would_not_load(arch, given, where):
    assert refused(arch, given) == where


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (blocks(64), "sssf" * 16),
        (blocks(32), "f" * 32),
        (blocks(63), "f" * 63),
        (blocks(65), "f" * 65),
        (blocks(66, **{DRAFTS: 2}), "sssf" * 16),
        (blocks(64, **{DRAFTS: 2}), "f" * 62),
    ],
)
def test_exaone_4_has_windows_in_the_larger_model(given, kinds):
    found = layers("exaone4", given)
    assert letters(found) == kinds
    assert {layer.stores[0].span for layer in found} <= {Full(), Sliding(4096)}


# -- shared and repeated layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "own"), [(30, 20), (21, 20), (20, 20), (10, 10)])
def test_gemma_3n_keeps_twenty_layers(count, own):
    found = layers("gemma3n", blocks(count, **{WINDOW: 32, "attention.shared_kv_layers": 3}))
    assert [layer.shares is None for layer in found] == [True] * own + [False] * (count - own)
    assert {layer.shares for layer in found} <= {None, 18, 19}  # the last window and the last full one before them


@pytest.mark.parametrize(
    ("shared", "shares"),
    [(None, [None] * 5), (0, [None] * 5), (1, [None, None, None, None, 1]), (2, [None, None, None, 2, 1])],
)
def test_gemma_4_shares_as_many_as_it_says(shared, shares):
    marks = {WINDOW: 32, PATTERN: [True, False, True, True, False], "attention.shared_kv_layers": shared}
    assert [layer.shares for layer in layers("gemma4", blocks(5, **marks))] == shares


@pytest.mark.parametrize(("loops", "count"), [(None, 4), (1, 4), (3, 12), (128, 512)])
def test_nanbeige_keeps_a_cache_for_each_pass(loops, count):
    assert layers("nanbeige", {"num_loops": loops}) == (Layer((Attention(PLAIN),)),) * count


def test_granite_switch_remembers_its_router():
    found = layers("graniteswitch", {"attention.key_length": 16, "attention.value_length": 4})
    assert found == (Layer((Attention(Heads(2, 16, 4)),)),) * 4 + (Layer((Attention(Heads(1, 16, 4)),), kind="router"),)


@pytest.mark.parametrize("arch", ["bert", "modern-bert", "llada"])
def test_encoders_keep_nothing(arch):
    assert layers(arch) == (Layer(kind="no_cache"),) * 4


def test_an_assistant_reads_the_cache_of_another_model():
    assert layers("gemma4-assistant", {DRAFTS: 1}) == ()


@pytest.mark.parametrize(("decoder", "notes"), [(None, 0), (4, 0), (6, 1)])
def test_t5_s_decoder(decoder, notes):
    found = model("t5", {"decoder_block_count": decoder})
    assert found.layers == (Layer((Attention(PLAIN), Attention(PLAIN, Encoder()))),) * 4
    assert len(found.notes) == notes


def test_t5_has_one_width_on_both_sides():
    found = layers("t5", {"attention.key_length_swa": 16, "attention.value_length_swa": 16})
    assert found[0].stores == (Attention(PLAIN), Attention(PLAIN, Encoder()))


# -- drafting layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drafts", "own", "rest"), [(None, 4, 0), (0, 4, 0), (1, 3, 1), (3, 1, 3), (4, 4, 0)])
def test_drafting_layers_are_counted_apart(drafts, own, rest):
    """A file of drafting layers alone is a model of its own."""
    found = model("glm4moe", {DRAFTS: drafts})
    assert (len(found.layers), len(found.drafts)) == (own, rest)


def test_drafting_layers_have_no_window():
    found = model("cohere2", blocks(6, **{WINDOW: 32, DRAFTS: 1}))
    assert found.drafts == (Layer((Attention(PLAIN),)),)


V4 = {
    "attention.compress_ratios": [0, 4, 128, 0],
    "attention.key_length": 16,
    "attention.head_count_kv": 1,
    WINDOW: 32,
    "attention.indexer.key_length": 12,
}


def test_deepseek_v4_s_entries():
    found = layers("deepseek4", V4)
    window = Layer((Attention(Heads(1, 16, 8), Sliding(32)),), kind="sliding_attention")
    assert found == (
        window,
        Layer((Compressed(16, 32, 4, overlap=True, index_dim=12),), kind="compressed_sparse_attention"),
        Layer((Compressed(16, 32, 128, overlap=False),), kind="heavily_compressed_attention"),
        window,
    )


@pytest.mark.parametrize(("tensors", "own"), [(True, 3), (False, 4), (None, 4)])
def test_deepseek_v4_drafts_where_its_tensors_do(tensors, own):
    found = model("deepseek4", {**V4, DRAFTS: 1}, **{"kvsize.draft_tensors": tensors})
    assert (len(found.layers), len(found.drafts)) == (own, 4 - own)


@pytest.mark.parametrize("ratios", [None, [0, 4, 128], [0, 4, 7, 0], []])
def test_deepseek_v4_s_ratios(ratios):
    assert refused("deepseek4", {**V4, "attention.compress_ratios": ratios}) == "attention.compress_ratios"
    assert len(layers("deepseek4", {**V4, "attention.compress_ratios": [0, 4, 128, 0, 7]})) == 4


# -- latents -----------------------------------------------------------------------------------------------------------

MLA = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
}
LATENT = Attention(Latent(32, 8, Heads(8, 24, 16)))
DSA = {**MLA, "attention.indexer.key_length": 12}
KEY = Attention(IndexKey(12))


def indexed(arch: str, given: dict) -> list[int]:
    return [i for i, layer in enumerate(layers(arch, {**DSA, **given})) if len(layer.stores) == 2]


@pytest.mark.parametrize("arch", ["deepseek2", "mistral4"])
def test_latents(arch):
    assert layers(arch, MLA) == (Layer((LATENT,)),) * 4
    assert layers(arch, {**MLA, "attention.key_length": 32})[0].stores[0].entry == Latent(32, 0, Heads(8, 24, 16))
    assert layers(arch, {"attention.key_length_mla": 0}) == (Layer((Attention(PLAIN),)),) * 4
    assert layers(arch, {}) == (Layer((Attention(PLAIN),)),) * 4


def test_latents_of_uneven_heads():
    found = layers("deepseek2", {**MLA, "attention.head_count": [4, 8, 4, 4]})
    assert found[0].stores[0].entry.expanded.count == 8


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"attention.key_length": 31}, "attention.key_length"),
        ({"attention.head_count_kv": [1, 2, 1, 1]}, "attention.head_count_kv"),
        ({"attention.kv_lora_rank": None}, "attention.kv_lora_rank"),
        ({"attention.value_length_mla": None}, "attention.value_length_mla"),
    ],
)
def test_latents_that_do_not_add_up(given, where):
    assert refused("deepseek2", {**MLA, **given}) == where


@pytest.mark.parametrize(
    ("arch", "given", "own"),
    [
        ("deepseek32", {}, [0, 1, 2, 3]),
        ("deepseek32", {"attention.indexer.types": [True, False]}, [0]),
        ("deepseek32", {"attention.indexer.types": [0, 1, 0, 1]}, [1, 3]),
        ("deepseek32", {DRAFTS: 1}, [0, 1, 2]),
        # GLM-5.2 is told by its context of 2**20
        ("glm-dsa", blocks(11, context_length=1 << 20), [0, 1, 2, 6, 10]),
        ("glm-dsa", blocks(11, context_length=(1 << 20) + 1), [0, 1, 2, 6, 10]),
        ("glm-dsa", blocks(4, context_length=(1 << 20) - 1), [0, 1, 2, 3]),
        ("glm-dsa", blocks(4, context_length=1 << 20, **{"attention.indexer.types": [0, 0, 0, 1]}), [3]),
        ("hy_v4", {"attention.indexer.top_k": 64, "attention.indexer.types": [1, 0, 0, 1]}, [0, 3]),
        ("hy_v4", {"attention.indexer.top_k": 64}, []),
        ("hy_v4", {"attention.indexer.top_k": 0, "attention.indexer.types": [1, 0, 0, 1]}, []),
        ("hy_v4", {"attention.indexer.types": [1, 0, 0, 1]}, []),
    ],
)
def test_indexers(arch, given, own):
    assert indexed(arch, given) == own


def test_what_an_indexer_keeps():
    assert layers("deepseek32", DSA)[0] == Layer((LATENT, KEY), kind="indexed_attention")
    drafting = model("deepseek32", {**DSA, DRAFTS: 1})
    assert [len(layer.stores) for layer in (*drafting.layers, *drafting.drafts)] == [2, 2, 2, 1]
    assert letters(layers("hy_v4", {**DSA, "attention.indexer.top_k": 64})) == "iiii"
    assert letters(layers("hy_v4", DSA)) == "ffff"


def test_glm_5_next_packs_key_gate_and_a_bit():
    given = {**DSA, "kda.head_dim": 4, "ssm.conv_kernel": 3, "attention.head_count_kv": [0, 1, 0, 1]}
    found = layers("glm5-next", given)
    assert letters(found) == "lili"
    assert found[1].stores == (LATENT, Attention(IndexKey(25)))


def test_dots_note_s_windows_have_a_latent_of_their_own():
    swa = {"attention.kv_lora_rank_swa": 16, "attention.key_length_swa": 20, "attention.key_length_mla_swa": 12,
           "attention.value_length_mla_swa": 6}  # fmt: skip
    marks = {WINDOW: 32, PATTERN: [False, True, True, False], "attention.indexer.types": [True]}
    found = layers("dots3note", {**DSA, **swa, **marks})
    window = Layer((Attention(Latent(16, 4, Heads(8, 12, 6)), Sliding(32)),), kind="sliding_attention")
    full = (Layer((LATENT, KEY), kind="indexed_attention"), Layer((LATENT,), kind="indexed_attention"))
    assert found == (full[0], window, window, full[1])


@pytest.mark.parametrize(("dense", "own"), [(None, [0, 1, 2, 3]), (0, [0, 1, 2, 3]), (1, [1, 2, 3]), (3, [3])])
def test_minimax_m3_s_index_keys(dense, own):
    found = layers("minimax-m3", {"attention.indexer.key_length": 12, "leading_dense_block_count": dense})
    sparse = Layer((Attention(PLAIN), KEY), kind="minimax_m3_sparse")
    assert [i for i, layer in enumerate(found) if layer == sparse] == own


# -- states ------------------------------------------------------------------------------------------------------------

SSM = {"ssm.inner_size": 96, "ssm.state_size": 16, "ssm.conv_kernel": 4}
MAMBA2 = {**SSM, "ssm.group_count": 2, "ssm.time_step_rank": 12}
CONV, GROUPED = State("conv", (96, 4)), State("conv", (96 + 2 * 2 * 16, 4))
ONE = Recurrent("mamba", (CONV, State("recurrent", (96, 16), "float32")))
TWO = Recurrent("mamba2", (GROUPED, State("recurrent", (12, 8, 16), "float32")), groups=2)


@pytest.mark.parametrize(
    ("given", "states"),
    [
        (SSM, ONE),
        ({**SSM, "ssm.group_count": 0, "ssm.time_step_rank": 12}, ONE),
        (MAMBA2, TWO),
        ({**MAMBA2, "ssm.time_step_rank": 7},  # divides no channels: as one matrix
         Recurrent("mamba2", (GROUPED, State("recurrent", (96, 16), "float32")), groups=2)),
        ({**MAMBA2, "ssm.group_count": 1, "ssm.time_step_rank": 96},
         Recurrent("mamba2", (State("conv", (128, 4)), State("recurrent", (96, 1, 16), "float32")), groups=1)),
    ],
)  # fmt: skip
def test_mamba_s_states(given, states):
    assert layers("mamba2", given) == (Layer((states,), kind="linear_attention"),) * 4


@pytest.mark.parametrize(("shifts", "count"), [(None, 2), (1, 1), (16, 16)])
def test_rwkv_s_states(shifts, count):
    (store,) = layers("rwkv7", {"wkv.head_size": 16, "token_shift_count": shifts})[0].stores
    matrix = State("recurrent", (4, 16, 16), "float32")
    assert store == Recurrent("rwkv", (*(State("conv", (64, 1)),) * count, matrix))


@pytest.mark.parametrize(
    ("arch", "given", "where"),
    [
        ("rwkv7", {"wkv.head_size": 16, "token_shift_count": 17}, "token_shift_count"),
        ("rwkv7", {"wkv.head_size": 24}, "wkv.head_size"),
        ("mamba", {**SSM, "ssm.group_count": -1}, "ssm.group_count"),
        ("mamba2", {**SSM, "ssm.group_count": 1}, "ssm.time_step_rank"),
    ],
)
def test_states_that_do_not_add_up(arch, given, where):
    assert refused(arch, given) == where


MIXED = {"attention.head_count_kv": [0, 2, 0, 0]}


@pytest.mark.parametrize("arch", ["jamba", "granitehybrid", "plamo2"])
def test_layers_without_kv_heads_are_recurrent(arch):
    found = layers(arch, {**MAMBA2, **MIXED, "attention.key_length": 8, "attention.value_length": 8})
    linear = Layer((TWO,), kind="linear_attention")
    assert found == (linear, Layer((Attention(PLAIN),)), linear, linear)


def test_a_drafting_layer_without_heads_is_none():
    found = model("jamba", {**SSM, **MIXED, DRAFTS: 1})
    assert letters(found.layers) == "lfl"
    assert found.drafts == (Layer(kind="no_attention"),)


def test_a_hybrid_without_heads_is_recurrent_throughout():
    none = {"attention.head_count": None, "attention.head_count_kv": None}
    assert letters(layers("jamba", {**SSM, **none})) == "llll"


def test_a_hybrid_without_recurrent_layers_needs_no_states():
    assert letters(layers("jamba", {})) == "ffff"


@pytest.mark.parametrize(
    ("arch", "given", "kinds"),
    [
        ("qwen3next", blocks(5), "lllfl"),
        ("qwen35", blocks(4, full_attention_interval=2), "lflf"),
        ("qwen35moe", blocks(3, full_attention_interval=1), "fff"),
        ("qwen3next", blocks(4, **{"attention.recurrent_layers": [True, False, True]}), "lflf"),
        ("qwen3next", blocks(6, **{DRAFTS: 1}), "lllfl"),
        ("minimax-01", blocks(9), "lllllllfl"),
    ],
)
def test_intervals_of_attention(arch, given, kinds):
    assert letters(layers(arch, {**MAMBA2, **given})) == kinds


def test_a_drafting_layer_attends_whatever_its_place():
    found = model("qwen3next", {**MAMBA2, **blocks(6, **{DRAFTS: 1})})
    assert found.drafts == (Layer((Attention(PLAIN),)),)


def test_states_of_delta_rules():
    assert layers("qwen3next", MAMBA2)[0].stores == (Recurrent("gated_delta", TWO.states),)
    (kda,) = layers("kimi-linear", {**MIXED, "kda.head_dim": 4, "ssm.conv_kernel": 3})[0].stores
    assert kda == Recurrent("kda", (State("conv", (96, 3)), State("recurrent", (8, 4, 4), "float32")))
    (lightning,) = layers("minimax-01", {"attention.key_length": 12})[0].stores
    assert lightning == Recurrent("lightning", (State("recurrent", (8, 12, 12)),))


def test_kimi_s_states_count_the_heads_of_layer_0():
    uneven = {"attention.head_count": [4, 8, 8, 8], "kda.head_dim": 4, "ssm.conv_kernel": 3, **MIXED}
    assert layers("kimi-linear", uneven)[0].stores[0].states[1].shape == (4, 4, 4)
    given = {"attention.head_count": [4, 8, 8, 8], "attention.key_length": 12}
    assert layers("minimax-01", given)[0].stores[0].states[0].shape == (4, 12, 12)


def test_lfm2_s_convolutions():
    found = layers("lfm2", {**MIXED, "shortconv.l_cache": 3, WINDOW: 32})
    conv = Layer((Recurrent("short_conv", (State("conv", (64, 3)),)),), kind="linear_attention")
    assert found == (conv, Layer((Attention(PLAIN, Sliding(32)),), kind="sliding_attention"), conv, conv)
    assert letters(layers("lfm2moe", {**MIXED, "shortconv.l_cache": 3, WINDOW: 32})) == "lfll"


def test_falcon_h1_keeps_both():
    assert layers("falcon-h1", MAMBA2) == (Layer((Attention(PLAIN), TWO), kind="hybrid"),) * 4


@pytest.mark.parametrize(("widths", "kinds"), [([0, 0, 128, 0], "lfml"), (None, "lfll"), (0, "lfll"), (128, "mmmm")])
def test_nemotron_h_s_layers(widths, kinds):
    found = layers("nemotron_h", {**MAMBA2, **MIXED, "feed_forward_length": widths})
    assert letters(found) == kinds
    assert {layer.kind for layer in found if not layer.stores} <= {"mlp"}


QWEN4 = {**MAMBA2, "attention.indexer.key_length": 12, "ple.conv_kernel": 4, "ple.ngram_size": 3,
         "hyper_connection.count": 2}  # fmt: skip


def test_qwen4_s_layers():
    found = layers("qwen4exp", {**QWEN4, **blocks(5), "ple.layers": [1]})
    delta = Layer((Recurrent("gated_delta", TWO.states),), kind="linear_attention")
    grams = Layer((Recurrent("gated_delta", (*TWO.states, State("conv", (2 * 64, 3 * 3)))),), kind="linear_attention")
    full = Layer((Attention(PLAIN), KEY), kind="indexed_attention")
    assert found == (delta, grams, delta, full, delta)
    assert layers("qwen4exp", {**QWEN4, **blocks(5)}) == (delta, delta, delta, full, delta)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"ple.conv_kernel": 2, "ple.ngram_size": 2}, (128, 2)),
        ({"ple.conv_kernel": 5, "ple.ngram_size": 2}, (128, 8)),
        ({"hyper_connection.count": 1}, (64, 9)),
    ],
)
def test_qwen4_s_n_grams(given, shape):
    assert layers("qwen4exp", {**QWEN4, "ple.layers": [0], **given})[0].stores[0].states[2].shape == shape


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"ple.layers": [3]}, "ple.layers"),
        ({"ple.layers": [4]}, "ple.layers"),
        ({"ple.layers": [99]}, "ple.layers"),
        ({"ple.layers": [0], "ple.conv_kernel": 1}, "ple.conv_kernel"),
        ({"ple.layers": [0], "ple.ngram_size": 1}, "ple.ngram_size"),
    ],
)
def test_n_grams_that_lie_nowhere(given, where):
    assert refused("qwen4exp", {**QWEN4, **given}) == where
