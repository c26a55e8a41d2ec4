"""CPU time of whole processes, side by side: `python tests/bench/start.py`.

kvsize against a bare typer command (two options, one print), and whatever else of its kind is installed here.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BARE = """import typer
app = typer.Typer()
@app.command()
def main(model: str, ctx: str = "4k"):
    print(model, ctx)
app()
"""
MAIN = ("meta-llama/Llama-3.1-8B", "--ctx", "32k")
# Other tools' cheapest command; most of their main jobs need the network.
OTHERS = {name: (name, "--help") for name in ("hf-mem", "kvfit", "vramscout", "modelinfo", "sparkfit", "whichllm")}


def cpu_seconds(*command):
    """User and system time of one process that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(commands, rounds=9):
    """The median of each command's CPU time, run in turn so that a busy moment hits all of them."""
    for command in commands.values():
        cpu_seconds(*command)  # compiles, and fills the page cache
    times = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(cpu_seconds(*command))
    return {name: statistics.median(each) for name, each in times.items()}


def own(folder):
    """kvsize's commands and the bare one, in this very environment."""
    bare = Path(folder) / "bare.py"
    bare.write_text(BARE)
    kvsize = (sys.executable, "-m", "kvsize")
    return {
        "bare typer": (sys.executable, str(bare), "x"),
        "kvsize --version": (*kvsize, "--version"),
        "kvsize MODEL --json": (*kvsize, *MAIN, "--json"),
        "kvsize MODEL": (*kvsize, *MAIN),
        "kvsize --help": (*kvsize, "--help"),
    }


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = {" ".join(command): command for name, command in OTHERS.items() if shutil.which(name)}
        times = measure({"python -c pass": (sys.executable, "-c", "pass"), **own(folder), **found})
    for name, seconds in times.items():
        print(f"{name:24} {seconds * 1e3:6.0f} ms {seconds / times['bare typer']:6.2f}x")  # noqa: T201


if __name__ == "__main__":
    main()
