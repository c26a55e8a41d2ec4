"""SGLang: values on the bounds of its rules, which no compared pool holds in place."""

from __future__ import annotations

import pytest

from kvsize.engines import CacheSize, Workload
from kvsize.engines import sglang as engine
from kvsize.engines.sglang import fraction
from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Geometry, Heads, Layer, Recurrent, Sliding, State

GIB = 1 << 30
HEADS = Heads(8, 128, 128)
TOKEN = 8 * 256 * 2  # bytes of one token in one layer
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(128)),), kind="sliding_attention")
DELTA = Recurrent("gated_delta", (State("conv", (8192, 4)), State("recurrent", (32, 128, 128), "float32")))
SLOT = 8192 * 3 * 2 + 32 * 128 * 128 * 4


def model(*layers: Layer, name: str = "LlamaForCausalLM", kind: str = "llama") -> Geometry:
    values = {"num_attention_heads": 32, "max_tokens": 32_768, "dtype": "bfloat16"}
    return Geometry(kind, layers, architecture=name, **values)


def answer(geometry: Geometry, **options) -> CacheSize:
    return engine.size(geometry, Workload(1000), engine.Options(**options))


@pytest.mark.parametrize(
    ("gib", "ranks", "chunk", "batch"),
    [
        (19.9, 1, 2048, 8),
        (20, 1, 4096, 48),
        (34.9, 4, 4096, 160),
        (34.9, 3, 4096, 48),
        (35, 1, 4096, 32),
        (59.9, 4, 4096, 160),
        (60, 1, 8192, 256),
        (159.9, 4, 8192, 512),
        (160, 1, 16_384, 512),
    ],
)
def test_defaults_change_where_the_memory_does(gib, ranks, chunk, batch):
    assert fraction.defaults(gib * 1024, ranks) == (chunk, batch)


@pytest.mark.parametrize(("page", "stages"), [(1, 1), (64, 1), (64, 2)])
def test_every_buffer_has_one_page_of_padding(page, stages):
    found = answer(model(*[FULL] * 4), kv_memory=GIB, page_size=page, pipeline_parallel_size=stages)
    assert f"{page * 4 // stages * TOKEN:,} bytes" in padding_note(found)


def test_windows_beside_full_layers_have_their_own_padding():
    both = model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")
    assert f"{2 * TOKEN:,} bytes" in padding_note(answer(both, kv_memory=GIB, page_size=1))


def padding_note(size: CacheSize) -> str:
    return next(note for note in size.notes if "one page of padding" in note)


def test_one_slot_is_a_pool_and_none_is_refused():
    hybrid = model(Layer((DELTA,)), FULL, kind="qwen3_next", name="Qwen3NextForCausalLM")
    low, high = 1, GIB
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if slots(hybrid, middle) else (middle, high)
    assert slots(hybrid, high) == 1
    with pytest.raises(UnsupportedError, match=f"{low:,} bytes hold no state slot of {SLOT:,} bytes"):
        answer(hybrid, kv_memory=low)


def slots(geometry: Geometry, memory: int) -> int:
    try:
        notes = answer(geometry, kv_memory=memory).notes
    except UnsupportedError:
        return 0
    return next(int(note.split("state slots: ")[1].split(",")[0]) for note in notes if "state slots: " in note)


def test_without_attention_the_context_limits_one_stage():
    """Several stages: another one has the attention, and this one limits nothing."""
    states = model(Layer((DELTA,)), Layer((DELTA,)), kind="qwen3_next", name="Qwen3NextForCausalLM")
    assert answer(states, kv_memory=GIB).pool.tokens == 32_768


# -- windows -----------------------------------------------------------------------------------------------------------

GPT = model(FULL, WINDOW, kind="gpt_oss", name="GptOssForCausalLM")


def test_a_draft_is_charged_beside_windows():
    """Its layers are like the target's full ones: one more of them, and four fifths of a window pool's token."""
    plain = answer(GPT, kv_memory=GIB, page_size=1).pool.tokens
    drafting = answer(GPT, kv_memory=GIB, page_size=1, num_speculative_tokens=3).pool.tokens
    assert plain == int(GIB // (TOKEN + 0.8 * TOKEN))
    assert drafting == int(GIB // (2 * TOKEN + 0.8 * TOKEN))


@pytest.mark.parametrize(("replicas", "requests"), [(1, 64), (2, 32), (4, 16)])
def test_replicas_share_the_running_requests(replicas, requests):
    found = answer(
        GPT,
        kv_memory=4 * GIB,
        page_size=1,
        disable_radix_cache=True,
        max_running_requests=64,
        tensor_parallel_size=replicas,
        data_parallel_size=replicas,
    )
    kept = requests * (128 + 128 + 1 + 1) + 2 * 8192 + 1
    assert f"the window pool holds {kept:,} tokens" in "\n".join(found.notes)
