"""vLLM: the first release of each rule, and figures and words that no compared plan holds in place."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Workload
from kvsize.engines import vllm as engine
from kvsize.engines.vllm.formats import KV_FORMATS
from kvsize.engines.vllm.versions import release
from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Encoder, Geometry, Heads, Layer, Recurrent, Sliding, State

GIB = 1 << 30
HEADS = Heads(8, 128, 128)
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(1024)),), kind="sliding_attention")
STATES = Layer((Recurrent("mamba", (State("conv", (64, 4)), State("recurrent", (64, 16)))),), kind="linear_attention")


def model(*layers: Layer, kind: str = "llama", **fields: object) -> Geometry:
    values = {"dtype": "bfloat16", "max_tokens": 131_072, "num_attention_heads": 32, **fields}
    return Geometry(kind, layers, **values)


def size(geometry: Geometry, tokens: int = 8192, kv: str = "auto", encoder: int | None = None, **options) -> CacheSize:
    return engine.size(geometry, Workload(tokens, 1, kv, kv, encoder), engine.Options(**options))


# What a release does, and the first one that does it (read from its sources).
FIRST = {
    ("hybrid_manager", True): "0.9.0",
    ("group_ratio", (5, 4)): "0.12.0",
    ("group_ratio", (3, 2)): "0.18.0",
    ("printed", "groups"): "0.9.0",
    ("printed", "concurrency"): "0.20.1",
    ("batches_in_flight", True): "0.26.0",
    ("async_scheduling", True): "0.14.0",
    ("usable_blocks", True): "0.29.0",
    ("hybrid_prefix_caching", True): "0.26.0",
    ("state_blocks", "by length"): "0.11.0",
    ("state_blocks", "by mode"): "0.16.0",
    ("mamba2_checkpoint", True): "0.32.0",
    ("gdn_checkpoint", True): "0.33.0",
    ("align_to_block_size", True): "0.22.0",
    ("mla_alignment", True): "0.27.0",
    ("large_gpu_batch", True): "0.28.0",
}


def just_before(version: str) -> str:
    major, minor, patch = map(int, version.split("."))
    return f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.99"


@pytest.mark.parametrize(("rule", "value", "first"), [(*rule, first) for rule, first in FIRST.items()])
def test_each_rule_starts_with_its_release(rule, value, first):
    assert getattr(release(first), rule) == value
    assert getattr(release(just_before(first)), rule) != value


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_cross_attention_shows_the_encoders_tokens():
    """The pages are for the step's budget; what attention reads of them is what the encoder yields."""
    cross = model(Layer((Attention(HEADS), Attention(HEADS, Encoder(tokens=1500)))), kind="whisper", max_tokens=448)
    few, many = (size(cross, 448, encoder=count).logical_bytes for count in (100, 1500))
    assert many - few == 1400 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("kv", "width", "bytes_of_a_head"),
    [
        ("turboquant_3bit_nc", 64, (24 + 2) + (24 + 4)),
        ("turboquant_3bit_nc", 40, (15 + 2) + (15 + 4)),
        ("turboquant_k3v4_nc", 40, (15 + 2) + (20 + 4) + 1),  # 41, made even
    ],
)
def test_packed_heads_have_an_even_number_of_bytes(kv, width, bytes_of_a_head):
    assert KV_FORMATS[kv].head(width, width) == bytes_of_a_head


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "later"), [("0.23.0", "0.23.1")])
def test_recurrent_models_without_a_rule_in_later_releases_are_refused(last, later):
    minimax = model(STATES, FULL, kind="minimax", architecture="MiniMaxForCausalLM")
    assert size(minimax, version=last).total_bytes > 0
    with pytest.raises(UnsupportedError, match=f"no longer has MiniMax.*\n.*{last}"):
        size(minimax, version=later)


@pytest.mark.parametrize("text", ["9", "9.0", "12.1", "100.0"])
def test_compute_capabilities(text):
    assert size(model(FULL), device_capability=text).total_bytes > 0


@pytest.mark.parametrize("text", ["", "sm90", "9.", "9.x", "1000.0", "9.0000", "-9.0"])
def test_what_is_no_compute_capability(text):
    with pytest.raises(UnsupportedError, match="compute capability"):
        size(model(FULL), device_capability=text)


# -- words -------------------------------------------------------------------------------------------------------------


def notes(geometry: Geometry, **settings) -> str:
    return "\n".join(size(geometry, kv_memory=8 * GIB, **settings).notes)


def test_the_format_s_source():
    assert size(model(FULL)).format_source == "config"
    assert size(model(FULL, dtype="float32")).format_source.startswith("vLLM computes in bfloat16")


@pytest.mark.parametrize(
    ("layers", "disabled", "said"),
    [((FULL, WINDOW), True, True), ((FULL, WINDOW), False, False), ((WINDOW, WINDOW), True, False)],
)
def test_windows_charged_in_full_are_named(layers, disabled, said):
    text = notes(model(*layers), disable_hybrid_kv_cache_manager=disabled)
    assert ("layers with windows beside full attention are charged in full" in text) == said


@pytest.mark.parametrize(("layers", "said"), [((FULL, WINDOW), True), ((FULL, FULL), False)])
def test_a_misleading_printed_size_is_named_where_there_are_groups(layers, said):
    assert ("trust the concurrency" in notes(model(*layers), version="0.19.0")) == said


# -- context parallelism: ranks that would otherwise hold copies of a KV head ------------------------------------------


@pytest.mark.parametrize(("tp", "dcp"), [(8, 1), (16, 2), (32, 4)])
def test_copies_of_a_head_share_the_context(tp, dcp):
    found = size(model(FULL), tensor_parallel_size=tp, decode_context_parallel_size=dcp)
    assert found.total_bytes == 2 * 128 * 2 * 8192 // dcp


@pytest.mark.parametrize(("tp", "dcp", "queries"), [(8, 2, 32), (16, 4, 32), (40, 2, 40)])
def test_more_ranks_than_copies_are_refused(tp, dcp, queries):
    """Also where the query heads of a KV head are no multiple of the ranks: 40 / 8 of them for 2 ranks."""
    with pytest.raises(UnsupportedError, match=f"refuses {dcp} context-parallel ranks"):
        size(model(FULL, num_attention_heads=queries), tensor_parallel_size=tp, decode_context_parallel_size=dcp)
