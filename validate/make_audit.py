#!/usr/bin/env python3
"""Write docs/audit.md's tables and screens anew: `python validate/make_audit.py`; `--check` only compares.

Tables lie between `<!-- table: NAME -->` and `<!-- /table -->`; screens are console blocks, as in make_tables.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from make_tables import SCREEN, TABLE, TRUTH, screen, table

from kvsize.audit.claims import claim_doc, parse_figure
from kvsize.audit.published import PUBLISHED, Published
from kvsize.audit.tally import audit_doc
from kvsize.report import AuditDoc, SaysDoc
from kvsize.source import load
from kvsize.tables.audit import ranked, ratio_text
from kvsize.tables.units import UNITS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "audit.md"
GIB = UNITS[1]

# Short heading -> model, in the order of the columns.
SAMPLE = {
    "Llama 2 7B": "meta-llama/Llama-2-7b-hf",
    "Llama 3.1 70B": "meta-llama/Llama-3.1-70B",
    "Llama 3.1 405B": "meta-llama/Llama-3.1-405B",
    "StarCoder": "bigcode/starcoder",
    "Gemma 3 27B": "google/gemma-3-27b-it",
    "gpt-oss 120B": "openai/gpt-oss-120b",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "Qwen3-Next 80B": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}
SAMPLE_TOKENS = 4096


def sources() -> str:
    """Every formula, where it was published, and what it was meant for."""
    rows = [[f.name, f"`{f.arithmetic}`", f"[{f.title}]({f.url})", f.published, f.scope] for f in PUBLISHED]
    return table(["formula", "bytes a token, or in all", "source", "published or read", "said of"], rows, left=5)


def sample() -> str:
    """Ratios to the truth for some models, from Llama 2 on."""
    document = audit_doc([load(name, offline=True) for name in SAMPLE.values()], SAMPLE_TOKENS, 1)
    named = {formula.id: formula.name for formula in PUBLISHED}
    columns = [{said.formula: said for said in audited.says} for audited in document.models]
    true = ["*truth, GiB*", *(GIB.number(audited.true_bytes) for audited in document.models)]
    rows = [[named[tally.formula], *(_cell(column[tally.formula]) for column in columns)] for tally in _order(document)]
    return table(["says / truth", *SAMPLE], [true, *rows])


def _order(document: AuditDoc) -> list[Any]:
    return [tally for tally in ranked(document.tallies) if tally.none < len(document.models)]


def _cell(said: SaysDoc) -> str:
    if said.ratio is None:
        return ""
    return "**right**" if said.verdict == "right" else ratio_text(said.ratio)


def over_catalogue(tokens: int) -> str:
    """How often each formula is right over the whole catalogue, and how far off it gets."""
    document = audit_doc([], tokens, 1)
    named: Mapping[str, Published] = {formula.id: formula for formula in PUBLISHED}
    rows = [
        [
            *(named[each.formula].name, *(f"{n}" for n in (each.right, each.high, each.low, each.none))),
            *(ratio_text(value) for value in (each.least, each.median, each.most)),
            (each.most_model or "").rpartition("/")[2],
        ]
        for each in ranked(document.tallies)
    ]
    header = ["formula", "right", "too high", "too low", "no figure", "least", "median", "most", "most for"]
    return table(header, rows)


def claims() -> str:
    """Published figures, and the first explanation that `kvsize audit --claim` finds for each."""
    _, *lines = (TRUTH / "claims.jsonl").read_text(encoding="utf-8").splitlines()
    rows = []
    for row in map(json.loads, lines):
        found = claim_doc(load(row["model"], offline=True), parse_figure(row["claim"]), row["ctx"], row["batch"])
        words = "; ".join(step.words for step in found.explanations[0].deviations)
        said = f"right: {words}" if found.verdict == "right" else words
        asked = f"{row['ctx']:,} token{'' if row['ctx'] == 1 else 's'}"
        rows.append([row["model"].rpartition("/")[2], asked, row["claim"], f"{found.true_bytes:,} B", said])
    return table(["model", "asked", "claimed", "true", "what the claim comes from"], rows, left=5)


TABLES: dict[str, Callable[[], str]] = {
    "sources": sources,
    "sample": sample,
    "claims": claims,
    "catalogue_4k": lambda: over_catalogue(4096),
    "catalogue_128k": lambda: over_catalogue(131_072),
}


def renewed(text: str) -> str:
    """The page with its tables and screens as they are now."""
    text = TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)
    return SCREEN.sub(lambda found: found[1] + screen(found[2]) + found[3], text)


def main(args: list[str]) -> int:
    """Renew the page, or say that it is out of date."""
    before = PAGE.read_text(encoding="utf-8")
    after = renewed(before)
    if after != before and "--check" not in args:
        PAGE.write_text(after, encoding="utf-8")
    if after != before:
        print(f"{PAGE.name} {'is' if '--check' in args else 'was'} out of date")
    return int(after != before and "--check" in args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
