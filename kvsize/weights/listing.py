"""Which of a repository's files an engine would load, from their names and sizes alone.

The order is that of transformers@5.23.0 modeling_utils.py _get_resolved_checkpoint_files: model.safetensors, its
shards, pytorch_model.bin, its shards; beyond that vllm@0.33.0 model_loader/default_loader.py: any *.safetensors at the
root, those that an index names where there is one, else *.bin. Everything else is left out, and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["safetensors", "pickle"]

INDEX = "model.safetensors.index.json"
_SUFFIX: Mapping[Kind, str] = {"safetensors": ".safetensors", "pickle": ".bin"}
_WEIGHTS = re.compile(
    r"\.(safetensors|bin|pt|pth|ckpt|gguf|ggml|onnx|onnx_data|h5|msgpack|npz|tflite|nemo|mlmodel|ot|pkl|llamafile)$",
    re.I,
)
_SHARD = re.compile(r"(?P<stem>.*?)[-_.]?(?P<part>\d{1,9})[-_]of[-_](?P<whole>\d{1,9})(?P<tail>.*)")
_MAIN = {"model", "model.safetensors", "pytorch_model"}
# What a trainer writes beside a model: vllm@0.33.0 weight_utils.py filter_files_not_needed_for_inference, and its kin.
_TRAINING = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*|random_states.*)\.bin$")
_ADAPTER = re.compile(r"^adapter(_model|_config)?\b")


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that are loaded, with their sizes; or, in `missing`, why none can be."""

    kind: Kind | None
    files: Mapping[str, int]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str | None = None

    @property
    def total_bytes(self) -> int:
        """The files together, headers included."""
        return sum(self.files.values())


@dataclass(frozen=True, slots=True)
class _Family:
    """Files that form one checkpoint: a single one, or the shards of one name."""

    stem: str
    tail: str
    files: tuple[str, ...]
    whole: int

    @property
    def rank(self) -> int:
        """0: the standard name; 1: another one; 2: Mistral's second copy; 3: a variant such as fp16."""
        if self.stem.startswith("consolidated"):
            return 2
        if self.tail or re.fullmatch(r"(pytorch_)?model\.(?!safetensors$).+", self.stem):
            return 3
        return 0 if self.stem in _MAIN else 1


def choose(sizes: Mapping[str, int], named: Iterable[str] | None = None) -> Choice:
    """What an engine loads of a repository's files.

    `sizes` maps each path to bytes; `named` are the files that the safetensors index names, where it was read.
    """
    if named is not None:
        return _by_index(sizes, tuple(sorted(set(named))))
    for kind in _SUFFIX:
        families = _families(sizes, kind)
        if families:
            return _best(sizes, kind, families)
    return Choice(None, {}, left_out(sizes, ()), missing=_nothing(sizes))


def _by_index(sizes: Mapping[str, int], named: tuple[str, ...]) -> Choice:
    absent = [name for name in named if name not in sizes]
    if absent or not named:
        what = (
            f"{len(absent)} of {len(named)} files that {INDEX} names are not there, {absent[0]} first" if absent else ""
        )
        return Choice(None, {}, left_out(sizes, ()), missing=what or f"{INDEX} names no files")
    return Choice("safetensors", {name: sizes[name] for name in named}, left_out(sizes, named))


def _families(sizes: Mapping[str, int], kind: Kind) -> list[_Family]:
    """Checkpoints at the root, shards together."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name in sizes:
        if "/" in name or not name.endswith(_SUFFIX[kind]) or _ADAPTER.match(name) or _TRAINING.search(name):
            continue
        base = name.removesuffix(_SUFFIX[kind])
        shard = _SHARD.fullmatch(base)
        key = (shard["stem"], shard["tail"], int(shard["whole"])) if shard else (base, "", 0)
        groups.setdefault(key, []).append(name)
    return [_Family(stem, tail, tuple(sorted(names)), whole) for (stem, tail, whole), names in groups.items()]


def _best(sizes: Mapping[str, int], kind: Kind, families: list[_Family]) -> Choice:
    best = min(family.rank for family in families)
    standard = [family for family in families if family.rank == best]
    chosen, notes = standard, []
    if best in {0, 2, 3}:  # copies of one another: the largest, so that the figure is not too low
        chosen = [max(standard, key=lambda family: sum(sizes[name] for name in family.files))]
        if best == 0 and INDEX in sizes and kind == "safetensors":
            extra = [family for family in families if family.rank == 1]
            chosen += extra
            notes = [f"counted too, as {INDEX} may name it: {family.files[0]}" for family in extra]
    elif len(standard) > 1:
        notes = [f"no file has the standard name: all {len(standard)} at the root are counted"]
    missing = next((reason for family in chosen if (reason := _gap(family))), None)
    files = {name: sizes[name] for family in chosen for name in family.files}
    return Choice(kind, {} if missing else files, left_out(sizes, files), tuple(notes), missing)


def _gap(family: _Family) -> str | None:
    if family.whole in {0, len(family.files)}:
        return None
    return f"{len(family.files)} of the {family.whole} shards of {family.stem or family.files[0]} are there"


def _nothing(sizes: Mapping[str, int]) -> str:
    names = [name for name in sizes if _WEIGHTS.search(name)]
    if any(name.endswith(".gguf") for name in names):
        return "it holds GGUF files only: name one of them"
    if any(_ADAPTER.match(name) for name in names):
        return "it holds an adapter only, no model"
    if names:
        return f"it holds no safetensors or .bin files at its root, only such as {names[0]}"
    return "it holds no weights"


def left_out(sizes: Mapping[str, int], loaded: Iterable[str]) -> tuple[str, ...]:
    """The weights that are there and not loaded, by folder or kind: "original/: 3 files, 15.0 GiB"."""
    groups: dict[str, list[int]] = {}
    taken = set(loaded)
    for name, size in sizes.items():
        if name not in taken and _WEIGHTS.search(name):
            groups.setdefault(_group(name), []).append(size)
    return tuple(f"{group}: {_words(found)}" for group, found in sorted(groups.items()))


def _group(name: str) -> str:
    folder, slash, _ = name.partition("/")
    if slash:
        return f"{folder}/"
    base, _, suffix = name.rpartition(".")
    shard = _SHARD.fullmatch(base)
    return f"{shard['stem']}-*{shard['tail']}.{suffix}" if shard else "*.gguf" if suffix == "gguf" else name


def _words(sizes: list[int]) -> str:
    files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    return f"{files}, {sum(sizes) / 2**30:.1f} GiB"
