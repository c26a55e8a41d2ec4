#!/usr/bin/env python3
"""Write README's tables and screens anew: `python validate/make_tables.py`; `--check` only says whether they differ.

Tables lie between `<!-- table: NAME -->` and `<!-- /table -->` and are made from validate/truth and the catalogue.
Screens are ```console blocks that start with `$ kvsize …`; the rest of the block is what that command prints.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from kvsize.architectures import geometry
from kvsize.audit.formulas import formulas
from kvsize.cli import run
from kvsize.engines import ENGINES, CacheSize, Workload, load_engine
from kvsize.errors import UnsupportedError
from kvsize.geometry import Geometry
from kvsize.source import load
from kvsize.tables.units import UNITS, times
from kvsize.words import ENGINE_NAMES

ROOT = Path(__file__).resolve().parents[1]
TRUTH = ROOT / "validate" / "truth"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "evidence.md", ROOT / "docs" / "gate.md")

TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
SCREEN = re.compile(r"(```console\n\$ kvsize ([^\n]*)\n).*?(```)", re.DOTALL)

MEASURED = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "mistralai/Mistral-7B-v0.1",
    "google/gemma-2-9b",
    "google/medgemma-27b-it",
    "openai/gpt-oss-120b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "ybelkada/falcon-7b-sharded-bf16",
)
COMPARED = (
    "meta-llama/Llama-3.1-70B",
    "mistralai/Mistral-7B-v0.1",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "tiiuae/Falcon-H1-34B-Instruct",
    "google/gemma-3n-E4B-it",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
)


def truth(name: str) -> tuple[dict[str, Any], list[Any]]:
    """A truth file: its header, and its rows."""
    head, *rows = (TRUTH / name).read_text(encoding="utf-8").splitlines()
    return json.loads(head), [json.loads(row) for row in rows]


def table(header: list[str], rows: list[list[str]], *, left: int = 1) -> str:
    """A markdown table, its first `left` columns text and the others figures."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, rule, *rows])


def measured() -> str:
    """What transformers held at the longest context that was run, and what kvsize says."""
    head, rows = truth("transformers-5.23.0-hub.jsonl")
    engine = load_engine("transformers")
    by_name = {row["name"]: row for row in rows}
    lines = []
    for name in MEASURED:
        model = geometry(by_name[name]["config"])
        steady = [one for one in by_name[name]["runs"] if one[0] == "dynamic" and one[1] == 1 and one[3] == "decode"]
        tokens, held = max((one[2], one[6]) for one in steady)
        request = Workload(tokens, 1, head["dtype"], head["dtype"])
        said = engine.size(model, request, engine.Options(version=head["version"])).total_bytes
        lines.append([name, f"{tokens:,}", f"{held:,}", f"{said:,}"])
    return table(["model", "tokens", "measured, bytes", "kvsize, bytes"], lines)


def compared() -> str:
    """32k tokens of one request: each engine's own figure, and how far off the usual formulas are."""
    lines = []
    for name in COMPARED:
        model = geometry(load(name, offline=True).config)
        request = Workload(32_768, 1, "bfloat16", "bfloat16")
        sizes = [_answer(engine, model, request) for engine in ENGINES]
        figures = ["refuses" if size is None else UNITS[1].number(size.total_bytes) for size in sizes]
        lines.append([name, *figures, *_factors(model, request, sizes[0])])
    header = ["GiB at 32k", *(ENGINE_NAMES.get(engine, engine) for engine in ENGINES), "by query heads", "by KV heads"]
    return table(header, lines)


def _answer(engine: str, model: Geometry, request: Workload) -> CacheSize | None:
    """An engine's figure under its own defaults; None where it refuses the request."""
    module = load_engine(engine)
    try:
        return module.size(model, request, module.Options())
    except UnsupportedError:
        return None


def _factors(model: Geometry, request: Workload, true: CacheSize | None) -> list[str]:
    """By what factor the formula with query heads, and the one with KV heads, miss transformers' figure."""
    if true is None:
        raise SystemExit("transformers itself refuses a model of the table")
    found = {("query" if "query" in each.text else "kv"): each.bytes for each in formulas(model, request, true)}
    found.setdefault("query", found.get("kv", true.total_bytes))
    found.setdefault("kv", true.total_bytes)
    return [_off(found[which], true.total_bytes) for which in ("query", "kv")]


def _off(said: int, true: int) -> str:
    if abs(said - true) * 50 < true:
        return "right"
    return f"{times(said, true)}x" if said > true else f"1/{times(true, said)}"


def evidence() -> str:
    """Every truth file: what was run, how much of it, and how."""
    lines = []
    for path in sorted(TRUTH.glob("*.jsonl")):
        head, rows = truth(path.name)
        what = head.get("engine") or path.stem.partition("-")[0]
        release = head.get("version") or head.get("build") or ""
        how = (head.get("how") or head.get("obtained") or head.get("rows") or "").split(";")[0]
        figures = sum(len(row.get("runs", [1])) if isinstance(row, dict) else 1 for row in rows)
        lines.append([f"`{path.name}`", f"{what} {release}".strip(), how, f"{len(rows):,}", f"{figures:,}"])
    return table(["validate/truth", "what", "how it was obtained", "rows", "figures"], lines, left=3)


TABLES: dict[str, Callable[[], str]] = {"measured": measured, "compared": compared, "evidence": evidence}


def screen(command: str) -> str:
    """What `kvsize COMMAND` prints at 80 columns, without colour and without the network."""
    out = io.StringIO()
    with plain_environment(), redirect_stdout(out):
        code = run(command.split())
    if code not in (0, 1):
        raise SystemExit(f"kvsize {command} exits {code}")
    return out.getvalue()


@contextmanager
def plain_environment() -> Iterator[None]:
    """80 columns, no colour, no network, no one's Hub cache."""
    fixed = {"COLUMNS": "80", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent"}
    before = {name: os.environ.get(name) for name in fixed}
    os.environ.update(fixed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def renewed(text: str) -> str:
    """A page with its tables and screens as they are now."""
    text = TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)
    return SCREEN.sub(lambda found: found[1] + screen(found[2]) + found[3], text)


def main(args: list[str]) -> int:
    """Renew the pages, or say which are out of date."""
    stale = [path for path in PAGES if renewed(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")]
    for path in stale:
        print(f"{path.name} is out of date")
        if "--check" not in args:
            path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if stale and "--check" in args else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
