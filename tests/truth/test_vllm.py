"""Every plan of the real vLLM 0.33.0 planner must come out of the engine: blocks, tokens, concurrency, refusals."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import vllm as engine
from kvsize.engines.vllm import models
from kvsize.errors import UnsupportedError

TRUTH = Path(__file__).parents[2] / "validate" / "truth"
FILES = ("vllm-0.33.0.jsonl", "vllm-0.33.0-hub.jsonl")
PLANS, REFUSALS = 1628, 173


def rows():
    for name in FILES:
        head, *lines = (TRUTH / name).read_text().splitlines()
        for line in lines:
            row = json.loads(line)
            yield name, row["name"], row["config"], row["runs"], json.loads(head)["kv_memory"]


def planned(model, run, memory):
    """The engine's answer to one run; by default vLLM's choices follow the config's dtype, as the run did."""
    kv = run.get("kv", "auto")
    settings = {"kv_memory": memory, **run["settings"]}
    return engine.size(model, Workload(run["ctx"], 1, kv, kv), engine.Options(**settings))


def differences(size, run):
    pool = size.pool
    got = {
        "num_blocks": pool.num_blocks,
        "tokens": pool.tokens,
        "concurrency": pool.max_concurrency,
        "block_bytes": [pool.bytes_per_block],
        "dtype": size.k_format,
    }
    want = {**run, "block_bytes": [0, *run["block_bytes"]][-1:]} if "block_bytes" in run else run
    return {key: (value, want[key]) for key, value in got.items() if key in want and value != want[key]}


@pytest.mark.parametrize(
    ("config", "runs", "memory"),
    [pytest.param(*row[2:], id=f"{row[0][11:15].strip('.-') or 'own'}-{row[1]}") for row in rows()],
)
def test_plans_are_exact_and_refusals_are_refused(config, runs, memory):
    model = geometry(config)
    wrong = []
    for run in runs:
        if "refused" in run:
            with pytest.raises(UnsupportedError):
                planned(model, run, memory)
            continue
        size = planned(model, run, memory)
        if found := differences(size, run):
            wrong.append((run["settings"], run.get("kv"), run["ctx"], found))
        if run["settings"].get("pipeline_parallel_size", 1) == 1:
            assert size.total_bytes == size.pool.request_bytes
    assert not wrong


def test_every_row_is_there():
    runs = [run for _, _, _, runs, _ in rows() for run in runs]
    assert sum("refused" not in run for run in runs) == PLANS
    assert sum("refused" in run for run in runs) == REFUSALS


def test_types_called_checked_are_those_with_plans():
    measured = {geometry(config).model_type for _, _, config, runs, _ in rows() if any("tokens" in run for run in runs)}
    derived = {"minimax_text_01"}  # worked out by the closed forms, never planned
    assert measured - derived == set(models.CHECKED)


# -- what real servers printed -----------------------------------------------------------------------------------------


def logged():
    return [json.loads(line) for line in (TRUTH / "vllm-logs.jsonl").read_text().splitlines()[1:]]


def reachable_blocks(row, probe):
    """Numbers of blocks that the printed budget or concurrency, rounded to two decimals, leaves open."""
    if "gib" in row:
        low, high = ((row["gib"] + way * 0.005) * 2**30 / probe.bytes_per_block for way in (-1, 1))
    else:
        low, high = ((row["concurrency"] + way * 0.005) * probe.request_blocks for way in (-1, 1))
    return range(int(low), int(high) + 1)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row['model']}@{row['version']}") for row in logged()])
def test_figures_of_real_servers_are_reproduced(row):
    def at(memory):
        settings = {**row["settings"], "version": row["version"], "kv_memory": memory}
        workload = Workload(row["ctx"], 1, row["kv"], row["kv"])
        return engine.size(geometry(row["config"]), workload, engine.Options(**settings)).pool

    probe = at(2**50)
    pools = [at(blocks * probe.bytes_per_block) for blocks in reachable_blocks(row, probe)]
    printed = {(pool.tokens, f"{pool.max_concurrency:.2f}") for pool in pools}
    assert any(
        row.get("tokens", tokens) == tokens and f"{row.get('concurrency', float(concurrency)):.2f}" == concurrency
        for tokens, concurrency in printed
    )


def test_every_log_is_there():
    assert len(logged()) == 14
