"""Start-up lines that people posted, fed to reconcile: each is reproduced, or its reason stands here."""

import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from kvsize.logs.clean import lines
from kvsize.logs.reconcile import reconcile
from kvsize.logs.server import servers

TRUTH = Path(__file__).parents[2] / "validate" / "truth" / "logs.jsonl"

REPRODUCED = {"vllm": 24, "llama.cpp": 9, "sglang": 7, "trtllm": 3, "ollama": 2}

# why each of the others is not
REASONS = {
    "no rule for deepseek_v4 in vLLM: compressed attention is not modelled": "kv0007 kv0144 kv0145",
    "figures posted as rough ones": "kv0011 kv0089 kv0090 kv0142 kv0143 kv0148 kv0149",
    "a fork with a planner of its own": "kv0015 kv0016 kv0152 kv0279",
    "a plugin with a planner of its own": "kv0018",
    "no rule for the MTP layers of deepseek_v4": "kv0021",
    "output of LMCache, not of a server start": "kv0029",
    "not one of the engines that reconcile reads": "kv0031 kv0050 kv0051 kv0094 kv0163 kv0164 kv0269",
    "no config of it in the catalogue, and the log was not posted whole": (
        "kv0053 kv0057 kv0147 kv0165 kv0169 kv0189 kv0199 kv0217 kv0218 kv0222 kv0307"
    ),
    "one figure, and no budget to hold it against": "kv0068 kv0069 kv0074 kv0131",
    "the memory of a whole process, no figure of a cache": "kv0078",
    "three servers in one row, their buffers not posted": "kv0082",
    "no figure of the cache was posted; memory is held in the ranges of fit": "kv0132 kv0133 kv0134 kv0136 kv0137",
    "drafts of dspark take cache of their own, which is not modelled": "kv0146 kv0214",
    "a prototype branch with 3 padding layers, which no release makes": "kv0159",
    "no rule for the MTP layers of glm_moe_dsa": "kv0197",
    "drafts of eagle3 take cache of their own, which is not modelled": "kv0205",
    "drafts of gemma4 take cache of their own, which is not modelled": "kv0211",
    "a figure of a paper or a page, no log": "kv0225 kv0226 kv0233 kv0260 kv0261 kv0263",
    "a table of a blog, no log": "kv0228 kv0229 kv0230",
    "an analysis, no log": "kv0243",
    "measured totals, no log": "kv0249 kv0250 kv0251 kv0252",
    "the source does not add up: 229,393 bytes a token are 28 of 32 layers in fp8": "kv0257",
}
NOT_REPRODUCED = {row: reason for reason, ids in REASONS.items() for row in ids.split()}


def rows():
    return [json.loads(line) for line in TRUTH.read_text(encoding="utf-8").splitlines()[1:]]


def answered(row):
    text = "\n".join(row["lines"]).encode()
    [found] = reconcile(servers(lines(io.BytesIO(text)), row["id"]), row["sized_as"], row["given"], offline=True)
    return found


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in rows() if row["lines"]])
def test_figures_of_real_servers(row):
    found = answered(row)
    assert found.verdict == row["verdict"]
    assert (found.verdict == "agrees") == (row["id"] not in NOT_REPRODUCED)
    statuses = Counter(verdict.status for verdict in found.findings.verdicts)
    assert sum(statuses.values()) == len(found.server.figures), "every figure has a verdict"
    if found.findings.size is None:
        assert found.findings.notes == [NOT_REPRODUCED[row["id"]]]


def test_a_wrong_figure_is_found():
    """Each row with a predicted figure again, with its last figure's first digit moved on."""
    missed = []
    for row in rows():
        if row["lines"] is None or row["verdict"] != "agrees":
            continue
        figures = [v.figure for v in answered(row).findings.verdicts if v.status == "agrees"]
        for figure in figures[-1:]:
            wrong = {**row, "lines": [falsified(line, figure.text) for line in row["lines"]]}
            if answered(wrong).verdict != "contradicts":
                missed.append((row["id"], figure.quantity, figure.text))
    assert missed == []


def falsified(line, text):
    """A figure of 40 as 70, of 17.39 as 27.39: its first digit moved on."""
    moved = str((int(text[0]) % 9) + 1)
    return re.sub(rf"([ =(]){re.escape(text)}(?!,?\d)", rf"\g<1>{moved}{text[1:]}", line)


def test_every_row_is_counted():
    counted = Counter(row["engine"] for row in rows() if row["lines"] and row["verdict"] == "agrees")
    assert dict(counted) == REPRODUCED
    assert {row["id"] for row in rows() if row["verdict" if row["lines"] else "lines"] != "agrees"} == set(
        NOT_REPRODUCED
    )
    assert len(rows()) == sum(REPRODUCED.values()) + len(NOT_REPRODUCED) == 112


# -- what real loads of llama.cpp printed, read with nothing but the log's own metadata -------------------------------


LOADS = TRUTH.with_name("logs-llamacpp-b11739.jsonl")
MODELS, RUNS, CACHES = 66, 261, 373


def loads():
    return [json.loads(line) for line in LOADS.read_text(encoding="utf-8").splitlines()[1:]]


def log_of(model, run):
    """The log around the printed caches: metadata as the loader dumps it, and the context's settings."""
    yield "build: 11739 (0123abc) with cc (Debian 14.2.0) 14.2.0 for x86_64-linux-gnu"
    yield "llama_model_loader: loaded meta data with 20 key-value pairs and 1 tensors from m.gguf (version GGUF V3)"
    yield f"llama_model_loader: - kv   0: {'general.architecture':>40} str              = {model['arch']}"
    for number, (key, value) in enumerate(model["metadata"].items(), start=1):
        kind = f"arr[i32,{len(value)}]" if isinstance(value, list) else "u32"
        yield f"llama_model_loader: - kv {number:3}: {model['arch'] + '.' + key:>40} {kind:<16} = {json.dumps(value)}"
    yield f"llama_context: n_seq_max     = {run['n_seq_max']}"
    for key in ("n_ctx", "n_batch", "n_ubatch", "flash_attn"):
        yield f"llama_context: {key:<13} = {run[key]}"
    yield f"llama_context: kv_unified    = {str(run['kv_unified']).lower()}"
    if run["swa_full"]:
        yield "llama_kv_cache_iswa: using full-size SWA cache (ref: https://github.com/ggml-org/llama.cpp/pull/13194)"
    yield from run["lines"]


@pytest.mark.parametrize("model", [pytest.param(model, id=model["name"]) for model in loads()])
def test_caches_of_real_loads_are_predicted_from_their_own_log(model):
    for run in model["runs"]:
        text = "\n".join(log_of(model, run)).encode()
        [found] = reconcile(servers(lines(io.BytesIO(text)), model["name"]), None, {}, offline=True)
        assert {verdict.status for verdict in found.findings.verdicts} <= {"agrees", "not_predicted"}
        assert found.verdict == "agrees"
        assert found.model_source == "metadata in the log"


def test_every_load_is_there():
    runs = [run for model in loads() for run in model["runs"]]
    assert (len(loads()), len(runs), sum(len(run["lines"]) for run in runs)) == (MODELS, RUNS, CACHES)
