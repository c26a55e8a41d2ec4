"""Every pool that SGLang's own sizing code planned must come out of the engine to the token."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import sglang as engine
from kvsize.engines.sglang.models import RUN_STATE_TYPES, RUN_WINDOWED, states_pooled, windows_pooled
from kvsize.engines.sglang.pool import plan
from kvsize.errors import ConfigError, UnsupportedError
from kvsize.formats import format_of

TRUTH = Path(__file__).parents[2] / "validate" / "truth"
GIB = 1 << 30
FILES = ("sglang-0.5.23.jsonl", "sglang-0.5.23-hub.jsonl")

# Rows that the engine does not match, with the reason.
#   The config spells its dtype "torch.bfloat16", which transformers 5.19 fails on; a geometry holds the dtype alone.
NOT_REFUSED = {"BICORP/Test-23"}
#   The pool was recorded with index keys for every layer, although the budget was divided without the shared ones.
INDEX_KEYS_EVERYWHERE = {"nvidia/GLM-5.2-NVFP4", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8"}
#   The class default of SGLang's own config; the files name no dtype.
DTYPE_BY_DEFAULT = {"mlx-community/LongCat-Flash-Chat-bf16", "Qwen/Qwen3-ASR-1.7B"}


def models():
    for name in FILES:
        for line in (TRUTH / name).read_text().splitlines()[1:]:
            row = json.loads(line)
            yield pytest.param(row["name"], row["config"], row["runs"], id=row["name"])


def options(run):
    settings = {"page_size": 1, "mamba_radix_cache_strategy": "no_buffer", **run["settings"]}
    return engine.Options(kv_memory=run.get("budget"), **settings)


def planned(config, run):
    model = geometry(config)
    chosen = options(run)
    name, _ = engine.kv_format(model, Workload(1, 1, run["kv"], run["kv"]))
    resolved = engine.resolve(model, name, chosen)
    return name, resolved, plan(resolved.pooled, chosen.kv_memory or 0, resolved.settings)


def expected(name, run):
    keys = ("tokens", "requests", "cell", "window_tokens", "slots", "slot_bytes", "states_bytes", "pool_bytes")
    skip = {"pool_bytes"} if name in INDEX_KEYS_EVERYWHERE else set()
    return {key: run[key] for key in keys if key in run and key not in skip}


def found(model, pools):
    page = model.settings.page
    return {
        "tokens": pools.tokens,
        "requests": pools.requests,
        "cell": pools.cell,
        "window_tokens": pools.window_tokens,
        "slots": pools.state_slots,
        "slot_bytes": pools.slot_bytes,
        "states_bytes": ((pools.state_slots or 0) + 1) * pools.slot_bytes,
        "pool_bytes": (pools.tokens + page) * pools.full_bytes
        + ((pools.window_tokens or 0) + page) * pools.window_bytes,
    }


@pytest.mark.parametrize(("name", "config", "runs"), list(models()))
def test_pools_are_exact(name, config, runs):
    wrong = []
    for run in runs:
        if "refused" in run:
            continue
        dtype, model, pools = planned(config, run)
        got, want = found(model, pools), expected(name, run)
        if name in DTYPE_BY_DEFAULT:
            assert format_of(dtype).block_bytes == format_of(run["dtype"]).block_bytes
        elif dtype != run["dtype"]:
            wrong.append((run["tag"], dtype, run["dtype"]))
        if any(got[key] != value for key, value in want.items()):
            wrong.append((run["tag"], got, want))
    assert not wrong


@pytest.mark.parametrize(("name", "config", "runs"), list(models()))
def test_what_sglang_refuses_is_refused(name, config, runs):
    accepted = []
    for run in runs:
        if "refused" not in run:
            continue
        try:
            planned(config, {**run, "budget": 60 << 30})
        except (UnsupportedError, ConfigError):
            continue
        accepted.append(run["tag"])
    assert bool(accepted) == (name in NOT_REFUSED)


def test_the_report_shows_the_planned_pool():
    row = json.loads((TRUTH / FILES[0]).read_text().splitlines()[1:][-1])
    run = row["runs"][0]
    size = engine.size(geometry(row["config"]), Workload(8192), options(run))
    assert size.pool is not None
    assert (size.pool.tokens, size.pool.num_blocks, size.pool.block_size) == (run["tokens"], run["tokens"], 1)


def test_exact_is_what_was_run():
    rows = [json.loads(line) for name in FILES for line in (TRUTH / name).read_text().splitlines()[1:]]
    run = [geometry(row["config"]) for row in rows if any("refused" not in run for run in row["runs"])]
    assert {model.architecture for model in run if windows_pooled(model)} == RUN_WINDOWED
    assert {model.model_type for model in run if states_pooled(model)} == RUN_STATE_TYPES


def test_every_row_is_there():
    rows = [json.loads(line) for name in FILES for line in (TRUTH / name).read_text().splitlines()[1:]]
    runs = [run for row in rows for run in row["runs"]]
    assert (len(rows), len(runs), sum("refused" in run for run in runs)) == (277, 1143, 107)


def posted():
    for line in (TRUTH / "sglang-logs.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        yield pytest.param(row, id=f"{row['name']}-{row['tokens']}")


@pytest.mark.parametrize("row", list(posted()))
def test_posted_start_up_lines_come_out_to_their_last_digit(row):
    chosen = engine.Options(**row["settings"])
    model = engine.resolve(geometry(row["config"]), row["kv"], chosen)
    slots = row["tokens"] + model.settings.page  # the printed size holds the padding page, the printed tokens do not
    whole = sum(cell.token for cell in model.cells) * slots / GIB
    shown = {
        "k_gib": whole / 2,
        "v_gib": whole / 2,
        "kv_gib": whole,
        "latent_gib": sum(cell.kv for cell in model.cells) * slots / GIB,
    }
    printed = {key: row[key] for key in shown if key in row}
    assert printed
    assert {key: round(shown[key], 2) for key in printed} == printed
