"""CPU time of whole processes, side by side: `python tests/bench/startup.py [--rounds 9] [--check]`.

kvsize against a bare Python, a bare typer command (two options, one print), and whatever else of its kind is installed
here. --check exits 1 if a limit of LIMITS is passed; no unit test does, for a busy machine would fail it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BARE = """import typer
app = typer.Typer()
@app.command()
def main(model: str, ctx: str = "4k"):
    print(model, ctx)
app()
"""
PYTHON, TYPER = "python -c pass", "bare typer"
MAIN = ("meta-llama/Llama-3.1-8B", "--ctx", "32k")
# Other tools' cheapest command; most of their main jobs need the network.
OTHERS: Mapping[str, tuple[str, ...]] = {
    "accelerate": ("estimate-memory", "--help"),
    **dict.fromkeys(("hf-mem", "kvfit", "vramscout", "modelinfo", "sparkfit", "whichllm"), ("--help",)),
}
# How many times a bare typer command each may cost.
LIMITS = {"kvsize --version": 1.05, "kvsize MODEL --json": 1.3}


def cpu_seconds(*command: str) -> float:
    """User and system time of one process that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, float]:
    """The median of each command's CPU time, run in turn so that a busy moment hits all of them."""
    for command in commands.values():
        cpu_seconds(*command)  # compiles, and fills the page cache
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(cpu_seconds(*command))
    return {name: statistics.median(each) for name, each in times.items()}


def commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """What is measured: kvsize and the two bare programs in this very environment, other tools from the PATH."""
    bare = folder / "bare.py"
    bare.write_text(BARE)
    kvsize = (sys.executable, "-m", "kvsize")
    found = {name: shutil.which(name) for name in OTHERS}
    return {
        PYTHON: (sys.executable, "-c", "pass"),
        TYPER: (sys.executable, str(bare), "x"),
        "kvsize --version": (*kvsize, "--version"),
        "kvsize MODEL --json": (*kvsize, *MAIN, "--json"),
        "kvsize MODEL": (*kvsize, *MAIN),
        "kvsize --help": (*kvsize, "--help"),
        **{" ".join((name, *OTHERS[name])): (path, *OTHERS[name]) for name, path in found.items() if path},
    }


def table(times: Mapping[str, float]) -> str:
    """Milliseconds, and the ratio to a bare Python and to a bare typer command."""
    lines = [f"{'':32} {'CPU':>8} {'/ python':>9} {'/ typer':>8}"]
    for name, seconds in times.items():
        ratios = f"{seconds / times[PYTHON]:8.1f}x {seconds / times[TYPER]:7.2f}x"
        lines.append(f"{name:32} {seconds * 1e3:5.0f} ms {ratios}")
    return "\n".join(lines)


def passed(times: Mapping[str, float]) -> list[str]:
    """The limits that these times are beyond."""
    ratios = {name: times[name] / times[TYPER] for name in LIMITS}
    return [f"{name}: {ratio:.2f}x, at most {LIMITS[name]}x" for name, ratio in ratios.items() if ratio > LIMITS[name]]


def main() -> int:
    """Measure, print, and with --check judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--check", action="store_true", help="exit 1 beyond a limit")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(commands(Path(folder)), args.rounds)
    beyond = passed(times) if args.check else []
    sys.stdout.write("\n".join([table(times), *beyond]) + "\n")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
