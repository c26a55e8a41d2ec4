"""In-process time of one answer, engine by engine: `python tests/bench/sizing.py [MODEL] [--repeat 200]`.

The default model has 126 layers. What a capacity search or a sweep pays for each step is the engine's row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time_ns

from kvsize.architectures import geometry
from kvsize.engines import ENGINES, Workload, load_engine
from kvsize.errors import KvsizeError
from kvsize.source import load

MODEL = "meta-llama/Llama-3.1-405B"
TOKENS = 131_072


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """The median CPU time of one call."""
    call()  # fills caches, imports
    times = []
    for _ in range(repeat):
        before = process_time_ns()
        call()
        times.append(process_time_ns() - before)
    return median(times) / 1e3


def main() -> int:
    """Time the config's way to a geometry, then each engine's size of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--repeat", type=int, default=200)
    args = parser.parse_args()
    config = load(args.model, offline=True).config
    model = geometry(config)
    calls: dict[str, Callable[[], object]] = {"config to geometry": partial(geometry, config)}
    for name in ENGINES:
        module = load_engine(name)
        calls[name] = partial(module.size, model, Workload(TOKENS, k_format="auto"), module.Options())
    sys.stdout.write(f"{args.model}: {len(model.layers)} layers, {TOKENS:,} tokens\n")
    for name, call in calls.items():
        try:
            sys.stdout.write(f"{name:20} {microseconds(call, args.repeat):8.0f} us\n")
        except KvsizeError as error:
            sys.stdout.write(f"{name:20}  refused: {error.what}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
