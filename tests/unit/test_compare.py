"""compare: each engine's own figures, refusals as rows, budgets held."""

import json

import pytest

from kvsize.api import Workload, load
from kvsize.cli import run
from kvsize.compare import compare


@pytest.fixture
def gemma():
    return load("google/gemma-3-27b-it", offline=True)


def test_what_a_budget_of_60_gib_holds_differs_by_engine(gemma):
    rows = {row.engine: row for row in compare(gemma, Workload(131_072), ["vllm", "sglang"], 60 * 2**30, {})}
    assert rows["vllm"].pool.tokens == 437_488
    assert rows["sglang"].pool.tokens == 126_843
    assert rows["sglang"].why == "windows in full"


def test_an_engine_without_a_pool_counts_whole_requests(gemma):
    [row] = compare(gemma, Workload(32_768), ["transformers"], 60 * 2**30, {})
    one = row.size.total_bytes
    assert row.pool.max_concurrency == 60 * 2**30 // one
    assert row.pool.tokens == row.pool.max_concurrency * 32_768


def test_a_refusal_is_a_row_with_its_reason():
    model = load("NX-AI/xLSTM-7b", offline=True)
    rows = {row.engine: row for row in compare(model, Workload(4096), ["transformers", "vllm"], None, {})}
    assert rows["transformers"].size.total_bytes > 0
    assert rows["vllm"].size is None
    assert "mlstm" in rows["vllm"].refused


def test_versions_are_rows_of_their_own(gemma):
    old, new = compare(gemma, Workload(131_072), ["vllm@0.19.0", "vllm@0.33.0"], 60 * 2**30, {})
    assert (old.pool.tokens, new.pool.tokens) == (112_336, 437_488)


def test_the_document_is_one_row_a_model_and_engine(capsys):
    models = ["google/gemma-3-27b-it", "meta-llama/Llama-3.1-8B"]
    assert run(["compare", *models, "--engine", "transformers,vllm", "--ctx", "4k", "--json", "--offline"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvsize.compare/1"
    assert [(row["model"], row["engine"]) for row in document["rows"]] == [
        (model, engine) for model in models for engine in ("transformers", "vllm")
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_the_page_keeps_its_width(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["compare", "google/gemma-3-27b-it", "--ctx", "32k", "--kv-memory", "60GiB", "--offline"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert "windows in full" in " ".join(" ".join(lines).split())


def test_an_unknown_engine_is_a_usage_error(capsys):
    assert run(["compare", "google/gemma-3-27b-it", "--engine", "vlm", "--offline"]) == 2
    assert "unknown engine 'vlm'" in capsys.readouterr().err
