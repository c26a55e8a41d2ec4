"""What `kvsize audit` prints, to the letter (`pytest --update-golden` writes it), and what holds of any page."""

import csv
import io
import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from kvsize import engines
from kvsize.audit.claims import claim_doc, parse_figure
from kvsize.audit.published import PUBLISHED
from kvsize.audit.tally import audit_doc
from kvsize.cli import run
from kvsize.engines.transformers import VERSION
from kvsize.report import DOCUMENTS
from kvsize.source import catalogue, load
from kvsize.tables import page
from kvsize.tables.audit import ratio_text
from kvsize.tables.claim import in_unit
from kvsize.tables.page import View, plain, width_of

PAGES = Path(__file__).parent / "audit"

# name -> (columns, command line, exit code)
CASES = {
    "llama": (80, "audit meta-llama/Llama-3.1-70B", 0),
    "llama-2": (80, "audit meta-llama/Llama-2-7b-hf --ctx 4096", 0),
    "gemma3-deepseek": (80, "audit google/gemma-3-27b-it deepseek-ai/DeepSeek-V3 --ctx 32k --batch 4", 0),
    "gemma3-narrow": (60, "audit google/gemma-3-27b-it --ctx 32k", 0),
    "llama-csv": (80, "audit meta-llama/Llama-3.1-405B --ctx 128k --format csv", 0),
    "llama-markdown": (80, "audit meta-llama/Llama-3.1-8B --format markdown", 0),
    "claim": (80, "audit --claim 340GB meta-llama/Llama-3.1-70B --ctx 128k", 1),
    "claim-405b": (80, "audit --claim 123.05GB meta-llama/Llama-3.1-405B --ctx 128k", 1),
    "claim-float32": (80, "audit --claim 21GiB google/gemma-2-9b --ctx 32k", 1),
    "claim-narrow": (60, "audit --claim 183GiB deepseek-ai/DeepSeek-V3 --ctx 32k", 1),
    "claim-right": (80, "audit --claim 2GB meta-llama/Llama-2-7b-hf --ctx 4k", 0),
    "claim-unexplained": (80, "audit --claim 777GB meta-llama/Llama-2-7b-hf --ctx 4k", 1),
    "claim-markdown": (80, "audit --claim 4GiB ai21labs/AI21-Jamba-1.5-Mini --ctx 32k --format markdown", 1),
    "claim-json": (80, "audit --claim 36864B/token openai/gpt-oss-120b --json", 1),
    "help": (80, "audit --help", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_page(name, capsys, monkeypatch, pytestconfig):
    width, command, code = CASES[name]
    monkeypatch.setenv("COLUMNS", str(width))
    # Other engines' figures would tie every page to all of them.
    monkeypatch.setattr(engines, "ENGINES", {"transformers": engines.ENGINES["transformers"]})
    monkeypatch.setattr("kvsize.audit.readings.ENGINES", engines.ENGINES)
    assert run(command.split()) == code
    text = capsys.readouterr().out.replace(VERSION, "VERSION")
    path = PAGES / f"{name}.txt"
    if pytestconfig.getoption("update_golden"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), "run pytest --update-golden and read what it wrote"
    assert text == path.read_text(encoding="utf-8")


def test_every_file_has_a_case():
    assert {path.stem for path in PAGES.iterdir()} == set(CASES)


@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_line_runs_past_the_edge(width):
    whole = audit_doc([], 4096, 1)
    assert max(map(width_of, page(whole, View(width)))) <= width
    for name in catalogue()[::7]:
        files = load(name, offline=True)
        for document in (audit_doc([files], 32_768, 3), claim_doc(files, parse_figure("1.5 GiB"), 32_768, 3)):
            lines = page(document, View(width))
            assert max(map(width_of, lines)) <= width, plain(lines)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B", "google/gemma-3-27b-it", "state-spaces/mamba-2.8b-hf"])
def test_every_formula_stands_on_the_page_once(model):
    document = audit_doc([load(model, offline=True)], 4096, 1)
    text = " ".join(plain(page(document, View(200))).split())
    for formula in PUBLISHED:
        assert text.count(formula.name) == 1, formula.name


def test_the_first_three_lines_hold_the_answer(capsys):
    assert run("audit --claim 340GB meta-llama/Llama-3.1-70B --ctx 128k".split()) == 1
    first = capsys.readouterr().out.splitlines()[:3]
    assert "WRONG 340GB" in first[1]
    assert "42,949,672,960 B" in first[2]


@pytest.mark.parametrize(
    ("name", "command", "code"),
    [
        ("audit", "audit meta-llama/Llama-3.1-70B", 0),
        ("audit", "audit", 0),
        ("claim", "audit --claim 2GB meta-llama/Llama-2-7b-hf --ctx 4k", 0),
        ("claim", "audit --claim 21GiB google/gemma-2-9b --ctx 32k", 1),
        ("claim", "audit --claim 7.7713GB google/gemma-2-9b --ctx 32k", 1),
    ],
)
def test_documents_are_valid_and_complete(name, command, code, capsys):
    assert run([*command.split(), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    adapter = TypeAdapter(DOCUMENTS[name])
    parsed = adapter.validate_json(json.dumps(document), strict=True)
    assert adapter.dump_python(parsed, mode="json") == document
    assert next(iter(document)) == "schema"
    assert document["schema"] == f"kvsize.{name}/1"


def test_spreadsheets_hold_every_formula(capsys):
    assert run("audit meta-llama/Llama-3.1-70B google/gemma-3-27b-it --format csv".split()) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * len(PUBLISHED)
    for row in rows:
        if row["says_bytes"]:
            assert float(row["ratio"]) == pytest.approx(int(row["says_bytes"]) / int(row["true_bytes"]), abs=1e-4)
        else:
            assert row["reason"]
    assert run("audit --format csv".split()) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == len(PUBLISHED)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0045, "0.0045"),
        (0.77, "0.77"),
        (1.0, "1.00"),
        (9.994, "9.99"),
        (71.11, "71.1"),
        (3085.96, "3,086"),
    ],
)
def test_ratios_have_few_digits(value, text):
    assert ratio_text(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (343_597_383_680, "GB", "343.60 GB"),
        (2**31, "GiB", "2.00 GiB"),
        (36_864, "B", "36,864 B"),
        (1536, "KiB", "1.50 KiB"),
    ],
)
def test_figures_in_the_unit_of_the_claim(value, unit, text):
    assert in_unit(value, unit) == text
