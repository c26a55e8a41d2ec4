"""Older and newer releases of transformers: the same configs, measured in each."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import transformers as engine
from kvsize.engines.transformers.versions import RAN, release
from kvsize.errors import UnsupportedError, UsageError

TRUTH = Path(__file__).parents[2] / "validate" / "truth"

# What those releases held elsewhere is refused, not guessed.
REFUSED = {
    ("recurrent_gemma", "dynamic"): {"5.0.0", "5.1.0", "5.2.0", "5.3.0"},
    ("gemma3n_text", "static"): {"5.0.0", "5.1.0", "5.2.0", "5.3.0", "5.4.0", "5.5.4"},
}


def rows(name):
    return [json.loads(line) for line in (TRUTH / name).read_text().splitlines()[1:]]


def sized(model, version, cache, tokens, moment, encoder, dtype):
    prompt = None if cache == "static" else tokens - (moment == "decode")
    workload = Workload(tokens, 1, dtype, dtype, encoder, prompt)
    return engine.size(model, workload, engine.Options(version=version, cache=cache))


@pytest.mark.parametrize("row", rows("transformers-releases.jsonl"), ids=lambda row: row["name"])
def test_each_release_is_exact(row):
    model, wrong = geometry(row["config"]), []
    for cache, tokens, moment, encoder, measured in row["runs"]:
        for releases, logical, storage in measured:
            for version in releases.split():
                if version in REFUSED.get((row["name"], cache), ()):
                    with pytest.raises(UnsupportedError):
                        sized(model, version, cache, tokens, moment, encoder, row["dtype"])
                    continue
                size = sized(model, version, cache, tokens, moment, encoder, row["dtype"])
                shown = logical if cache == "static" else size.logical_bytes
                if (shown, size.total_bytes) != (logical, storage):
                    wrong.append((version, cache, tokens, moment, size.total_bytes, storage))
    assert not wrong


def test_the_releases_that_ran_are_those_of_the_rows():
    seen = {
        version
        for row in rows("transformers-releases.jsonl")
        for run in row["runs"]
        for measured in run[4]
        for version in measured[0].split()
    }
    assert seen == set(RAN)


@pytest.mark.parametrize("row", rows("transformers-5.13.1-hub.jsonl"), ids=lambda row: row["name"])
def test_published_configs_under_5_13(row):
    model, wrong = geometry(row["config"]), []
    for _, _, tokens, moment, encoder, logical, storage in row["runs"]:
        workload = Workload(tokens, 1, "bfloat16", "bfloat16", encoder)
        size = engine.size(model, workload, engine.Options(version="5.13.1"))
        got = (size.logical_bytes, size.after_prefill_bytes if moment == "prefill" else size.total_bytes)
        if got != (logical, storage):
            wrong.append((tokens, moment, got, (logical, storage)))
    assert not wrong


def deepseek_v3(version):
    config = {"model_type": "deepseek_v3", "dtype": "bfloat16"}
    return engine.size(geometry(config), Workload(1024), engine.Options(version=version)).total_bytes


def test_the_latent_came_with_5_15():
    assert deepseek_v3("5.14.1") == 1024 * 61 * 128 * (192 + 128) * 2
    assert deepseek_v3("5.15") == 1024 * 61 * 576 * 2
    assert deepseek_v3("5.14.1") / deepseek_v3("5.15") == pytest.approx(71, abs=0.2)


@pytest.mark.parametrize(("asked", "meant"), [("5.13", (5, 13, 1)), ("5.23.0", (5, 23, 0)), ("5.99", (5, 99, 0))])
def test_a_release_without_a_patch_is_the_one_that_ran(asked, meant):
    assert release(asked).number == meant


def test_versions_that_are_none_or_too_old():
    with pytest.raises(UsageError, match="looks like"):
        release("five")
    with pytest.raises(UnsupportedError, match="older than the oldest"):
        release("4.57.6")


def test_dynamic_full_has_a_history():
    model = geometry({"model_type": "gemma2", "dtype": "bfloat16"})
    full, windowed = (
        engine.size(model, Workload(8192), engine.Options(version=version, cache="dynamic_full")).total_bytes
        for version in ("5.11", "5.13")
    )
    assert full > windowed == engine.size(model, Workload(8192), engine.Options(version="5.13")).total_bytes
    with pytest.raises(UnsupportedError, match="no longer accepts"):
        engine.size(model, Workload(8192), engine.Options(cache="dynamic_full"))


def test_quantised_windows_were_taken_until_5_13():
    model = geometry({"model_type": "gemma2", "dtype": "bfloat16"})
    options = engine.Options(version="5.13", cache="quantized")
    assert engine.size(model, Workload(8192), options).total_bytes > 0
    with pytest.raises(UnsupportedError, match="QuantizedCache refuses gemma2"):
        engine.size(model, Workload(8192), engine.Options(version="5.14", cache="quantized"))
