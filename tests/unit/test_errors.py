"""Errors: one tree, one exit code each, and a text that says what, where, what was found and what to do next."""

from __future__ import annotations

import re

import pytest

from kvsize import errors
from kvsize.errors import ConfigError, KvsizeError, SourceError, UnknownArchitectureError, UsageError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, KvsizeError)]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "missing"),
        ({"where": "$.head_dim"}, "$.head_dim: missing"),
        ({"got": "-1"}, "missing (got -1)"),
        ({"where": "$.head_dim", "got": "-1"}, "$.head_dim: missing (got -1)"),
        ({"hint": "Is this a full config?"}, "missing\nIs this a full config?"),
        ({"where": "$", "got": "x", "hint": "Try y."}, "$: missing (got x)\nTry y."),
        ({"got": ""}, "missing (got )"),  # an empty value is a value
    ],
)
def test_text(parts, text):
    error = KvsizeError("missing", **parts)
    assert str(error) == text
    assert {name: getattr(error, name) for name in ("where", "got", "hint")} == {
        **dict.fromkeys(("where", "got", "hint")),
        **parts,
    }
    assert error.what == "missing"


def test_a_source_error_has_a_reason():
    error = SourceError("no such model", reason="not_found", where="org/name")
    assert (error.reason, str(error)) == ("not_found", "org/name: no such model")
    with pytest.raises(TypeError, match="reason"):
        SourceError("no such model")


def test_an_unknown_architecture_is_a_config_error():
    assert issubclass(UnknownArchitectureError, ConfigError)
    assert not issubclass(UsageError, ConfigError)


@pytest.mark.parametrize("cls", CLASSES)
def test_each_error_has_a_code_a_place_and_a_line(cls):
    assert re.fullmatch(r"[a-z_]+", cls.code)
    assert cls.__doc__
    assert re.search(rf"{cls.__name__} +{cls.exit_code if cls is not KvsizeError else 'exit'}\b", errors.__doc__)
