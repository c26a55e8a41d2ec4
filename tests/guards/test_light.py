"""Starting kvsize loads nothing heavy: what a command does not use, it does not import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pynvml", "amdsmi", "huggingface_hub", "numpy", "rich", "pydantic", "pydantic_core")
LLAMA = "meta-llama/Llama-3.1-8B"
COMMAND = "from kvsize.__main__ import main; main()"

# In a fresh interpreter: the code, then the names of the heavy modules that it has loaded, as the last line of stderr.
SCRIPT = """
import sys
try:
    {code}
finally:
    print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


def loaded(code: str, *arguments: str, heavy: tuple[str, ...] = HEAVY) -> set[str]:
    """Those of the heavy modules that the code has loaded by the time it is done."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code=code, heavy=heavy), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import kvsize",
        "import kvsize; kvsize.load",
        f"import kvsize; kvsize.size(kvsize.load({LLAMA!r}), 32_768).total_bytes",
        f"import kvsize; kvsize.size(kvsize.load({LLAMA!r}), 32_768, engine='vllm').total_bytes",
    ],
)
def test_the_library_loads_nothing_heavy(code):
    assert loaded(code) == set()


@pytest.mark.parametrize(
    "arguments",
    ["--version", "--help", f"{LLAMA} --json", f"{LLAMA} --ctx 32k", f"layers {LLAMA} --json", "models --json"],
)
def test_the_command_loads_nothing_heavy(arguments):
    assert loaded(COMMAND, *arguments.split()) == set()


def test_the_version_costs_not_even_typer():
    assert loaded(COMMAND, "--version", heavy=("typer", "click", "kvsize.cli", "kvsize.api", "json")) == set()


def test_a_size_loads_one_engine():
    engines = ("kvsize.engines.transformers", "kvsize.engines.vllm", "kvsize.engines.sglang", "kvsize.engines.llamacpp")
    assert loaded(COMMAND, LLAMA, "--json", heavy=engines) == {"kvsize.engines.transformers"}


@pytest.mark.parametrize("heavy", ["rich", "pydantic", "huggingface_hub"])
def test_a_heavy_import_is_seen(heavy):
    """The guard guarded: these are installed wherever kvsize is."""
    assert heavy in loaded(f"import kvsize; import {heavy}")


def test_the_schema_is_where_pydantic_is_used():
    assert "pydantic" in loaded(COMMAND, "schema")
