"""Breaks the source in small ways, one at a time, and asks whether the tests notice.

A change of one comparison, sign, factor, term, constant or branch is made in a copy; the module's own truth and unit
tests run on it, and with --thorough all of them where those pass. What survives is either no change at all (a bound
that nothing reaches) or a rule that no measured row holds in place.

    python validate/mutate.py --module engines/transformers --limit 50 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("kvsize", "tests")
LINKED = ("validate", "configs", "docs", "README.md", "CHANGELOG.md", "pyproject.toml")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.FloorDiv: ast.Mult}
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One expression of one file, and what stands there instead; start and end are offsets in bytes."""

    path: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: bytes) -> bytes:
        """The file's text with the change."""
        return text[: self.start] + f"({self.new})".encode() + text[self.end :]


# -- making them -------------------------------------------------------------------------------------------------------


def alternatives(node: ast.AST) -> Iterator[ast.expr]:
    """What may stand in place of an expression."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in SIGNS:
                yield ast.BinOp(left, SIGNS[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult):
                yield left  # a dropped term or factor
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case _:
            yield from choices(node)


def choices(node: ast.AST) -> Iterator[ast.expr]:
    """What may stand in place of an expression that chooses."""
    match node:
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in EXTREMES:
            yield ast.Call(ast.Name(EXTREMES[name]), arguments, keywords)


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression that computes; not messages, annotations, decorators, nor zip's strict, which only asserts."""
    skipped: set[int] = set()
    for field in ("annotation", "returns", "decorator_list", "type_params"):
        value = getattr(node, field, None)
        skipped |= {id(item) for item in (value if isinstance(value, list) else [value])}
    for child in ast.iter_child_nodes(node):
        if id(child) in skipped or isinstance(child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(child, ast.keyword) and child.arg == "strict":
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from expressions(child)


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of one file."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in expressions(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        found += [
            Mutant(path, node.lineno, start, end, ast.unparse(node), ast.unparse(new)) for new in alternatives(node)
        ]
    return found


# -- trying them -------------------------------------------------------------------------------------------------------


ARCHITECTURE_TESTS = ("architectures", "attention", "latent", "recurrent", "config", "transformers")
GGUF_TESTS = ("gguf", "llamacpp")
ALL_TESTS = ["tests/truth", "tests/unit", "tests/golden"]


class Copy:
    """A copy of the package and its tests, as they are now, where one file at a time is broken."""

    def __init__(self, folder: Path, root: Path = ROOT):
        self.folder = folder
        for name in COPIED:
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in LINKED:
            (folder / name).symlink_to(root / name)

    def sample(self, modules: list[str], limit: int, seed: int) -> list[Mutant]:
        """Mutants of every file under these parts of the package, at most `limit` of them."""
        paths = [self.folder / "kvsize" / module for module in modules]
        files = sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
        everything = [mutant for file in files for mutant in mutants(file)]
        chosen = random.Random(seed).sample(everything, min(limit, len(everything)))
        return sorted(chosen, key=lambda mutant: (mutant.path, mutant.start))

    def described(self, mutant: Mutant) -> str:
        """Where a mutant is and what it changes."""
        return f"{mutant.path.relative_to(self.folder)}:{mutant.line}: {mutant.old}  ->  {mutant.new}"

    def own_tests(self, path: Path) -> list[str]:
        """The tests that bear a module's, its engine's or its folder's name, or that are about architectures."""
        parts = path.relative_to(self.folder / "kvsize").with_suffix("").parts
        names = parts[1:2] or parts
        if parts[0] in ("architectures", "config", "geometry"):
            names = GGUF_TESTS if names[0] == "gguf" else (*ARCHITECTURE_TESTS, *names)
        folders = [self.folder / "tests" / kind for kind in ("truth", "unit")]
        found = {test for folder in folders for name in names for test in folder.glob(f"test_{name}*.py")}
        quickest_first = sorted(
            (str(test.relative_to(self.folder)) for test in found), reverse=True
        )  # unit, then truth
        return quickest_first or ["tests/unit"]

    def passes(self, tests: list[str], seconds: int) -> bool:
        """Whether these tests pass on the copy as it is now."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def survives(self, mutant: Mutant, seconds: int, *, thorough: bool) -> bool:
        """Whether no test notices."""
        text = mutant.path.read_bytes()
        _write(mutant.path, mutant.applied(text))
        try:
            unseen = self.passes(self.own_tests(mutant.path), seconds)
            return unseen and (not thorough or self.passes(ALL_TESTS, 4 * seconds))
        finally:
            _write(mutant.path, text)


def _write(path: Path, text: bytes) -> None:
    """Write a source file, whose bytecode would be taken for current if size and second were the same."""
    path.write_bytes(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def main() -> int:
    """Try a sample and list the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="under kvsize/, such as engines/vllm or architectures")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=180, help="a run that takes longer counts as noticed")
    parser.add_argument("--thorough", action="store_true", help="ask all tests before calling it a survivor")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        chosen = copy.sample(args.module or ["engines", "architectures"], args.limit, args.seed)
        for tests in sorted({tuple(copy.own_tests(mutant.path)) for mutant in chosen}):
            if not copy.passes(list(tests), args.seconds):
                sys.stderr.write(f"these fail without any mutant: {' '.join(tests)}\n")
                return 2
        survived = 0
        for mutant in chosen:
            if copy.survives(mutant, args.seconds, thorough=args.thorough):
                survived += 1
                print(copy.described(mutant), flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} noticed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
