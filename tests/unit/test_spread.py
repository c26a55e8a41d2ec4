"""Layers and weights on several GPUs, or partly in host memory, as llama.cpp and device_map="auto" put them."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from gguffile import gguf, tensor

from kvsize.architectures import geometry
from kvsize.cli import run
from kvsize.cli.options import parse_bytes
from kvsize.deployment.case import Asked, make_case
from kvsize.deployment.judge import evaluate, judge
from kvsize.deployment.spread import dealt, fullest, need, shares
from kvsize.engines import CacheSize, LayerBytes, Overhead, Workload
from kvsize.gguf import LayerWeights, by_layer, load
from kvsize.gpus import select
from kvsize.ranges import Range, exactly
from kvsize.source import load as load_model
from kvsize.weights import Weights
from kvsize.weights.facts import facts_of

GIB = 2**30


@pytest.mark.parametrize(
    ("layers", "gpus", "offloaded", "counts"),
    [
        (32, 1, None, [33]),
        (32, 2, None, [17, 16]),  # the second holds 15 layers and the output
        (32, 3, -1, [11, 11, 11]),
        (80, 4, 999, [21, 20, 20, 20]),
        (32, 1, 20, [20]),  # "offloaded 20/33 layers to GPU": the last 19, and the output
        (32, 2, 5, [3, 2]),
        (32, 2, 0, [0, 0]),
    ],
)
def test_layers_and_the_output_are_dealt_in_equal_numbers(layers, gpus, offloaded, counts):
    items = dealt(layers, gpus, offloaded)
    assert [len(own) for own in items] == counts
    assert items[-1].stop == layers + 1
    assert all(one.stop == other.start for one, other in pairwise(items))


GGUF = Weights(1000, "exact", "header", by_layer=LayerWeights(300, (100, 120, 130, 150), 200))


def held(weights, gpus, offloaded=None, engine="llama.cpp", layers=(4, 0), config=None):
    found = shares(engine, weights, config or {}, layers, gpus, offloaded)
    return [share.weights.bytes for share in found]


def test_a_header_tells_each_gpu_to_the_byte():
    assert held(GGUF, 1) == [exactly(700)]  # the input's 300 stay in host memory
    assert held(GGUF, 2) == [exactly(350), exactly(350)]
    assert held(GGUF, 1, offloaded=2) == [exactly(350)]
    assert held(GGUF, 1, offloaded=0) == [exactly(0)]
    assert held(GGUF, 2, offloaded=3) == [exactly(280), exactly(200)]


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def test_a_sum_alone_makes_a_range():
    weights = Weights(1_000_000, "derived", "recorded")
    assert held(weights, 1, config=LLAMA) == [exactly(1_000_000)]
    first, second = held(weights, 2, config=LLAMA)
    table, norms = 2 * 128 * 64, 16 * 64  # two tables, of the input and of the output; norms lie on the last
    body = 1_000_000 - 2 * table
    assert first.low == 3 * (body - norms) // 4 + table
    assert 3 * body // 4 + table <= first.high <= 3 * body // 4 + table + norms
    assert second == Range((body - norms) // 4 + table, body // 4 + table + norms)


def test_accelerate_may_put_two_layers_more_on_a_gpu():
    weights = Weights(1_000_000, "derived", "recorded")
    [first, second] = held(weights, 2, config=LLAMA, engine="llama.cpp")
    [wide, last] = held(weights, 2, config=LLAMA, engine="transformers")
    assert (wide.low, last.low) == (first.low, second.low)
    assert wide.high == 1_000_000  # 3 of 4 layers and 2 more: all
    assert last.high == second.high + 2 * 250_000


SIZE = CacheSize(
    engine="x",
    version="1",
    cache="x",
    k_format="f16",
    v_format="f16",
    layers=(LayerBytes(10, 10, 12, 0), LayerBytes(10, 10, 12, 10), LayerBytes(30, 30, 36, 0), LayerBytes()),
    overheads=(Overhead("pad", 5),),
    transient_bytes=7,
)


def test_the_cache_follows_its_layers():
    first, second = shares("llama.cpp", GGUF, {}, (4, 0), 2, None)
    assert (first.layers, second.layers) == (range(3), range(3, 5))
    assert need(SIZE, first, at_peak=False) == 10 + 0 + 30 + 5  # the second layer's lies on the host
    assert need(SIZE, second, at_peak=False) == 5
    assert need(SIZE, first, at_peak=True) == (12 + 2 + 36) + 5 + 7
    assert fullest(SIZE, (first, second), at_peak=False) == first
    [whole] = shares("llama.cpp", GGUF, {}, (4, 0), 1, None)
    assert need(SIZE, whole, at_peak=False) == SIZE.total_bytes - 10
    assert need(SIZE, whole, at_peak=True) == SIZE.peak_bytes - 10


# -- headers -----------------------------------------------------------------------------------------------------------

TENSORS = [
    tensor("token_embd.weight", (64, 100)),
    tensor("per_layer_token_embd.weight", (64, 10)),
    tensor("blk.0.attn_q.weight", (64, 64)),
    tensor("blk.1.attn_q.weight", (64, 32)),
    tensor("output_norm.weight", (64,)),
]


def by_name(tmp_path, tensors):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({"general.architecture": "llama"}, tensors))
    return load(path).by_layer


def test_tables_of_the_input_stay_on_the_host_and_a_tied_output_is_a_copy(tmp_path):
    f32 = 4
    assert by_name(tmp_path, TENSORS) == LayerWeights(
        input=f32 * 64 * 110, layers=(f32 * 64 * 64, f32 * 64 * 32), output=f32 * (64 + 64 * 100)
    )
    own = [*TENSORS, tensor("output.weight", (64, 100))]
    assert by_name(tmp_path, own) == by_name(tmp_path, TENSORS)


def test_no_block_number_makes_a_long_list():
    assert by_layer(()) == LayerWeights(0, (), 0)


# -- fit ---------------------------------------------------------------------------------------------------------------


def case(gpu, engine="llama.cpp", tokens=8192, settings=None, model="meta-llama/Llama-3.1-70B", weights=None):
    files = load_model(model, offline=True)
    known = Asked(None if weights is None else parse_bytes(weights, "--weights"), offline=True)
    return make_case(files, select(gpu), engine, Workload(tokens), settings or {}, {}, weights=known)


@pytest.mark.parametrize(("engine", "gib"), [("llama.cpp", 69), ("transformers", 75)])
def test_two_gpus_are_not_one_of_twice_the_size(engine, gib):
    outcome = judge(case(f"2x{gib}GiB", engine))
    assert outcome.budget.total == exactly(gib * GIB)
    # 41 of 80 layers, or two more where weights are balanced, and both tables at most
    assert outcome.shares[0].weights.bytes.low > 64 * GIB
    assert outcome.verdict != judge(case(f"{2 * gib}GiB", engine)).verdict == "fits"
    assert evaluate(case(f"4x{gib}GiB", engine)).verdict == "fits"


def test_each_gpu_has_a_context_and_a_compute_buffer_of_its_own():
    one, two = (judge(case(gpu, model="meta-llama/Llama-3.1-8B")) for gpu in ("24GiB", "2x24GiB"))
    parts = {part.name: part.bytes for part in two.budget.parts}
    assert parts["non_torch"] == Range(GIB // 4, GIB * 6 // 10)
    assert parts["activations"].high > {part.name: part.bytes for part in one.budget.parts}["activations"].high
    assert two.need_bytes == 17 * 2 * 8 * 128 * 2 * 8192  # of 32 layers
    assert one.need_bytes == 32 * 2 * 8 * 128 * 2 * 8192


def test_layers_in_host_memory_take_no_room_on_the_gpu():
    partly = judge(case("24GiB", settings={"n_gpu_layers": 21}))
    assert partly.need_bytes == 20 * 2 * 8 * 128 * 2 * 8192
    assert partly.budget.parts[0].bytes.high < 40 * GIB  # a quarter of 131.4 GiB, and a table
    assert judge(case("24GiB", settings={"n_gpu_layers": 0})).budget.parts[0].bytes == exactly(0)


def test_scores_without_flash_attention_are_in_the_compute_buffer():
    plain, flash = (
        judge(case("80GiB", tokens=32_768, model="meta-llama/Llama-3.1-8B", settings={"flash_attn": on}))
        for on in ("off", "on")
    )
    highs = [o.budget.parts[1].bytes.high for o in (plain, flash)]
    scores, feed_forward = 4 * 512 * 33 * 32_768, 4 * 512 * 128_256 + 16 * 512 * 4096
    assert highs[0] - highs[1] == pytest.approx(16 * 512 * 4096 + scores - feed_forward, abs=2)


def test_a_sparse_indexer_scores_every_cell():
    """8,127 MiB were printed for GLM-5.3-Flash."""
    big = judge(case("8xb200", tokens=131_072, model="deepseek-ai/DeepSeek-V3.2", weights="640GiB"))
    shape = replace(big.case.shape, index_heads=None)
    without = judge(replace(big.case, shape=shape))
    assert shape != big.case.shape
    more = big.budget.parts[1].bytes.high - without.budget.parts[1].bytes.high
    assert more == pytest.approx(4 * 512 * 64 * 131_072, abs=2)


def test_geometry_counts_the_layers_that_are_dealt():
    files = load_model("meta-llama/Llama-3.1-70B", offline=True)
    assert len(geometry(files.config).layers) == 80


def test_a_file_is_asked_of_the_engine_that_reads_it(tmp_path, capsys):
    """With vLLM as the default for every model, a GGUF was refused for a config key that only the Hub's files have."""
    path = tmp_path / "m.gguf"
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 2048,
    }
    layers = [tensor(f"blk.{index}.attn_q.weight", (64, 64)) for index in range(2)]
    path.write_bytes(gguf(keys, [*layers, tensor("output.weight", (64, 100))]))
    code, found = fitted(capsys, path)
    assert (code, found["engine"]["name"], found["budget"]["weights"]["low"]) == (0, "llama.cpp", 4 * 64 * 228)
    code, found = fitted(capsys, path, "--engine", "vllm", "--gpu", "2x24GiB")
    assert (code, found["budget"]["weights"]) == (0, {"low": 4 * 64 * 114, "high": 4 * 64 * 228})
    code, found = fitted(capsys, path, "--engine", "transformers")
    assert (code, found["verdict"]) == (1, "unknown")
    assert "unpacks a GGUF's tensors" in found["reason"]
    assert fitted(capsys, path, "--engine", "transformers", "--weights", "1GiB")[1]["verdict"] == "fits"


def fitted(capsys, path, *words):
    gpu = () if "--gpu" in words else ("--gpu", "24GiB")
    code = run(["fit", str(path), *gpu, "--ctx", "1k", "--json", "--offline", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({"embedding_size": 128}, 128),  # ALBERT's narrow tables
        ({"embedding_size": 152_064}, 3584),  # Molmo's rows: 43 GiB of tables in a model of 16 GB, and a crash
        ({}, 3584),
    ],
)
def test_a_table_is_no_wider_than_the_model(keys, width):
    config = {"model_type": "llama", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28}
    assert facts_of({**config, "vocab_size": 152_064, **keys}).vocabulary == 152_064 * width


def test_a_config_that_counts_layers_otherwise_leaves_a_wide_range():
    first, second = held(Weights(1_000_000, "derived", "recorded"), 2, config=LLAMA, layers=(6, 0))
    assert first.low < 200_000
    assert second.high > 900_000


def test_each_gpu_is_listed_where_they_differ(capsys):
    words = ("meta-llama/Llama-3.1-70B", "--engine", "llama.cpp", "--weights", "40GiB", "--ctx", "8k")
    code, found = fitted(capsys, *words, "--gpu", "3x24GiB", "--n-gpu-layers", "60")
    assert code == 0
    assert [(rank["name"], rank["layers"]) for rank in found["ranks"]] == [
        ("GPU 1", [21, 40]),
        ("GPU 2", [41, 60]),
        ("GPU 3", [61, 79]),
    ]
    assert [rank["cache_bytes"] for rank in found["ranks"]] == [n * 2 * 8 * 128 * 2 * 8192 for n in (20, 20, 19)]
    assert found["notes"][0] == "layers 0 to 20 and their cache stay in host memory"
    assert fitted(capsys, *words, "--gpu", "64GiB")[1]["ranks"] == []


def test_each_stage_is_listed_where_they_differ(capsys):
    words = ("deepseek-ai/DeepSeek-V3", "--gpu", "16xh200", "--pp", "2")
    _, found = fitted(capsys, *words)
    assert [(rank["name"], rank["layers"]) for rank in found["ranks"]] == [("stage 1", [0, 30]), ("stage 2", [31, 60])]
    assert [rank["cache_bytes"] for rank in found["ranks"]] == [n * 576 * 2 * 1024 for n in (31, 30)]
    assert found["budget"]["weights"]["high"] == max(rank["weights"]["high"] for rank in found["ranks"])
    assert fitted(capsys, "meta-llama/Llama-3.1-405B", "--gpu", "16xh100", "--pp", "2")[1]["ranks"] == []


def test_a_file_whose_weights_are_only_stated_is_bounded_by_all_of_them():
    stated = Weights(1000, "assumed", "as given")
    metadata = {"general.architecture": "llama"}
    assert held(stated, 2, config=metadata) == [Range(0, 1000)] * 2
    assert held(stated, 1, config=metadata) == [exactly(1000)]
    assert held(replace(GGUF, by_layer=LayerWeights(0, (500,), 500)), 2, config=metadata) == [Range(0, 1000)] * 2


def test_a_stated_sum_may_be_of_any_format():
    """40 GiB of a 70B are of four bits, and so are its tables: 9.02 GiB for 20 layers took them for 16 bits."""
    found = judge(case("8x24GiB", weights="40GiB")).shares
    middle = found[3]
    assert len(middle.layers) == 10
    assert middle.weights.bytes.high == 40 * GIB * 10 // 80
