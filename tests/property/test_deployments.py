"""fit over the catalogue: every model under every engine and layout is answered or refused, and never contradictory."""

from __future__ import annotations

import pytest

from kvsize.deployment.case import Asked, make_case
from kvsize.deployment.judge import judge
from kvsize.engines import ENGINES, Workload
from kvsize.errors import KvsizeError
from kvsize.gpus import select
from kvsize.source import catalogue, load

LAYOUTS = (("48GiB", {}, (1, 1)), ("3x48GiB", {}, (1, 1)), ("8xh100", {"pipeline_parallel_size": 2}, (2, 1)))
LAYOUTS = (*LAYOUTS, ("8xmi300x", {}, (1, 8)), ("a100-40", {"n_gpu_layers": 5}, (1, 1)))
STEP = 20  # of so many models one, another one for each engine and layout


def verdicts():
    """(model, engine, gpus, outcome) of what is not refused."""
    models = catalogue()
    for turn, (engine, layout) in enumerate((e, y) for e in ENGINES for y in LAYOUTS):
        gpus, settings, replicas = layout
        for model in models[turn % STEP :: STEP]:
            for known in (Asked(offline=True), Asked(30 * 2**30)):
                files = load(model, offline=True)
                try:
                    case = make_case(files, select(gpus), engine, Workload(3000, 2), settings, {}, replicas, known)
                    yield model, engine, gpus, judge(case)
                except KvsizeError:
                    break


@pytest.fixture(scope="module")
def judged():
    return list(verdicts())


def test_enough_is_judged(judged):
    assert len(judged) > 450
    assert {engine for _, engine, _, _ in judged} == set(ENGINES)
    assert {outcome.verdict for *_, outcome in judged} == {"fits", "tight", "does_not_fit", "unknown"}


def test_what_fits_leaves_something_and_what_does_not_lacks_it(judged):
    for model, engine, gpus, outcome in judged:
        if outcome.headroom is None:
            assert outcome.verdict == "unknown"
            continue
        found = (model, engine, gpus, outcome.verdict, outcome.headroom)
        assert outcome.headroom.low >= 0 or outcome.verdict != "fits", found
        # SGLang's pools of a model without attention hold no longer requests, whatever the memory
        stateful = engine == "sglang" and "mamba" in outcome.case.geometry.model_type
        assert outcome.headroom.high < 0 or outcome.verdict != "does_not_fit" or stateful, found


def test_no_gpu_holds_more_than_all_of_the_weights(judged):
    for *_, outcome in judged:
        if outcome.shares and outcome.case.engine not in ("vllm", "sglang", "trtllm"):
            total = outcome.case.weights.total_bytes
            assert all(0 <= share.weights.bytes.low <= share.weights.bytes.high <= total for share in outcome.shares)
