"""docs/audit.md holds what `kvsize audit` computes now; the tables over the whole catalogue only in a sweep."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validate"))
    return importlib.import_module("make_audit")


def written(name):
    return PAGE.partition(f"<!-- table: {name} -->\n")[2].partition("<!-- /table -->")[0]


@pytest.mark.parametrize("name", ["sources", "sample", "claims"])
def test_tables_are_up_to_date(made, name):
    assert written(name) == made.TABLES[name](), "run python validate/make_audit.py"


def test_every_table_stands_on_the_page_once(made):
    for name in made.TABLES:
        assert PAGE.count(f"<!-- table: {name} -->") == 1
        assert written(name).count("\n") > 5


def test_a_stale_table_would_be_noticed(made, monkeypatch):
    monkeypatch.setitem(made.TABLES, "catalogue_4k", lambda: written("catalogue_4k"))
    monkeypatch.setitem(made.TABLES, "catalogue_128k", lambda: written("catalogue_128k"))
    assert made.renewed(PAGE.replace("2,147,483,648 B", "2,147,483,649 B")) == PAGE


@pytest.mark.sweep
def test_the_whole_page_is_up_to_date(made):
    assert made.renewed(PAGE) == PAGE


def test_the_sample_shows_where_nvidias_formula_is_right_and_where_not():
    row = next(line for line in written("sample").splitlines() if line.startswith("| NVIDIA (hidden_size)"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["**right**", "8.00", "16.0"]
