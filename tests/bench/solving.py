"""In-process time of fit's questions: `python tests/bench/solving.py [MODEL] [--gpu 8xh200] [--repeat 5]`.

The default model is a hybrid of 118 layers, whose planner takes longest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from sizing import microseconds

from kvsize.deployment.advice import advise
from kvsize.deployment.case import Asked, make_case
from kvsize.deployment.judge import Case, evaluate, judge
from kvsize.deployment.solve import fewest_gpus, widest_format
from kvsize.engines import Workload
from kvsize.gpus import select
from kvsize.source import load

MODEL, TOKENS = "nvidia/Nemotron-H-56B-Base-8K", 8192


def questions(case: Case) -> dict[str, Callable[[], object]]:
    """What a command line may ask, by name."""
    return {
        "the verdict alone": partial(judge, case),
        "verdict, ctx and batch": partial(evaluate, case),
        "advice": partial(advise, evaluate(case)),
        "--solve kv-dtype": partial(widest_format, case),
        "--solve gpus": partial(fewest_gpus, case),
    }


def main() -> int:
    """Time each question under vLLM and SGLang."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--gpu", default="8xh200")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    files, gpus, work = load(args.model, offline=True), select(args.gpu), Workload(TOKENS, k_format="auto")
    for engine in ("vllm", "sglang"):
        case = make_case(files, gpus, engine, work, {}, {}, weights=Asked(offline=True))
        sys.stdout.write(f"{args.model} on {args.gpu} under {engine}: {len(case.geometry.layers)} layers\n")
        for name, call in questions(case).items():
            sys.stdout.write(f"{name:24} {microseconds(call, args.repeat) / 1000:8.1f} ms\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
