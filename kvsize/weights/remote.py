"""Weights of a Hub repository from its listing: one request, however many shards; headers only where asked for.

The listing gives each file's size and, for safetensors, the number of elements by dtype. Where both add up, the bytes
are exact; where they do not (the Hub counts the two 4-bit elements of a byte, and leaves scales out), the sizes of the
files are taken, which are too high by their headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvsize import hub
from kvsize.errors import SourceError
from kvsize.jsonfile import parse
from kvsize.weights.listing import Choice, choose
from kvsize.weights.local import from_tensors
from kvsize.weights.safetensors import DTYPE_BITS, Tensor, header
from kvsize.weights.values import Part, UnknownWeights, Weights

READERS = 8  # headers fetched at once


def from_hub(endpoint: str, repo: str, revision: str, *, exact: bool = False) -> Weights | UnknownWeights:
    """The weights of `repo` at `revision`, in one request; `exact` reads each file's header besides, by ranges.

    Raises:
        SourceError: the Hub cannot be asked, refuses, or answers with what is no listing.
    """
    fetched = hub.fetch_listing(endpoint, repo, revision)
    listing = parse(fetched.data, fetched.url)
    sizes = _sizes(listing, fetched.url)
    choice = choose(sizes)
    if choice.missing:
        return UnknownWeights(f"{endpoint}/{repo}: {choice.missing}")
    if exact and choice.kind == "safetensors":
        commit = listing.get("sha")
        at = commit if isinstance(commit, str) and commit.isalnum() else revision
        return _from_headers(endpoint, repo, at, choice)
    return _from_listing(choice, listing)


def _sizes(listing: Mapping[str, Any], where: str) -> dict[str, int]:
    """Bytes of each file, its path as the Hub spells it."""
    files = listing.get("siblings")
    if not isinstance(files, list):
        what = "the Hub's answer lists no files"
        raise SourceError(what, reason="broken", where=where, hint="State the weights: --weights 15GiB.")
    sizes = {}
    for file in files:
        name, size = (file.get("rfilename"), file.get("size")) if isinstance(file, dict) else (None, None)
        if not isinstance(name, str) or type(size) is not int or size < 0:
            what = "the Hub's answer gives a file without its size"
            hint = "State the weights: --weights 15GiB."
            raise SourceError(what, reason="broken", where=where, got=f"{file!r:.80}", hint=hint)
        sizes[name] = size
    return sizes


def _from_listing(choice: Choice, listing: Mapping[str, Any]) -> Weights:
    total, count = choice.total_bytes, len(choice.files)
    files = "1 file" if count == 1 else f"{count} files"
    parts = _parts(listing) if choice.kind == "safetensors" else ()
    tensors = sum(part.bytes for part in parts)
    # Headers: 0.001 to 0.006 % of real checkpoints, of which the largest have 20,000 tensors and more.
    if parts and 0 <= total - tensors <= total // 10_000 + count * (1 << 16):
        source = f"the Hub's count of elements by dtype, which agrees with the sizes of its {files}"
        return Weights(tensors, "exact", source, parts, count, choice.left_out, choice.notes)
    notes = choice.notes
    if parts:
        told = ", ".join(f"{part.elements:,} {part.dtype}" for part in parts)
        notes = (*notes, f"the Hub's count of elements ({told}) does not add up to its files: their sizes are used")
    source = f"sizes of {files} on the Hub, headers included"
    return Weights(total, "derived", source, files=count, left_out=choice.left_out, notes=notes)


def _parts(listing: Mapping[str, Any]) -> tuple[Part, ...]:
    """Elements by dtype as the Hub read them from the headers; empty where it did not, or where one is not known."""
    told = listing.get("safetensors")
    counts = told.get("parameters") if isinstance(told, dict) else None
    if not isinstance(counts, dict):
        return ()
    parts = []
    for dtype, count in counts.items():
        if type(count) is not int or count < 0 or dtype not in DTYPE_BITS:
            return ()
        parts.append(Part(dtype, count, -(-count * DTYPE_BITS[dtype] // 8)))
    return tuple(sorted(parts, key=lambda part: -part.bytes))


def _from_headers(endpoint: str, repo: str, revision: str, choice: Choice) -> Weights:
    def read(item: tuple[str, int]) -> tuple[Tensor, ...]:
        name, size = item

        def part(start: int, count: int) -> bytes:
            return hub.fetch_part(endpoint, repo, revision, name, start, count).data

        return header(part, size, f"{endpoint}/{repo}/{name}")

    with ThreadPoolExecutor(READERS) as pool:
        found = [tensor for tensors in pool.map(read, choice.files.items()) for tensor in tensors]
    seen = {tensor.name: tensor for tensor in found}
    source = f"headers of {len(choice.files)} files on the Hub"
    return from_tensors(tuple(seen.values()), source, choice, choice.notes)
