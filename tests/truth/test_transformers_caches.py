"""Quantised, paged and offloaded transformers caches against what was measured on them."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import transformers as engine
from kvsize.engines.transformers import paged
from kvsize.errors import KvsizeError, UnsupportedError
from kvsize.formats import format_of
from kvsize.geometry import Attention, Full, Geometry, Heads, Layer, Recurrent, Sliding, State

TRUTH = Path(__file__).parents[2] / "validate" / "truth"


def rows(name):
    return [json.loads(line) for line in (TRUTH / name).read_text().splitlines()[1:]]


# -- quantised ---------------------------------------------------------------------------------------------------------


def quantized(row):
    heads = Heads(row["kv_heads"], row["k_head_dim"], row["v_head_dim"])
    model = Geometry("llama", (Layer((Attention(heads),)),), num_attention_heads=row["kv_heads"])
    given = {
        name: row[name]
        for name in ("nbits", "q_group_size", "residual_length", "axis_key", "axis_value")
        if name in row
    }
    options = engine.Options(cache="quantized", backend=row["backend"], **given)
    workload = Workload(row["tokens"], row["B"], "bfloat16", "bfloat16", prompt_tokens=row["prompt"])
    return engine.size(model, workload, options)


def test_quantized_rows_are_exact():
    wrong, seen = [], 0
    for row in rows("transformers-5.23.0-quantized.jsonl"):
        seen += 1
        try:
            size = quantized(row)
            got = (size.logical_bytes, size.total_bytes)
        except UnsupportedError:
            got = (None, None)
        if got != (row["logical_bytes"], row["storage_bytes"]):
            wrong.append((row, got))
    assert not wrong
    assert seen == 207


def test_the_newest_tokens_stay_in_full_precision():
    row = {"backend": "quanto", "B": 1, "kv_heads": 8, "k_head_dim": 128, "v_head_dim": 128, "prompt": 64}
    almost, repacked = (quantized({**row, "tokens": 64 + n}).total_bytes for n in (127, 128))
    assert almost == 73_728 + 127 * 4096  # 76 % of bfloat16
    assert repacked == 192 * 4096 * 9 // 32  # 28 %


def test_sliding_layers_are_refused_by_name():
    layers = (
        Layer((Attention(Heads(1, 64, 64), Sliding(8)),), kind="sliding_attention"),
        Layer((Attention(Heads(1, 64, 64)),)),
    )
    with pytest.raises(UnsupportedError, match="layers 0, 2 are sliding_attention"):
        engine.size(Geometry("gemma2", layers * 2, dtype="bfloat16"), Workload(64), engine.Options(cache="quantized"))


# -- paged -------------------------------------------------------------------------------------------------------------

# Continuous batching reads config attributes that say nothing of what is cached: heads of a model that keeps no cache
# (XLM). Two rows were measured before the heads of the default config were edited (Nemotron, Qwen3-Omni).
# A pool is built for any config, but generate_batch of T5 or Whisper fails for want of an encoder's output.
ENCODER_DECODERS = 27
UNLIKE = {"xlm", "nemotron", "qwen3_omni_moe_thinker"}


def test_paged_rows_are_exact():
    wrong, fed, seen = [], [], 0
    for row in rows("transformers-5.23.0-paged.jsonl"):
        seen += 1
        settings = row["settings"]
        page = settings.get("page_size", paged.DEFAULT_PAGE)
        options = engine.Options(
            cache="paged",
            page_size=page,
            num_blocks=settings.get("num_blocks"),
            kv_memory=settings["free_bytes"],
            max_num_batched_tokens=settings.get("max_batch_tokens", 8192),
            attn_implementation=settings["attn"],
        )
        try:
            model = geometry(row["config"])
            size = engine.size(model, Workload(100, 1, "bfloat16", "bfloat16"), options)
            plan = paged.plan(model, format_of("bfloat16"), page)
            requests = {tokens: plan.request_bytes(int(tokens)) for tokens in row["requests"]}
            got = (size.pool.bytes_per_block, size.pool.num_blocks, requests)
            refusal = ""
        except KvsizeError as error:
            got, refusal = (None, None, {}), error.what
        if got != (row["sector_bytes"], row["num_sectors"], row["requests"]):
            (fed if "feeds no encoder" in refusal else wrong).append(row["name"])
    assert set(wrong) == UNLIKE
    assert len(fed) == ENCODER_DECODERS
    assert seen == 270


def test_a_one_token_request_takes_two_sectors_where_layer_counts_are_coprime():
    kinds = ("sliding_attention",) * 46 + ("full_attention",) * 16
    layers = tuple(
        Layer((Attention(Heads(16, 64, 64), Sliding(2048) if kind == "sliding_attention" else Full()),), kind=kind)
        for kind in kinds
    )
    plan = paged.plan(Geometry("muse_spark_text", layers), format_of("bfloat16"), 256)
    assert plan.sector_bytes == 385_875_968
    assert plan.request_bytes(1) == 2 * plan.sector_bytes


# -- offloaded ---------------------------------------------------------------------------------------------------------

# The traced models: 12 tokens of 4 heads x 16 in float32, windows of 8, 32 static slots.
FULL = Layer((Attention(Heads(4, 16, 16)),))
WINDOW = Layer((Attention(Heads(4, 16, 16), Sliding(8)),), kind="sliding_attention")
STATES = Recurrent("mamba2", (State("recurrent", (1584,)),))
HYBRID = Layer((Attention(Heads(4, 16, 16)), STATES), kind="hybrid")
MODELS = {
    "qwen3_next": (*((Layer((STATES,), kind="linear_attention"),) * 3), FULL) * 2,
    "llama": (FULL,) * 6,
    "gemma3": (*(WINDOW,) * 5, FULL),
    "falcon_h1": (HYBRID,) * 4,
    "mistral": (WINDOW,) * 4,
}


@pytest.mark.parametrize("row", rows("transformers-5.23.0-offload.jsonl"), ids=lambda row: row["case"])
def test_offloaded_rows_are_exact(row):
    name = row["case"].split()[0]
    static = "static" in row["case"]
    options = engine.Options(
        cache="offloaded_static" if static else "offloaded", offload_only_non_sliding=row["only_non_sliding"]
    )
    model = Geometry(name, MODELS[name])
    workload = Workload(32 if static else 12, 1, "float32", "float32")
    if row["total_bytes"] is None:
        with pytest.raises(UnsupportedError, match="no layer of"):
            engine.size(model, workload, options)
        return
    size = engine.size(model, workload, options)
    if name == "qwen3_next":  # two full layers: both are on the device while one is updated, states always
        assert (size.host_bytes, row["total_bytes"]) == (0, row["peak_resident_bytes_excl_transients"])
        return
    # The rows count what tensors show; a window that stays keeps one more token's storage behind its view.
    behind_views = 5 * 512 if row["only_non_sliding"] and not static and name == "gemma3" else 0
    assert size.total_bytes == row["total_bytes"] + behind_views
    on_device = size.total_bytes - size.host_bytes
    assert on_device == row["peak_resident_bytes_excl_transients"] + behind_views


def test_offloading_defaults_differ_between_dynamic_and_static():
    model = Geometry("gemma3_text", (*(WINDOW,) * 5, FULL, *(WINDOW,) * 5, FULL, *(WINDOW,) * 5, FULL))
    dynamic, static = (
        engine.size(model, Workload(64, 1, "float32", "float32"), engine.Options(cache=cache)).host_bytes
        for cache in ("offloaded", "offloaded_static")
    )
    assert dynamic == 2 * 64 * 512 + 14 * 7 * 512  # all but one full layer and the window after it
    assert static == 64 * 512  # windows stay; two of three full layers are on the device
