#!/usr/bin/env python3
"""Write RESULTS.md from validate/results/*.jsonl, which `kvsize validate --results FILE` wrote: one section a file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE / "RESULTS.md"

INTRODUCTION = """\
# What was measured

Real caches of thin twins, built by `kvsize validate`, beside the prediction. Written by `python
validate/make_results.py` from the files in validate/results; nothing here is typed by hand. A pool's bytes are judged,
but are not the largest: it has room to spare. Configs are the catalogue's, which keep what decides memory; a class that
needs other keys of the published file refuses them. Code that lies in a model's repository is never run.
"""


def documents(path: Path) -> list[dict[str, Any]]:
    """The models of one results file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def section(path: Path) -> Iterator[str]:
    """One file: where it was measured, the counts, and a line a model."""
    found = documents(path)
    where, rows = found[0]["environment"], [row for document in found for row in document["rows"]]
    counts = Counter(row["status"] for row in rows)
    compared = [row for row in rows if row["status"] in ("equal", "different")]
    models, types = ({row[key] for row in compared} for key in ("model", "model_type"))
    yield f"\n## {path.stem}\n"
    yield (
        f"transformers {where['transformers']}, torch {where['torch']}, {where['device']}: {counts['equal']:,} of "
        f"{len(compared):,} caches as predicted, to the byte; {len(models)} models of {len(types)} model types.\n"
    )
    yield "| model | model_type | device | caches | tokens | equal | bytes of the largest |"
    yield "|---|---|---|---|---|---:|---:|"
    for document in found:
        yield from line(document["rows"])
    yield from left_out(rows)


def line(rows: list[dict[str, Any]]) -> Iterator[str]:
    """One model that was compared."""
    compared = [row for row in rows if row["status"] in ("equal", "different")]
    if compared:
        first = compared[0]
        moments: dict[str, dict[str, None]] = {}
        for row in compared:
            moments.setdefault(row["cache"], {})[row["moment"]] = None
        caches = "; ".join(f"{cache} {', '.join(found)}" for cache, found in moments.items())
        tokens = ", ".join(dict.fromkeys(map(length, compared)))
        equal = sum(row["status"] == "equal" for row in compared)
        most = max(row["measured_bytes"] for row in compared if row["moment"] != "pool")
        yield (
            f"| {first['model']} | {first['model_type']} | {first['device']} | {caches} | {tokens} "
            f"| {equal} of {len(compared)} | {most:,} |"
        )


def length(row: dict[str, Any]) -> str:
    """Tokens of a run, and of how many sequences and beams."""
    copies = row["batch"] * row["num_beams"]
    return f"{row['ctx']:,}" if copies == 1 else f"{copies} x {row['ctx']:,}"


def left_out(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Why runs are missing, and of which models."""
    missing: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] not in ("equal", "different"):
            reason = " ".join(str(row["reason"]).split())
            missing.setdefault((row["cache"] or "all caches", reason), []).append(row["model"])
    if missing:
        yield "\nNot compared:\n"
    for (cache, reason), models in missing.items():
        yield f"- {cache}: {reason}: {', '.join(dict.fromkeys(models))}"


def page() -> str:
    """All of RESULTS.md."""
    lines = [INTRODUCTION.rstrip("\n")]
    for path in sorted(RESULTS.glob("*.jsonl")):
        lines += section(path)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")
