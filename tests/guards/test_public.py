"""What others may build on: names, commands, exit codes. A change here is a change for every user."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

import kvsize
from kvsize import errors
from kvsize.api import __all__ as api_names

ROOT = Path(__file__).parents[2]


def test_public_names():
    assert kvsize.__all__ == ["CacheSize", "Geometry", "KvsizeError", "Workload", "__version__", "fit", "load", "size"]
    assert set(api_names) == set(kvsize.__all__) - {"__version__"}


def test_public_names_exist():
    for name in kvsize.__all__:
        assert getattr(kvsize, name) is not None


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no attribute 'guess'"):
        kvsize.guess  # noqa: B018


def test_signatures_of_the_public_calls():
    load, size, fit = (inspect.signature(call) for call in (kvsize.load, kvsize.size, kvsize.fit))
    assert list(load.parameters) == ["model", "revision", "refresh", "offline"]
    named = "sequences engine kv_format v_format encoder_tokens options"
    assert list(size.parameters) == ["geometry", "tokens", *named.split()]
    asked = "sequences engine kv_format v_format encoder_tokens weight_bytes data_parallel expert_parallel"
    assert list(fit.parameters) == ["model", "gpu", "tokens", *asked.split(), "revision", "offline", "options"]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    by_place = [[p.name for p in call.parameters.values() if p.kind is positional] for call in (load, size, fit)]
    assert by_place == [["model"], ["geometry", "tokens"], ["model", "gpu", "tokens"]]


def test_exit_codes():
    pinned = {
        "KvsizeError": 70,
        "UsageError": 2,
        "SourceError": 3,
        "ConfigError": 4,
        "UnknownArchitectureError": 4,
        "UnsupportedError": 5,
        "MissingRequirementError": 6,
    }
    classes = {name: c for name, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    assert {name: c.exit_code for name, c in classes.items()} == pinned
    assert len({c.code for c in classes.values()}) == len(classes)


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["version"]["path"] == "kvsize/__init__.py"
    assert f"## {kvsize.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_package_is_typed():
    assert (ROOT / "kvsize" / "py.typed").read_bytes() == b""
