"""Which part of the package may import which: data flows one way, and only the command line knows everyone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kvsize"

# Part (a module or a folder right under kvsize/) -> the parts that it may import. A new module takes a row here, and
# the row says where it stands in the flow: source > config > architectures > geometry < engines > plan > documents.
ROWS: Mapping[str, str] = {
    "api": "architectures deployment.budget deployment.case deployment.judge engines errors geometry gpus source",
    "architectures": "config errors formats geometry gguf_names",
    "audit.claims": (
        "architectures audit.folded audit.formulas audit.mistakes audit.published audit.readings "
        "audit.tally build engines errors formats geometry report source"
    ),
    "audit.folded": "geometry",
    "audit.formulas": "engines formats geometry shape",
    "audit.mistakes": "audit.folded geometry report",
    "audit.published": "audit.formulas",
    "audit.readings": (
        "audit.folded audit.formulas audit.mistakes audit.published engines errors formats geometry words"
    ),
    "audit.tally": (
        "architectures audit.formulas audit.published build engines errors geometry jsonfile report source"
    ),
    "build": "audit.formulas documents engines geometry source words",
    "compare": "deployment.judge deployment.plan elsewhere engines errors geometry",
    "config": "errors geometry",
    "deployment.advice": "deployment.judge deployment.support engines errors geometry gpus ranges",
    "deployment.budget": "engines errors ranges shape",
    "deployment.case": (
        "architectures deployment.budget deployment.judge engines errors geometry gpus shape source weights"
    ),
    "deployment.document": (
        "build deployment.advice deployment.budget deployment.judge deployment.spread deployment.support errors ranges "
        "report source weights"
    ),
    "deployment.judge": (
        "deployment.budget deployment.plan deployment.spread engines errors geometry gpus ranges shape weights"
    ),
    "deployment.launch": "deployment.judge errors",
    "deployment.plan": "",
    "deployment.solve": "deployment.advice deployment.judge deployment.support gpus",
    "deployment.spread": "deployment.budget engines ranges weights",
    "deployment.support": "gpus",
    "documents": "engines",
    "elsewhere": "engines errors formats geometry words",
    "engines": "errors formats geometry gguf_names",
    "errors": "",
    "formats": "errors",
    "geometry": "",
    "gguf": "errors hub regularfile",
    "gguf_names": "",
    "gpus": "engines errors ranges",
    "hub": "errors jsonfile",
    "jsonfile": "errors regularfile",
    "logs": (
        "architectures build deployment.budget engines errors formats geometry jsonfile ranges regularfile report "
        "shape source weights"
    ),
    "real.measure": "errors real.paging real.probe real.twin",
    "real.paging": "errors real.twin",
    "real.probe": "errors formats geometry real.twin",
    "ranges": "",
    "regularfile": "errors",
    "render": "documents tables",
    "report": "documents engines",
    "shape": "config",
    "source": "errors gguf hub jsonfile regularfile",
    "tables": "build documents elsewhere formats geometry report words",
    "real.twin": "errors",
    "validation": "engines errors geometry real.measure",
    "weights": "config engines errors gguf hub jsonfile ranges regularfile source",
    "words": "geometry",
}
ALLOWED: Mapping[str, set[str]] = {
    **{name: set(row.split()) for name, row in ROWS.items()},
    "cli": set(ROWS),  # it alone knows everyone
    "__main__": {"cli"},
    "audit": set(),
    "deployment": set(),
    "real": set(),
    "kvsize": {"api"},
}

# Packages whose modules have rows of their own.
TOLD_APART = ("audit", "deployment", "real")
WHOLES = {f"kvsize.{name}" for name in TOLD_APART}

# What no row may loosen. Reached in any number of steps:
VALUES = ("errors", "geometry", "ranges")
ENGINES_NEVER_REACH = {"config", "architectures", "source", "hub", "cli", "report", "documents", "render", "tables"}
ARCHITECTURES_NEVER_REACH = {"engines", "source", "hub", "cli", "report", "documents", "render", "tables"}
DOCUMENTS_NEVER_REACH = {"cli", "render", "tables", "architectures", "config"}
# A prediction must not reach its own judge: what runs or weighs real caches knows no engine.
JUDGES = ("real.probe", "real.measure", "real.paging", "real.twin")


def part(module: str) -> str:
    """`kvsize.engines.vllm.plan` belongs to engines; kvsize/__init__.py itself is `kvsize`."""
    names = module.split(".")
    if len(names) > 2 and names[1] in TOLD_APART:
        return f"{names[1]}.{names[2]}"
    return names[1] if len(names) > 1 else names[0]


def module_of(path: Path, package: Path) -> str:
    names = ("kvsize", *path.relative_to(package).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(tree: ast.AST) -> Iterator[str]:
    """Every kvsize module that a file imports, anywhere in it, or names in a call of import_module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=level) if level:
                raise AssertionError(f"line {node.lineno}: relative imports hide where they lead")
            case ast.ImportFrom(module="kvsize", names=names):
                yield from (f"kvsize.{alias.name}" for alias in names if alias.name != "__version__")
            case ast.ImportFrom(module=str(module), names=names) if module in WHOLES:
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[argument]):
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def edges(package: Path) -> dict[str, set[str]]:
    """Part -> the parts that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        here = part(module_of(path, package))
        targets = {
            part(name) for name in imported(ast.parse(path.read_text("utf-8"))) if name.split(".")[0] == "kvsize"
        }
        found.setdefault(here, set()).update(targets - {here})
    return found


def offences(found: Mapping[str, set[str]], allowed: Mapping[str, set[str]]) -> list[str]:
    """What the package does and the table does not allow."""
    return [
        f"{here} imports {there}" for here, targets in found.items() for there in targets - allowed.get(here, set())
    ]


def reach(table: Mapping[str, set[str]], start: str) -> set[str]:
    """Every part that `start` may import, in any number of steps."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        waiting += (new := table.get(waiting.pop(), set()) - seen)
        seen |= new
    return seen


def test_no_import_but_the_allowed_ones():
    assert offences(edges(PACKAGE), ALLOWED) == []


def test_every_part_has_a_row_and_every_row_a_part():
    assert set(edges(PACKAGE)) == set(ALLOWED)


def test_nothing_is_allowed_that_nobody_uses():
    assert offences({name: ALLOWED[name] for name in ROWS}, edges(PACKAGE)) == []


@pytest.mark.parametrize("name", VALUES)
def test_values_import_nothing_of_the_package(name):
    assert ALLOWED[name] == set()


def test_formats_know_only_errors():
    assert ALLOWED["formats"] == {"errors"}


@pytest.mark.parametrize(
    ("start", "never"),
    [
        ("engines", ENGINES_NEVER_REACH),
        ("architectures", ARCHITECTURES_NEVER_REACH),
        ("documents", DOCUMENTS_NEVER_REACH),
        ("report", DOCUMENTS_NEVER_REACH),
    ],
)
def test_the_flow_has_no_way_back(start, never):
    assert reach(ALLOWED, start) & never == set()


@pytest.mark.parametrize("judge", JUDGES)
def test_judges_know_no_engine(judge):
    assert reach(ALLOWED, judge) & {"engines", "architectures"} == set()


def test_engines_do_not_know_each_other():
    """But Ollama, which starts llama.cpp."""
    crossed = set()
    for path in (PACKAGE / "engines").rglob("*.py"):
        own = module_of(path, PACKAGE).split(".")[2:3]
        for name in imported(ast.parse(path.read_text("utf-8"))):
            other = name.split(".")[2:3] if name.startswith("kvsize.engines.") else []
            crossed |= {(*own, *other)} if own and other and other != own else set()
    assert crossed <= {("ollama", "llamacpp")}


def test_nobody_imports_the_command_line():
    assert [name for name, targets in ALLOWED.items() if "cli" in targets] == ["__main__"]


# -- the check checked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "from kvsize.cli import run",
        "from kvsize.cli.size import measure",
        "import kvsize.cli",
        "import kvsize.cli as c",
        "from kvsize import cli",
        "def f():\n    from kvsize.cli import run",
        "if False:\n    import kvsize.cli.size",
        "import importlib\nimportlib.import_module('kvsize.cli')",
    ],
)
def test_a_forbidden_import_is_seen_however_it_is_written(tmp_path, line):
    (tmp_path / "engines" / "vllm").mkdir(parents=True)
    (tmp_path / "engines" / "vllm" / "plan.py").write_text(line)
    assert offences(edges(tmp_path), {"engines": {"geometry"}}) == ["engines imports cli"]


def test_a_relative_import_is_refused(tmp_path):
    (tmp_path / "geometry.py").write_text("from .cli import run")
    with pytest.raises(AssertionError, match="relative"):
        edges(tmp_path)


def test_a_way_round_is_found():
    assert reach({"engines": {"formats"}, "formats": {"config"}, "config": {"engines"}}, "engines") >= {"config"}
