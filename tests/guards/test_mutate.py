"""The script that breaks the source: what it changes, what it leaves alone, and that a break is noticed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "validate"))

import mutate


def changes(source: str) -> list[str]:
    return [ast.unparse(new) for node in mutate.expressions(ast.parse(source)) for new in mutate.alternatives(node)]


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("a < b", ["a <= b"]),
        ("a is None", ["a is not None"]),
        ("a + b", ["a - b", "a"]),
        ("a * b", ["a"]),
        ("a // b", ["a * b"]),
        ("a and b", ["a or b"]),
        ("not a", ["a"]),
        ("x = 7", ["8"]),
        ("x = True", ["False"]),
        ("a if b else c", ["c if b else a"]),
        ("max(a, b)", ["min(a, b)"]),
        ("f(a == 1)", ["a != 1", "2"]),
    ],
)
def test_changes(source, new):
    assert changes(source) == new


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError(f"{a + 1}")',
        'x = f"{a + 1}"',
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "@cache(1)\ndef f(): ...",
        "x: Annotated[int, 1]",
        "zip(a, b, strict=True)",
        '"""Doc 1."""',
    ],
)
def test_messages_annotations_and_decorators_are_left_alone(source):
    assert changes(source) == []


def test_a_mutant_is_the_file_with_one_expression_changed(tmp_path):
    path = tmp_path / "m.py"
    path.write_text('x = "größer"; y = (a +\n     b)\n', encoding="utf-8")
    sources = [one.applied(path.read_bytes()).decode() for one in mutate.mutants(path)]
    assert sources == ['x = "größer"; y = ((a - b))\n', 'x = "größer"; y = ((a))\n']


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return mutate.Copy(tmp_path_factory.mktemp("copy"))


def test_a_sample_is_the_same_for_the_same_seed(copy):
    first, again, other = (copy.sample(["engines/transformers"], 5, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert all(copy.described(one).startswith("kvsize/engines/transformers/") for one in first)


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("engines/transformers/growing.py", "tests/truth/test_transformers.py"),
        ("engines/vllm/plan.py", "tests/truth/test_vllm.py"),
        ("engines/trtllm.py", "tests/unit/test_trtllm.py"),
        ("architectures/latent.py", "tests/truth/test_transformers.py"),
        ("architectures/common.py", "tests/unit/test_attention_by_hand.py"),
        ("architectures/common.py", "tests/unit/test_latent_by_hand.py"),
        ("architectures/common.py", "tests/unit/test_recurrent_by_hand.py"),
        ("architectures/__init__.py", "tests/unit/test_architectures_facts_by_hand.py"),
        ("architectures/gguf/states.py", "tests/unit/test_gguf.py"),
        ("architectures/gguf/states.py", "tests/truth/test_llamacpp.py"),
        ("config.py", "tests/unit/test_config_by_hand.py"),
        ("engines/__init__.py", "tests/unit"),
    ],
)
def test_each_module_has_tests_of_its_own(copy, module, tests):
    assert tests in copy.own_tests(copy.folder / "kvsize" / module)


def test_quick_tests_come_first(copy):
    kinds = [test.split("/")[1] for test in copy.own_tests(copy.folder / "kvsize" / "architectures" / "common.py")]
    assert kinds == sorted(kinds, reverse=True)
    assert {"unit", "truth"} == set(kinds)


def test_a_broken_copy_is_noticed_and_mended(copy):
    path = copy.folder / "kvsize" / "engines" / "trtllm.py"
    source = path.read_bytes()
    end = source.index(b"\n\n\n")
    assert not copy.survives(mutate.Mutant(path, 1, end, end, "", "1 / 0"), 60, thorough=False)
    assert path.read_bytes() == source
    assert copy.passes(["tests/unit/test_trtllm.py"], 60)
