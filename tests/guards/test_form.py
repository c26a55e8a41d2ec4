"""The form of the sources, where it stands for something: said purpose, real exceptions, no hidden output."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kvsize"
FILES = sorted(PACKAGE.rglob("*.py"))


def faults(source: str) -> list[str]:
    """What is wrong with the form of one module."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) else ["no module docstring"]
    if annotated(tree) and not postponed(tree):
        found.append("annotations without `from __future__ import annotations`")
    for node in ast.walk(tree):
        match node:
            case ast.Assert():
                found.append(f"line {node.lineno}: assert vanishes under -O; raise an error of kvsize.errors")
            case ast.Call(func=ast.Name(id="print" | "input" | "eval" | "exec" as name)):
                found.append(f"line {node.lineno}: {name}()")
            case ast.ExceptHandler(type=None):
                found.append(f"line {node.lineno}: a bare except")
            case ast.keyword(arg="trust_remote_code"):
                found.append(f"line {node.lineno}: trust_remote_code")
    return found


def annotated(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.AnnAssign)
        or (isinstance(node, ast.FunctionDef) and node.args.args and any(arg.annotation for arg in node.args.args))
        for node in ast.walk(tree)
    )


def postponed(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_form(path):
    assert faults(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        '"""Doc."""\nx: int = 1',
        '"""Doc."""\ndef f(x: int): ...',
        '"""Doc."""\nassert x > 0',
        '"""Doc."""\nprint(1)',
        '"""Doc."""\ntry: ...\nexcept: ...',
        '"""Doc."""\nload(trust_remote_code=False)',
    ],
)
def test_a_fault_is_seen(source):
    assert len(faults(source)) == 1


def test_the_package_was_found():
    assert len(FILES) > 30
