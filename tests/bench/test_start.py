"""Starting kvsize costs no more than starting typer."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("start", Path(__file__).with_name("start.py"))
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)


def test_start_up_against_a_bare_typer_command(tmp_path):
    times = start.measure(start.own(tmp_path), rounds=5)
    bare = times["bare typer"]
    assert times["kvsize --version"] <= 1.05 * bare
    assert times["kvsize MODEL --json"] <= 1.3 * bare
    assert times["kvsize MODEL"] <= 1.6 * bare


def test_cpu_time_grows_with_the_work(tmp_path):
    import sys

    idle, busy = (start.cpu_seconds(sys.executable, "-c", f"sum(range({n}))") for n in (1, 20_000_000))
    assert busy > 2 * idle
