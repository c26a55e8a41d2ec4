"""vLLM: blocks, shares and sentences worked out by hand, where no compared plan holds a rule in place."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, LayerBytes, Workload
from kvsize.engines import vllm as engine
from kvsize.engines.vllm.formats import KV_FORMATS, index_key_bytes, name_of
from kvsize.engines.vllm.groups import stages
from kvsize.engines.vllm.models import LAST_RELEASE, STATES
from kvsize.errors import UnsupportedError
from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
)

GIB = 1 << 30
TOKEN = 8 * 256 * 2  # bytes of one token of FULL
FULL = Layer((Attention(Heads(8, 128, 128)),))
HALF = Layer((Attention(Heads(4, 128, 128)),))
WINDOW = Layer((Attention(Heads(8, 128, 128), Sliding(1024)),), kind="sliding_attention")
CHUNK = Layer((Attention(Heads(8, 128, 128), Chunked(1024)),), kind="chunked_attention")
MLA = Layer((Attention(Latent(512, 64, Heads(128, 192, 128))),))
DSA = Layer((*MLA.stores, Attention(IndexKey(128))))
CROSS = Layer((Attention(Heads(8, 128, 128)), Attention(Heads(8, 128, 128), Encoder(tokens=1500))))
NOTHING = Layer(kind="mlp")


def mamba(channels: int) -> Layer:
    """(3 + 16) x channels elements in bfloat16."""
    return Layer((Recurrent("mamba", (State("conv", (channels, 4)), State("recurrent", (channels, 16)))),))


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    values = {"dtype": "bfloat16", "max_tokens": 131_072, "num_attention_heads": 32, **fields}
    return Geometry(kind, layers, **values)


def size(geometry: Geometry, tokens: int = 8192, kv: str = "auto", encoder: int | None = None, **options) -> CacheSize:
    return engine.size(geometry, Workload(tokens, 1, kv, kv, encoder), engine.Options(**options))


def logical(*layers: Layer, tokens: int = 8192, **rest) -> list[int]:
    kind = rest.pop("kind", "llama")
    return [layer.logical for layer in size(model(*layers, kind=kind), tokens, **rest).layers]


# -- formats -----------------------------------------------------------------------------------------------------------

LATENTS = {  # of 576 elements: without an indexer, and with one
    "bfloat16": (1152, 1152),
    "float16": (1152, 1152),
    "fp8": (576, 576),
    "fp8_e4m3": (576, 576),
    "fp8_ds_mla": (None, 656),
    "nvfp4_ds_mla": (None, 352),
}


@pytest.mark.parametrize("name", KV_FORMATS)
def test_bytes_of_a_latent(name):
    entry = KV_FORMATS[name]
    found = tuple(None if width is None else width(576) for width in (entry.latent, entry.indexed))
    assert found == LATENTS.get(name, (None, None))


def test_which_formats_need_blackwell_are_packed_or_want_k_as_wide_as_v():
    def named(flag: str) -> set[str]:
        return {name for name, entry in KV_FORMATS.items() if getattr(entry, flag)}

    turbo = {"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"}
    assert named("blackwell") == {"nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"}
    assert named("packed") == turbo
    assert named("symmetric") == turbo | {"nvfp4", "nvfp4_4over6"}


@pytest.mark.parametrize(("dim", "bytes_"), [(64, 64), (128, 132), (256, 264)])
def test_an_index_key_has_a_scale_for_each_128(dim, bytes_):
    assert index_key_bytes(dim) == bytes_


@pytest.mark.parametrize(
    ("text", "name"), [("BF16", "bfloat16"), ("fp16", "float16"), ("FP8", "fp8"), ("fp8_E5M2", "fp8_e5m2")]
)
def test_names_of_formats(text, name):
    assert name_of(text) == name


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_hybrid_s_block_covers_the_widest_states_with_the_widest_attention():
    """128 channels are 4,864 bytes; 16 tokens of two heads of 16 are 2,048: 3 x 16 tokens."""
    narrow, wide = (Layer((Attention(Heads(count, 16, 16)),)) for count in (1, 2))
    found = size(model(mamba(64), mamba(128), narrow, wide, kind="jamba"), kv_memory=GIB).pool
    assert [(group.name, group.page_bytes) for group in found.groups] == [
        ("recurrent states", 6144),
        ("recurrent states", 6144),
        ("full attention", 6144),
        ("full attention", 6144),
    ]
    assert sorted(group.block_tokens for group in found.groups) == [48, 48, 48, 96]


@pytest.mark.parametrize(("caching", "block"), [(True, 16), (False, 8192)])
def test_states_alone_have_the_kernels_block_under_prefix_caching(caching, block):
    found = size(model(mamba(64), kind="mamba"), kv_memory=GIB, enable_prefix_caching=caching)
    assert found.pool.block_size == block


@pytest.mark.parametrize(("tp", "dcp", "step"), [(1, 1, 16), (16, 1, 16), (16, 2, 32)])
def test_context_parallel_ranks_take_a_block_each(tp, dcp, step):
    found = size(model(FULL), tensor_parallel_size=tp, decode_context_parallel_size=dcp)
    assert found.step_tokens == step


@pytest.mark.parametrize(
    ("layers", "pp", "unit", "shares"),
    [
        (10, 1, 1, [10]),
        (10, 4, 1, [2, 3, 3, 2]),
        (11, 4, 1, [3, 3, 3, 2]),
        (12, 4, 1, [3, 3, 3, 3]),
        (10, 2, 2, [6, 4]),  # 5 units: the last stage has fewer
    ],
)
def test_layers_left_over_go_to_the_middle(layers, pp, unit, shares):
    found = stages(layers, pp, unit)
    assert [len(span) for span in found] == shares
    assert [index for span in found for index in span] == list(range(layers))


# -- whose bytes -------------------------------------------------------------------------------------------------------


def test_layers_without_a_cache_pay_nothing():
    assert size(model(FULL, NOTHING)).layers[1] == LayerBytes(0, 0, 0)


@pytest.mark.parametrize(("layer", "tokens", "kept"), [(WINDOW, 8192, 1024), (CHUNK, 8192, 1024), (WINDOW, 100, 100)])
def test_a_window_reaches_so_far(layer, tokens, kept):
    assert logical(layer, tokens=tokens) == [kept * TOKEN]


def test_a_rank_s_share_of_the_context():
    options = {"tensor_parallel_size": 16, "decode_context_parallel_size": 2}
    assert logical(FULL, tokens=8191, **options) == [4096 * 512]


def test_states_and_encoder_tokens_reach_as_they_are():
    assert logical(mamba(64), kind="mamba") == [64 * 19 * 2]
    assert logical(CROSS, tokens=448, kind="whisper") == [(448 + 8192) * TOKEN]
    assert logical(CROSS, tokens=448, kind="whisper", encoder=10_000) == [(448 + 8192) * TOKEN]


# -- refusals, on both sides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "tokens", "options"),
    [
        (model(FULL, max_tokens=4096), 4096, {}),
        (model(FULL, max_tokens=None), 10**6, {}),
        (model(FULL), 4096, {"max_model_len": 4096}),
        (model(FULL, kind="bert", max_tokens=512), 512, {"max_num_batched_tokens": 512}),
        (model(FULL, num_attention_heads=None), 64, {"tensor_parallel_size": 8}),
        (model(mamba(64), kind="mamba", num_attention_heads=5), 64, {"tensor_parallel_size": 2}),
        (model(FULL, FULL), 64, {"pipeline_parallel_size": 2}),
        (model(*[MLA] * 4, kind="longcat_flash"), 64, {"pipeline_parallel_size": 2}),
        (
            model(Layer((Attention(Heads(1, 128, 128)),)), num_attention_heads=None),
            64,
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
        ),
        (model(FULL, FULL, FULL, Layer(FULL.stores, shares=2), kind="gemma3n_text"), 64, {"pipeline_parallel_size": 2}),
    ],
)
def test_accepted(geometry, tokens, options):
    assert size(geometry, tokens, **options).version == "0.33.0"


TWO_COUNTS = model(FULL, HALF, num_attention_heads=24)


@pytest.mark.parametrize(
    ("geometry", "tokens", "options", "words"),
    [
        (model(FULL, max_tokens=4096), 4097, {}, "the config says 4,096 tokens"),
        (model(FULL), 4097, {"max_model_len": 4096}, "longer than --max-model-len 4,096"),
        (model(FULL, kind="bert", max_tokens=512), 512, {"max_num_batched_tokens": 511}, "in one step of at most 511"),
        (model(FULL, FULL), 64, {"pipeline_parallel_size": 3}, "2 layers are too few for 3"),
        (model(*[MLA] * 4, kind="longcat_flash"), 64, {"pipeline_parallel_size": 3}, "4 layers are too few for 3"),
        (
            model(mamba(64), FULL, kind="jamba"),
            64,
            {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
            "no decode context parallelism for this model",
        ),
        (
            model(NOTHING),
            64,
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            "no decode context parallelism for this model",
        ),
        # the more KV heads decide: 8 of them on 8 ranks leave no copies, 24 / 8 query heads no even share
        (TWO_COUNTS, 64, {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, "leave 1 copies"),
        (TWO_COUNTS, 64, {"tensor_parallel_size": 24, "decode_context_parallel_size": 2}, "leave 3 copies"),
        (model(MLA, WINDOW, kind="deepseek_v3"), 64, {}, "cannot pad a latent's page"),
    ],
)
def test_refused(geometry, tokens, options, words):
    with pytest.raises(UnsupportedError, match=words):
        size(geometry, tokens, **options)


# The last release with a class or a type (registry.py _PREVIOUSLY_SUPPORTED_MODELS).
LAST = {
    "Phi3SmallForCausalLM": "0.9.2",
    **dict.fromkeys(("MllamaForConditionalGeneration", "MotifForCausalLM"), "0.10.2"),
    **dict.fromkeys(("BaiChuanForCausalLM", "BaichuanForCausalLM", "XverseForCausalLM"), "0.23.0"),
    **dict.fromkeys(("InternLMForCausalLM", "QWenLMHeadModel", "QwenVLForConditionalGeneration"), "0.23.0"),
    **dict.fromkeys(("AquilaModel", "AquilaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM"), "0.24.0"),
    "TeleChatForCausalLM": "0.25.0",
    **dict.fromkeys(("Plamo2ForCausalLM", "OuroForCausalLM"), "0.26.0"),
    **dict.fromkeys(("ArcticForCausalLM", "RWForCausalLM", "StableLMEpochForCausalLM", "MPTForCausalLM"), "0.28.0"),
}


def refused_after(geometry: Geometry, last: str) -> bool:
    major, minor, patch = last.split(".")
    assert size(geometry, version=last).version == last
    with pytest.raises(UnsupportedError, match=f"The last release with it is {last}"):
        size(geometry, version=f"{major}.{minor}.{int(patch) + 1}")
    return True


@pytest.mark.parametrize("name", LAST)
def test_the_last_release_with_a_class(name):
    assert refused_after(model(FULL, architecture=name), LAST[name])


@pytest.mark.parametrize("kind", ["bamba", "minimax", "minimax_text_01", "minimax_m1"])
def test_the_last_release_with_a_recurrent_type(kind):
    assert refused_after(model(mamba(64), FULL, kind=kind), "0.23.0")


def test_no_other_class_or_type_has_left():
    assert set(LAST_RELEASE) == set(LAST)
    assert {kind for kind, rule in STATES.items() if rule.until} == {
        "bamba",
        "minimax",
        "minimax_text_01",
        "minimax_m1",
    }


# -- words -------------------------------------------------------------------------------------------------------------

RANKS, LATENT, COPIES = "bytes are those of one of", "lies whole on every", "hold copies of the same heads"
SLOTS, GIVEN, CHARGED, CROSSED = "layer slots share one pool", "is given up to", "are charged in full", "encoder tokens"
STATE, PADDED, TURBO = "state blocks that each", "states are filled up to", "TurboQuant keeps"
CASES = [
    (model(FULL), {}, RANKS, None),
    (model(FULL), {"tensor_parallel_size": 2}, RANKS, "one of 2 tensor-parallel ranks"),
    (model(FULL, FULL), {}, "pipeline stages together", None),
    (
        model(FULL, FULL, FULL),
        {"pipeline_parallel_size": 2},
        "pipeline stages together",
        "a block takes 131,072, 65,536",
    ),
    (model(MLA, kind="deepseek_v3"), {}, LATENT, None),
    (model(MLA, kind="deepseek_v3"), {"tensor_parallel_size": 2}, LATENT, "tensor-parallel rank"),
    (model(FULL), {"tensor_parallel_size": 2}, LATENT, None),
    (
        model(MLA, kind="deepseek_v3"),
        {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
        LATENT,
        None,
    ),
    (model(FULL), {"tensor_parallel_size": 8}, COPIES, None),
    (model(FULL, HALF), {"tensor_parallel_size": 8}, COPIES, "4 KV heads on 8 ranks"),
    (model(FULL, WINDOW), {}, SLOTS, None),
    (model(*[FULL] * 5, *[WINDOW] * 4), {}, SLOTS, "2 groups of 5 layer slots share one pool"),
    (model(*[FULL] * 5, *[WINDOW] * 4), {}, SLOTS, "which are paid for: 1"),
    (model(FULL), {}, GIVEN, None),
    (model(FULL, WINDOW), {}, GIVEN, "1,024 tokens is given up to 16,384 more, for those of the steps in flight"),
    (model(FULL, WINDOW), {}, GIVEN, "(--max-num-batched-tokens 8,192): room for 8,208 tokens"),
    (model(FULL, CHUNK), {}, GIVEN, "room for 8,192 tokens"),
    (model(FULL, FULL), {"disable_hybrid_kv_cache_manager": True}, CHARGED, None),
    (model(FULL, WINDOW), {"disable_hybrid_kv_cache_manager": True}, CHARGED, "layers with windows beside full"),
    (model(FULL, CHUNK), {"version": "0.8.5"}, CHARGED, "layers with windows beside full"),
    (model(FULL, CHUNK), {}, CHARGED, None),
    (model(FULL), {}, CROSSED, None),
    (model(CROSS, kind="whisper"), {}, CROSSED, "given 8,192 encoder tokens"),
    (model(FULL), {}, STATE, None),
    (model(mamba(64), FULL, kind="jamba"), {}, STATE, "a request: 2 (prefix caching keeps more than the one in use)"),
    (model(mamba(64), FULL, kind="jamba"), {"num_speculative_tokens": 3}, STATE, "a request: 5 (prefix caching"),
    (model(mamba(64), FULL, kind="jamba"), {"enable_prefix_caching": False}, "prefix caching keeps", None),
    (model(mamba(64), FULL, kind="jamba"), {}, PADDED, "a block is 16 tokens"),
    (model(mamba(64), FULL, kind="jamba"), {}, PADDED, "states of 2,432 bytes; states are filled up to 65,536"),
    (model(mamba(64), kind="mamba"), {}, PADDED, None),
    (model(*[FULL] * 5), {"kv": "turboquant_k8v4"}, TURBO, "the first two and the last two layers in bfloat16"),
    (model(mamba(64), FULL, kind="jamba"), {"kv": "turboquant_k8v4"}, TURBO, None),
    (model(FULL), {}, TURBO, None),
    (model(FULL), {}, "printed KV cache size", "concurrency x max_model_len"),
    (model(FULL), {"version": "0.20.0"}, "KV cache size", None),
    (model(FULL, WINDOW), {"version": "0.20.0"}, "KV cache size", "blocks / groups x block size"),
    (model(FULL), {"version": "0.8.5"}, "KV cache size", "prints blocks x block size"),
    (model(FULL, kind="bert"), {}, "runs this model as an encoder", "keeps no KV cache"),
    (model(NOTHING), {}, "runs this model as an encoder", None),
    (model(FULL), {}, "vLLM 0", None),
    (model(FULL), {"version": "0.32.0"}, "vLLM 0", "0.32.0: rules read from its sources, not run"),
    (model(FULL), {"version": "0.33.1"}, "vLLM 0", "0.33.1 is newer than the newest modelled release"),
]


@pytest.mark.parametrize(("geometry", "options", "about", "words"), CASES)
def test_what_is_said(geometry, options, about, words):
    """The sentence about something, or none."""
    said = [note for note in size(geometry, **options).notes if about in note]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
