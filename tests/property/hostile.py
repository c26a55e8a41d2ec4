"""Configs that nobody would publish, bred from those that somebody did. One integer makes one config, always the same.

As a script it runs any range of seeds and prints what went wrong and what took longest:
    python tests/property/hostile.py --start 0 --count 20000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from kvsize.architectures import ARCHITECTURES, geometry
from kvsize.engines import ENGINES, CacheSize, Workload, load_engine
from kvsize.errors import KvsizeError
from kvsize.geometry import Geometry
from kvsize.jsonfile import parse

ROOT = Path(__file__).parents[2]
TRUTH = ROOT / "validate" / "truth"
TOKENS = (1, 2, 4096, 131_073)

# Numbers at and beyond every bound, and values of every wrong type.
NUMBERS = (-1, 0, 1, 2, 3, 7, 127, 4096, 4097, 2**31 - 1, 2**31, 2**63, 10**30, -(2**63), 0.5, 1.5, -0.0, 2.0, 1e300)
NOT_NUMBERS = (None, True, False, float("nan"), float("inf"), float("-inf"), "8", "x", "", "\ud800", "\x1b[2J", "LLLG")
NESTED = ([], {}, [None], [[]], [{}], {"a": {"b": 1}}, [1] * 5000, ["full_attention"] * 5000, ["x", 1, None])
BAD: tuple[Any, ...] = (*NUMBERS, *NOT_NUMBERS, *NESTED)
KINDS = ("full_attention", "sliding_attention", "linear_attention", "chunked_attention", "conv", "mlp", "hybrid", "moe")


@cache
def corpus() -> tuple[Mapping[str, Any], ...]:
    """Every config of the bundled catalogue and of the truth files."""
    models = sorted((ROOT / "configs" / "models").glob("*.json"))
    entries: Iterator[Any] = (json.loads(path.read_text(encoding="utf-8")) for path in models)
    rows = (json.loads(line) for path in sorted(TRUTH.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
    found = (entry.get("config") for entry in chain(entries, rows) if isinstance(entry, dict))
    return tuple(config for config in found if isinstance(config, dict))


@cache
def known_keys() -> tuple[str, ...]:
    """Every key that some config of the corpus has, at its top or one level down."""
    keys: set[str] = set()
    for config in corpus():
        keys |= set(config).union(*(value for value in config.values() if isinstance(value, dict)))
    return tuple(sorted(keys))


# -- mutations: each changes one thing in place ------------------------------------------------------------------------


def _key(rnd: random.Random, node: dict[str, Any]) -> str:
    return rnd.choice(list(node)) if node else "num_hidden_layers"


def _bad(rnd: random.Random) -> Any:
    return deepcopy(rnd.choice(BAD))


def _drop(rnd: random.Random, node: dict[str, Any]) -> None:
    node.pop(_key(rnd, node), None)


def _spoil(rnd: random.Random, node: dict[str, Any]) -> None:
    node[_key(rnd, node)] = _bad(rnd)


def _add(rnd: random.Random, node: dict[str, Any]) -> None:
    node[rnd.choice(known_keys())] = _bad(rnd)


def _borrow(rnd: random.Random, node: dict[str, Any]) -> None:
    donor = rnd.choice(corpus())
    key = _key(rnd, dict(donor))
    node[key] = deepcopy(donor.get(key))


def _other_type(rnd: random.Random, node: dict[str, Any]) -> None:
    node["model_type"] = rnd.choice(sorted(ARCHITECTURES))


def _as_text(rnd: random.Random, node: dict[str, Any]) -> None:
    key = _key(rnd, node)
    node[key] = str(node.get(key))


def _swap(rnd: random.Random, node: dict[str, Any]) -> None:
    one, other = _key(rnd, node), _key(rnd, node)
    node[one], node[other] = node.get(other), node.get(one)


def _relist(rnd: random.Random, node: dict[str, Any]) -> None:
    """Shorten, lengthen or spoil a list; make one of layer types where there is none."""
    lists = [key for key, value in node.items() if isinstance(value, list) and value]
    if not lists:
        node["layer_types"] = [rnd.choice(KINDS) for _ in range(rnd.choice((1, 2, 12, 32, 4096)))]
        return
    key = rnd.choice(lists)
    items = list(node[key])
    place = rnd.randrange(len(items))
    node[key] = rnd.choice((items[:place], items * 2, [*items[:place], _bad(rnd), *items[place + 1 :]]))


def _wrap(rnd: random.Random, node: dict[str, Any]) -> None:
    """Move everything under a key, some levels down, as wrapper configs do."""
    inner = dict(node)
    for _ in range(rnd.choice((1, 1, 2, 50, 99, 101))):
        inner = {rnd.choice(("text_config", "llm_config", "thinker_config", "language_config", "a")): inner}
    node |= inner


MUTATIONS: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    *(_drop, _drop, _spoil, _spoil, _spoil, _spoil, _add, _add),
    *(_borrow, _borrow, _other_type, _as_text, _swap, _relist, _wrap),
)


def mutated(seed: int) -> bytes:
    """The text of the config that belongs to this seed; one in twelve says a key twice, one in forty nests too deep."""
    rnd = random.Random(seed)
    config: dict[str, Any] = json.loads(json.dumps(rnd.choice(corpus())))
    for _ in range(rnd.randint(1, 4)):
        rnd.choice(MUTATIONS)(rnd, _some_node(rnd, config))
    text = json.dumps(config)
    twice = {1: json.dumps(_bad(rnd)), 2: '{"a":' * 5000 + "1" + "}" * 5000, 3: "9" * 5000}.get(rnd.randrange(40))
    if config and (rnd.randrange(12) == 0 or twice):
        key = rnd.choice((_key(rnd, config), "x"))
        text = f"{text[:-1]}, {json.dumps(key)}: {twice or json.dumps(_bad(rnd))}}}"
    return text.encode("utf-8", "surrogatepass")


def _some_node(rnd: random.Random, node: dict[str, Any]) -> dict[str, Any]:
    inner = [value for value in node.values() if isinstance(value, dict)]
    return _some_node(rnd, rnd.choice(inner)) if inner and rnd.random() < 0.6 else node


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(data: bytes) -> Geometry | KvsizeError:
    """What kvsize makes of a config's text; every other exception is a bug and escapes."""
    try:
        return geometry(parse(data, "hostile"))
    except KvsizeError as error:
        return error


@dataclass(frozen=True, slots=True)
class Way:
    """One way of sizing: an engine and some of its settings."""

    engine: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join((self.engine, *(str(value) for _, value in self.settings)))

    @property
    def options(self) -> Any:
        """The engine's own Options."""
        return load_engine(self.engine).Options(**dict(self.settings))

    @property
    def arguments(self) -> list[str]:
        """The same on the command line."""
        settings = dict(self.settings)
        version = settings.pop("version", load_engine(self.engine).VERSION)
        flags = chain.from_iterable((f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items())
        return ["--engine", f"{self.engine}@{version}", *flags]


# dynamic_full is a name that only older releases accept.
RELEASES = {"dynamic_full": (("version", "5.13.1"),)}
BUDGET = (("kv_memory", 64 << 30), ("tensor_parallel_size", 2))


@cache
def ways() -> tuple[Way, ...]:
    """Every engine with its defaults, with each cache where it has several, and with a budget on two ranks."""
    found = []
    for name in ENGINES:
        module = load_engine(name)
        known = {item.name for item in fields(module.Options)}
        caches = [(("cache", kind), *RELEASES.get(kind, ())) for kind in getattr(module, "CACHES", ())]
        budgets = [BUDGET] if known.issuperset(dict(BUDGET)) else []
        found += [Way(name, settings) for settings in (caches or [()]) + budgets]
    return tuple(found)


def sized(model: Geometry, way: Way, tokens: int, sequences: int) -> CacheSize | KvsizeError:
    """An engine's answer for an accepted config; every other exception is a bug and escapes."""
    try:
        return load_engine(way.engine).size(model, Workload(tokens, sequences), way.options)
    except KvsizeError as error:
        return error


def fault(model: Geometry | KvsizeError) -> str | None:
    """What is wrong with an answer to a hostile config; None if nothing is."""
    if isinstance(model, KvsizeError):
        return None if model.exit_code in (4, 5) else f"exit code {model.exit_code}: {model}"
    return f"{len(model.layers)} layers" if len(model.layers) > MAX_LAYERS else None


MAX_LAYERS = 8192  # work is linear in layers; twice config.MAX_LAYERS for types that cache twice in a layer


def size_fault(size: CacheSize | KvsizeError) -> str | None:
    """What is wrong with a size; None if nothing is."""
    if isinstance(size, KvsizeError):
        return None
    figures = (size.logical_bytes, size.total_bytes, size.after_prefill_bytes, size.peak_bytes, size.host_bytes)
    wrong = [figure for figure in figures if type(figure) is not int or figure < 0]
    return f"figures {wrong}" if wrong else None


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A list that some number of a config blows up becomes a MemoryError here, and not the machine's end."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


MEMORY_BYTES = 4 << 30


def check(seed: int) -> str | None:
    """Everything that is asked of one seed: its config, and its size in one way after another."""
    model = answer(mutated(seed))
    wrong = fault(model)
    if wrong or isinstance(model, KvsizeError):
        return wrong
    rest, index = divmod(seed, len(ways()))
    way = ways()[index]
    wrong = size_fault(sized(model, way, TOKENS[rest % len(TOKENS)], 1 + rest % 2))
    return wrong and f"{way}: {wrong}"


def main() -> int:
    """Run the seeds that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()
    with bounded_memory():
        return run(range(args.start, args.start + args.count))


def run(seeds: range) -> int:
    """Check one seed after another; print what failed, and what took longest."""
    slow, failures = [], 0
    for seed in seeds:
        begin = time.process_time()
        try:
            wrong = check(seed)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        slow.append((time.process_time() - begin, seed))
        if wrong:
            failures += 1
            sys.stdout.write(f"seed {seed}: {wrong[:300]}\n")
    sys.stdout.write(f"{len(seeds)} configs, {failures} failures; slowest {sorted(slow)[-5:]}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
