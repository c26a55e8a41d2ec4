"""Every cache that llama.cpp logged must come out of the engine to the log's rounding, and every refusal too."""

import json
from functools import cache
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import llamacpp as engine
from kvsize.engines.llamacpp.archs import MEASURED, arch_of
from kvsize.engines.llamacpp.buffers import compute_buffer_estimate
from kvsize.engines.llamacpp.rows import kept, reading
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry, Layer
from kvsize.source import load

TRUTH = Path(__file__).parents[2] / "validate" / "truth"
MIB = 2**20
ROUNDING = 0.006  # the log prints two decimals, each cache by itself

# Models whose published config (in the catalogue) and whose GGUF metadata (in the truth) say the same.
BOTH = {
    "baichuan2-7b": "baichuan-inc/Baichuan2-7B-Chat",
    "bloom-560m": "bigscience/bloom-560m",
    "chatglm3-6b": "THUDM/chatglm3-6b",
    "command-r-35b": "CohereForAI/c4ai-command-r-v01",
    "command-r7b": "CohereLabs/c4ai-command-r7b-12-2024",
    "dbrx": "databricks/dbrx-instruct",
    "deepseek-v2-lite-mla": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3-mla": "deepseek-ai/DeepSeek-V3",
    "deepseek-v4-flash-like": "deepseek-ai/DeepSeek-V4-Flash",
    "dots1": "rednote-hilab/dots.llm1.base",
    "ernie-4.5-0.3b": "baidu/ERNIE-4.5-0.3B-PT",
    "exaone-4.0-32b": "LGAI-EXAONE/EXAONE-4.0-32B",
    "falcon-h1-1.5b": "tiiuae/Falcon-H1-1.5B-Instruct",
    "falcon-mamba-7b": "tiiuae/falcon-mamba-7b",
    "flan-t5-large": "google/flan-t5-large",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-3n-e2b": "google/gemma-3n-E2B-it",
    "gemma-3n-e4b": "google/gemma-3n-E4B-it",
    "gemma-4-31b": "google/gemma-4-31B-it",
    "gemma-4-e2b": "google/gemma-4-E2B-it",
    "gemma-7b": "google/gemma-7b",
    "glm-4-9b": "THUDM/GLM-4-9B-0414",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "granite-3.3-8b": "ibm-granite/granite-3.3-8b-instruct",
    "granite-4.0-h-small": "ibm-granite/granite-4.0-h-small",
    "granite-4.0-h-tiny": "ibm-granite/granite-4.0-h-tiny",
    "grok-1": "amd/grok-1-FP8-KV",
    "hunyuan-a13b": "tencent/Hunyuan-A13B-Instruct",
    "internlm2-7b": "internlm/internlm2_5-7b-chat",
    "jamba-v0.1": "ai21labs/Jamba-v0.1",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.3-nemotron-49b(deci)": "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "mamba-2.8b": "state-spaces/mamba-2.8b-hf",
    "mamba-codestral-7b": "mistralai/Mamba-Codestral-7B-v0.1",
    "minimax-m2": "MiniMaxAI/MiniMax-M2",
    "minimax-m3-like": "MiniMaxAI/MiniMax-M3",
    "mistral-7b-v0.1-swa-key": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mpt-7b": "mosaicml/mpt-7b",
    "nemotron-3-nano-30b-a3b": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-h-8b": "nvidia/Nemotron-H-8B-Base-8K",
    "olmo2-7b": "allenai/OLMo-2-1124-7B-Instruct",
    "olmoe-1b-7b": "allenai/OLMoE-1B-7B-0924",
    "phi-2": "microsoft/phi-2",
    "phi-4": "microsoft/phi-4",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "rwkv7-1.5b": "fla-hub/rwkv7-1.5B-world",
    "seed-oss-36b": "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
}


@cache
def rows(name: str) -> list:
    return [json.loads(line) for line in (TRUTH / name).read_text().splitlines()[1:]]


def model(row: dict) -> Geometry:
    arch = row["arch"]
    return geometry({"general.architecture": arch, **{f"{arch}.{key}": of for key, of in row["metadata"].items()}})


def options(run: list, build: str) -> engine.Options:
    n_ctx, batch, ubatch, sequences, unified, flash, k, v, full = run[:9]
    return engine.Options(
        n_ctx=n_ctx,
        n_batch=batch,
        n_ubatch=ubatch,
        n_parallel=sequences,
        kv_unified=bool(unified),
        flash_attn=flash,
        cache_type_k=k,
        cache_type_v=v,
        swa_full=bool(full),
        version=build,
    )


def parts(found: Geometry, setting: engine.Options) -> tuple[int, int, int, set[int]]:
    """Bytes of K, of V and of states, and the cells of one stream in each kind of cache."""
    plan = engine.plan_of(found, Workload(1), setting)
    layers = kept(found, reading(found, plan.arch, old=plan.rules.old, flash=plan.types.flash))
    caches = [(one, one.cells(plan.cells, swa_full=setting.swa_full)) for layer in layers for one in layer.rows]
    states = 4 * plan.cells.sequences * sum(layer.state for layer in layers)
    streams = {plan.cells.sequences if one.own else plan.cells.streams for one, _ in caches} or {1}
    return (
        sum(plan.types.k.bytes(one.k) * cells for one, cells in caches),
        sum(plan.types.v.bytes(one.v) * cells for one, cells in caches),
        states,
        {cells // next(iter(streams)) for _, cells in caches},
    )


def close(got: int, logged: list[float]) -> bool:
    return abs(got / MIB - sum(logged)) <= ROUNDING * max(1, len(logged))


def misses(row: dict, build: str) -> list:
    found, wrong = model(row), []
    for run in row["runs"]:
        setting = options(run, build)
        if len(run) == 9:
            with pytest.raises(UnsupportedError):
                engine.size(found, Workload(1), setting)
            continue
        k, v, states, cells = run[9:13]
        got = parts(found, setting)
        total = engine.size(found, Workload(1), setting).total_bytes
        logged = {count for count, size in zip(cells, k, strict=True) if size}
        right = close(got[0], k) and close(got[1], v) and close(got[2], states) and got[3] == logged
        if not right or total != sum(got[:3]):
            wrong.append((run, got, total))
    return wrong


@pytest.mark.parametrize("row", rows("llamacpp-b11739.jsonl"), ids=lambda row: row["name"])
def test_logged_caches_are_exact(row):
    assert not misses(row, "b11739")


@pytest.mark.parametrize("row", rows("llamacpp-builds.jsonl"), ids=lambda row: f"{row['build']}-{row['name']}")
def test_older_builds_are_exact(row):
    assert not misses(row, row["build"])


@pytest.mark.parametrize("row", rows("llamacpp-b11739-offload.jsonl"), ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_caches_lie_where_the_log_says(row):
    count, layers_on_gpu, offload, device, host = row
    base = model(rows("llamacpp-b11739.jsonl")[0])
    found = Geometry(base.model_type, (base.layers[0],) * count)
    size = engine.size(found, Workload(256), engine.Options(n_gpu_layers=layers_on_gpu, kv_offload=bool(offload)))
    assert {index for index, layer in enumerate(size.layers) if layer.host} >= set(host)
    assert not {index for index, layer in enumerate(size.layers) if layer.host} & set(device)
    assert size.host_bytes == sum(layer.held for layer in size.layers if layer.host)


@pytest.mark.parametrize("name", BOTH)
def test_a_hub_config_gives_what_its_gguf_gives(name):
    row = next(row for row in rows("llamacpp-b11739.jsonl") if row["name"] == name)
    published, converted = geometry(load(BOTH[name], offline=True).config), model(row)
    assert arch_of(published) == arch_of(converted)
    for run in row["runs"]:
        if run[0] == 0:
            continue  # the model's own context, which some published configs state otherwise
        setting = options(run, "b11739")
        if len(run) == 9:
            with pytest.raises(UnsupportedError):
                engine.size(published, Workload(1), setting)
        else:
            assert parts(published, setting) == parts(converted, setting)


@pytest.mark.parametrize(
    "row", rows("llamacpp-logs.jsonl"), ids=lambda row: f"{row[0].split('/')[1]}-{row[1]['n_ctx']}"
)
def test_what_people_logged_comes_out(row):
    name, settings, windows, full, states, _source = row
    found = geometry(load(name, offline=True).config)
    size = engine.size(found, Workload(1), engine.Options(**settings))
    sums = {"windows": 0, "full": 0, "states": 0}
    for layer, part in zip(found.layers, size.layers, strict=True):
        kind = {"sliding_attention": "windows", "linear_attention": "states"}.get(layer.kind, "full")
        sums[kind if windows is not None or kind == "states" else "full"] += part.held
    for kind, printed in (("windows", windows), ("full", full), ("states", states)):
        assert printed is None or close(sums[kind], [printed]), kind


def test_every_row_is_there():
    loads = rows("llamacpp-b11739.jsonl")
    assert (len(loads), sum(len(row["runs"]) for row in loads)) == (71, 2793)
    assert sum(len(run) == 9 for row in loads for run in row["runs"]) == 105
    assert sum(len(row["runs"]) for row in rows("llamacpp-builds.jsonl")) == 546
    assert len(rows("llamacpp-b11739-offload.jsonl")) == 30
    assert len(rows("llamacpp-logs.jsonl")) == 9


def test_measured_architectures_are_those_with_rows():
    loaded = {arch_of(model(row)) for row in rows("llamacpp-b11739.jsonl") if any(len(run) > 9 for run in row["runs"])}
    assert loaded == MEASURED


def test_the_compute_buffer_reaches_as_far_as_it_says():
    near, close_to, count = 0, 0, 0
    for row in rows("llamacpp-b11739.jsonl"):
        sizes, found = row["metadata"], model(row)
        if "expert_count" in sizes or row["arch"] in ("t5", "gemma-embedding", "mamba2"):
            continue
        widest = sizes["feed_forward_length"]
        for run in row["runs"]:
            if len(run) < 14 or run[3] > 1 or run[5] == "off":
                continue
            ubatch = min(run[1], run[2], run[0] or 10**9)
            estimate = compute_buffer_estimate(
                hidden=sizes["embedding_length"],
                mlp=max(widest) if isinstance(widest, list) else widest,
                vocab=sizes["vocab_size"],
                heads=found.num_attention_heads or 0,
                cells=sum(run[12]),
                ubatch=ubatch,
            )
            ratio = run[13] * MIB / (estimate + 4 * ubatch * sizes["embedding_length"])
            count += 1
            near += abs(ratio - 1) < 0.01
            close_to += abs(ratio - 1) < 0.06
    assert count > 900
    assert near / count > 0.75
    assert close_to / count > 0.95


def test_layers_that_keep_nothing_stay_in_the_list():
    nothing = Geometry("bert", (Layer(kind="no_cache"),) * 3)
    assert [layer.held for layer in engine.size(nothing, Workload(512), engine.Options()).layers] == [0, 0, 0]
