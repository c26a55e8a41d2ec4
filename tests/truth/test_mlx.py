"""Every cache weighed on a real mlx-lm must come out of the engine to the byte, layer by layer."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import mlx as engine
from kvsize.engines.mlx.models import WEIGHED
from kvsize.errors import UnsupportedError

TRUTH = Path(__file__).parents[2] / "validate" / "truth"
FILES = ("mlx-0.32.2.jsonl", "mlx-0.32.2-modules.jsonl")


def models():
    for name in FILES:
        for line in (TRUTH / name).read_text().splitlines()[1:]:
            row = json.loads(line)
            yield pytest.param(row["config"], row["runs"], id=row["name"])


def predicted(config, run, tokens):
    workload = Workload(tokens, 1, run["dtype"], run["dtype"])
    return engine.size(geometry(config), workload, engine.Options(**run["settings"]))


def seen_before_it_failed(run):
    """A prompt whose calls, but for its last token, are those that the run got through."""
    step = run["settings"].get("prefill_step_size")
    return run["prompt"] if step is None else step + 1


def differs(config, run):
    if "prefill_bytes" in run:
        got = predicted(config, run, seen_before_it_failed(run)).after_prefill_bytes
        return None if got == run["prefill_bytes"] else (run, got)
    size = predicted(config, run, run["prompt"] + run["generated"])
    got = [layer.held for layer in size.layers if layer.held]
    return None if (size.total_bytes, got) == (run["bytes"], run["layers"]) else (run, got)


@pytest.mark.parametrize(("config", "runs"), list(models()))
def test_caches_are_exact(config, runs):
    wrong = [found for run in runs if "refused" not in run and (found := differs(config, run))]
    assert not wrong


@pytest.mark.parametrize(("config", "runs"), list(models()))
def test_what_mlx_refuses_is_refused(config, runs):
    for run in runs:
        if "refused" in run:
            with pytest.raises(UnsupportedError):
                predicted(config, run, run["prompt"] + run["generated"])


def test_exact_is_what_was_weighed():
    rows = [json.loads(line) for name in FILES for line in (TRUTH / name).read_text().splitlines()[1:]]
    assert {geometry(row["config"]).model_type for row in rows} == WEIGHED


def test_every_row_is_there():
    rows = [[json.loads(line) for line in (TRUTH / name).read_text().splitlines()[1:]] for name in FILES]
    runs = [[run for row in part for run in row["runs"]] for part in rows]
    assert [len(part) for part in rows] == [12, 27]
    assert [len(part) for part in runs] == [123, 162]
    assert sum("refused" in run for run in runs[0]) == 13
    assert sum("prefill_bytes" in run for run in runs[0]) == 27
