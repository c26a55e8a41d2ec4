"""Weights against what publishers list and what vLLM printed while loading."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsize.source import load
from kvsize.weights import Weights, per_rank, rotary_tables, weights_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from hubserver import COMMIT, Hub, Reply, serve

TRUTH = Path(__file__).parents[2] / "validate" / "truth"
GIB = 2**30


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TRUTH / name).read_text(encoding="utf-8").splitlines()][1:]


LISTED = rows("weights-hub.jsonl")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def listed(row: dict[str, Any]) -> bytes:
    """The Hub's answer for a row: its files with their sizes, its elements by dtype."""
    count = row["files"] or 1
    stem, suffix = ("pytorch_model", "bin") if row["format"] == "pickle" else ("model", "safetensors")
    sizes = [row["file_bytes"] // count] * count
    sizes[-1] += row["file_bytes"] - sum(sizes)
    files = [
        {"rfilename": f"{stem}-{number:05}-of-{count:05}.{suffix}", "size": size}
        for number, size in enumerate(sizes, start=1)
    ]
    return json.dumps({"siblings": files, "safetensors": {"parameters": row["elements"]}, "sha": COMMIT}).encode()


@pytest.mark.parametrize("row", LISTED, ids=[row["model"] for row in LISTED])
def test_the_listing_gives_the_bytes_of_the_index(row: dict[str, Any], hub: Hub) -> None:
    hub.config("some/model", {"model_type": "llama"})
    hub.on(f"/api/models/some/model/revision/{COMMIT}?blobs=true", Reply(body=listed(row)))
    found = weights_of(load("some/model"))
    assert isinstance(found, Weights)
    if found.evidence == "exact":
        assert row["index_bytes"] in {None, found.total_bytes}
        assert found.total_bytes < row["file_bytes"]
    else:
        assert found.total_bytes == row["file_bytes"]
        assert (row["index_bytes"] or 0) <= found.total_bytes, "never too low"


def test_most_listings_are_exact() -> None:
    plain = [row for row in LISTED if row["format"] == "safetensors" and row["elements"]]
    assert len(plain) >= 14
    assert sum(row["index_bytes"] is not None for row in LISTED) >= 14


PRINTED = rows("weights-vllm.jsonl")


@pytest.mark.parametrize("row", PRINTED, ids=[f"{row['model']}-{row['version']}" for row in PRINTED])
def test_ranks_hold_what_vllm_printed(row: dict[str, Any]) -> None:
    """vLLM's figure has the rotary tables in it, and what loading leaves behind in its allocator: up to 0.2 GiB."""
    files = load(row["model"], offline=True)
    weights = weights_of(files, offline=True)
    assert isinstance(weights, Weights)
    bounds = per_rank(weights, files.config, tp=row["tp"]) + rotary_tables(files.config)
    assert bounds.low / GIB - 0.02 <= row["printed_gib"] <= bounds.high / GIB + 0.2
