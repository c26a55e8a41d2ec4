"""Runs real caches of the installed mlx-lm on tiny models made on the spot; holds the truth and kvsize against them.

    pip install "mlx[cpu]==0.32.4" "mlx-lm==0.32.2" .
    python validate/oracle_mlx.py
    python validate/oracle_mlx.py --only llama,gemma --write /tmp/again.jsonl

Each row of the truth names a module of mlx-lm and a config; the model gets random weights and is fed by generate_step.
A new model is a new row without runs. mlx's CPU back end multiplies experts in float32 only, so such rows say
"dtype": "float32". Exit 1 if a figure differs from the row's or from kvsize's.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import mlx as engine
from kvsize.errors import KvsizeError

TRUTH = Path(__file__).parent / "truth" / "mlx-0.32.2-modules.jsonl"
# (prompt, generated, settings)
CASES = (
    (1, 1, {}),
    (300, 1, {}),
    (700, 1, {}),
    (300, 1, {"prefill_step_size": 100}),
    (300, 1, {"max_kv_size": 128}),
    (300, 1, {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}),
)


def weigh(row, prompt, generated, settings):
    """(bytes of each layer's cache, None), or (None, the error) where mlx-lm fails."""
    code = importlib.import_module(f"mlx_lm.models.{row['module']}")
    model = code.Model(code.ModelArgs.from_dict(row["config"]))
    kind = getattr(mx, row["dtype"])
    model.update(tree_map(lambda x: x.astype(kind) if mx.issubdtype(x.dtype, mx.floating) else x, model.parameters()))
    rest = {key: value for key, value in settings.items() if key != "max_kv_size"}
    caches = make_prompt_cache(model, settings.get("max_kv_size"))
    tokens = mx.zeros((prompt,), dtype=mx.int32)
    try:
        for _ in generate_step(tokens, model, max_tokens=generated, prompt_cache=caches, **rest):
            pass
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0][:120]
    return [cache.nbytes for cache in caches], None


def predicted(row, tokens, settings):
    """Bytes of each layer that has a cache, or None where kvsize refuses."""
    workload = Workload(tokens, 1, row["dtype"], row["dtype"])
    try:
        size = engine.size(geometry(row["config"]), workload, engine.Options(**settings))
    except KvsizeError:
        return None
    return [layer.held for layer in size.layers if layer.held]


def runs(row):
    """Each case of a model as a run of the truth, and whether kvsize says the same."""
    for prompt, generated, settings in CASES:
        layers, error = weigh(row, prompt, generated, settings)
        run = {"dtype": row["dtype"], "prompt": prompt, "generated": generated, "settings": settings}
        run |= {"refused": error} if layers is None else {"bytes": sum(layers), "layers": layers}
        yield run, predicted(row, prompt + generated, settings) == layers


def check(row):
    """The row as weighed now, and how many of its figures differ from kvsize's or from those written down."""
    found = list(runs(row))
    known = row.get("runs") or [run for run, _ in found]
    differ = [run for (run, same), old in zip(found, known, strict=True) if not same or run != old]
    for run in differ:
        print(f"{row['name']} differs: {run}")
    print(f"{row['name']}: {len(found) - len(differ)} of {len(found)}", file=sys.stderr, flush=True)
    return {**row, "runs": [run for run, _ in found]}, len(differ)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, with commas between")
    parser.add_argument("--write", type=Path, help="the truth file to write")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    head, *rows = map(json.loads, TRUTH.read_text().splitlines())
    chosen = [row for row in rows if any(part in row["name"] for part in arguments.only.split(","))]
    checked = [check(row) for row in chosen]
    if arguments.write:
        head |= {"version": mlx_lm.__version__, "mlx": mx.__version__}
        arguments.write.write_text("".join(json.dumps(line) + "\n" for line in (head, *(row for row, _ in checked))))
    differ = sum(count for _, count in checked)
    print(f"{len(checked)} models, {differ} figures differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
