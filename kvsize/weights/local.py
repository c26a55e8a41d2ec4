"""Weights of a folder on disk: headers of its safetensors files, sizes of its .bin files, sizes in Git LFS pointers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvsize.errors import SourceError
from kvsize.regularfile import unreadable
from kvsize.weights.listing import INDEX, Choice, choose
from kvsize.weights.safetensors import MAX_HEADER_BYTES, Tensor, json_object, read_header
from kvsize.weights.values import UnknownWeights, Weights, parts_of

_POINTER = re.compile(rb"version https://git-lfs[^\n]*\n(?:[^\n]*\n)*?size (\d{1,18})\n")


def from_folder(folder: Path) -> Weights | UnknownWeights:
    """The weights of a model's folder, or why they cannot be known.

    Raises:
        SourceError: the folder or a file that an engine would load cannot be read, or is damaged.
    """
    sizes, pointers = _sizes(folder)
    choice = choose(sizes, _named(folder, sizes))
    if choice.missing:
        return UnknownWeights(f"{folder}: {choice.missing}")
    if choice.kind == "safetensors" and not pointers & set(choice.files):
        return _from_headers(folder, choice)
    what = "sizes that Git LFS pointers give" if pointers else "sizes of the files"
    source = f"{what}, headers included: {_count(choice)} in {folder}"
    return Weights(
        choice.total_bytes, "derived", source, files=len(choice.files), left_out=choice.left_out, notes=choice.notes
    )


def _count(choice: Choice) -> str:
    return "1 file" if len(choice.files) == 1 else f"{len(choice.files)} files"


def _from_headers(folder: Path, choice: Choice) -> Weights:
    tensors = tuple(tensor for name in choice.files for tensor in read_header(folder / name))
    seen = {tensor.name: tensor for tensor in tensors}
    notes = choice.notes
    if len(seen) < len(tensors):
        notes = (*notes, f"{len(tensors) - len(seen)} tensors are there twice; counted once")
    return from_tensors(tuple(seen.values()), f"headers of {_count(choice)} in {folder}", choice, notes)


def from_tensors(tensors: tuple[Tensor, ...], source: str, choice: Choice, notes: tuple[str, ...]) -> Weights:
    """Weights whose every tensor is known."""
    total = sum(tensor.bytes for tensor in tensors)
    files, left = len(choice.files), choice.left_out
    return Weights(total, "exact", source, parts_of(tensors), files, left, notes, tensors)


def _sizes(folder: Path) -> tuple[dict[str, int], set[str]]:
    """Bytes of each file, one level of folders deep, and which of them are pointers to what is not there."""
    sizes: dict[str, int] = {}
    pointers: set[str] = set()
    try:
        for place in (folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())):
            for entry in os.scandir(place):
                if entry.is_file():
                    name = Path(entry.path).relative_to(folder).as_posix()
                    size = entry.stat().st_size
                    told = _pointed(Path(entry.path)) if size < 1024 else None
                    sizes[name] = size if told is None else told
                    pointers |= set() if told is None else {name}
    except OSError as error:
        raise unreadable(folder, error) from None
    return sizes, pointers


def _pointed(path: Path) -> int | None:
    """The size that a Git LFS pointer gives; None for any other file."""
    if path.suffix not in {".safetensors", ".bin"}:
        return None
    with path.open("rb") as file:
        match = _POINTER.match(file.read(1024))
    return int(match[1]) if match else None


def _named(folder: Path, sizes: dict[str, int]) -> tuple[str, ...] | None:
    """The files that the index names; its total_size is not read: some are 0, some count what is shared twice.

    Like transformers, a lone model.safetensors goes before an index.
    """
    if INDEX not in sizes or "model.safetensors" in sizes:
        return None
    path = folder / INDEX
    with path.open("rb") as file:
        data = file.read(MAX_HEADER_BYTES)  # cut off, it is no JSON any more
    names = json_object(data, str(path)).get("weight_map")
    if not isinstance(names, dict) or not all(_is_name(name) for name in names.values()):
        what = "no weight_map of tensor to file name"
        raise SourceError(what, reason="broken", where=str(path), hint="Remove it, or download it again.")
    return tuple(names.values())


def _is_name(name: object) -> bool:
    """A path inside the folder, no deeper than its own folders."""
    return isinstance(name, str) and bool(re.fullmatch(r"[\w\-.]+(/[\w\-.]+)?", name)) and ".." not in name
