"""The benchmarks run and say what they measured; how long anything takes is for a person to judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the suite has no packages

import startup

HERE = Path(__file__).parent


def run(name, *arguments):
    command = [sys.executable, HERE / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_start_up_prints_a_row_for_each_command(tmp_path):
    rows = run("startup.py", "--rounds", "1").splitlines()[1:]
    assert [row.partition("  ")[0] for row in rows] == list(startup.commands(tmp_path))
    assert all(" ms " in row and row.count("x ") + row.endswith("x") >= 2 for row in rows)


def test_sizing_prints_a_row_for_each_engine():
    lines = run("sizing.py", "--repeat", "2").splitlines()
    assert lines[0] == "meta-llama/Llama-3.1-405B: 126 layers, 131,072 tokens"
    assert [line for line in lines if line.startswith("transformers ") and line.endswith(" us")]


def test_solving_prints_a_row_for_each_question():
    lines = run("solving.py", "google/gemma-2-9b", "--gpu", "2xh100", "--repeat", "1").splitlines()
    assert lines[0] == "google/gemma-2-9b on 2xh100 under vllm: 42 layers"
    assert sum(line.startswith("--solve gpus ") and line.endswith(" ms") for line in lines) == 2


def test_limits_are_ratios_to_a_bare_typer_command():
    times = {startup.PYTHON: 0.01, startup.TYPER: 0.2, "kvsize --version": 0.2, "kvsize MODEL --json": 0.27}
    assert startup.passed(times) == ["kvsize MODEL --json: 1.35x, at most 1.3x"]
    assert startup.passed({**times, "kvsize MODEL --json": 0.25}) == []


def test_cpu_time_grows_with_the_work():
    idle, busy = (startup.cpu_seconds(sys.executable, "-c", f"sum(range({n}))") for n in (1, 20_000_000))
    assert busy > 2 * idle


def test_a_command_that_fails_is_no_measurement():
    with pytest.raises(subprocess.CalledProcessError):
        startup.cpu_seconds(sys.executable, "-c", "raise SystemExit(1)")
