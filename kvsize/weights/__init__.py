"""Bytes of a model's weights without downloading them: stated, on disk, recorded, or listed by the Hub.

Nothing is counted from a config: what a checkpoint holds (draft layers, packed and unpacked elements, scales, tied
embeddings stored twice) is not in it. What cannot be known is UnknownWeights, with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from kvsize.errors import UsageError
from kvsize.jsonfile import parse, read_file
from kvsize.source import ModelFiles, endpoint, offline_by_environment
from kvsize.weights.ranks import beside, per_rank, per_stage, rotary_tables
from kvsize.weights.values import Part, UnknownWeights, Weights, as_loaded

__all__ = [
    "Part",
    "UnknownWeights",
    "Weights",
    "as_loaded",
    "beside",
    "per_rank",
    "per_stage",
    "rotary_tables",
    "weights_of",
]


def weights_of(
    files: ModelFiles, *, given: int | None = None, exact: bool = False, offline: bool = False
) -> Weights | UnknownWeights:
    """The weights that belong to a config, or why they cannot be known.

    In this order: `given` (bytes, as the user states them), the files beside the config, the figure that the catalogue
    or a GGUF header records, the Hub's listing (one request). `exact` reads headers, so that every tensor is known.

    Raises:
        UsageError: `given` is no positive number.
        SourceError: files that are there cannot be read, or the Hub cannot be asked.
    """
    if given is not None:
        if given < 1:
            raise UsageError("--weights takes a positive number of bytes", got=str(given))
        return Weights(given, "assumed", "as given")
    beside = _beside(files)
    if isinstance(beside, Weights):
        return beside
    if files.weight_bytes is not None and not exact:
        return _recorded(files)
    if files.origin in {"hub", "cache", "catalogue"}:
        return _asked(files, exact=exact, offline=offline)
    if beside is not None:
        return beside
    if files.origin == "gguf":
        return UnknownWeights("a part of the split GGUF file is not there")
    return UnknownWeights("a config from standard input comes without weights")


def _beside(files: ModelFiles) -> Weights | UnknownWeights | None:
    """What lies in the config's own folder; in the Hugging Face cache often nothing but the config."""
    if files.origin not in {"file", "cache"}:
        return None
    from kvsize.weights.local import from_folder

    return from_folder(Path(files.location).parent)


def _recorded(files: ModelFiles) -> Weights:
    size = files.weight_bytes or 0
    if files.origin == "gguf":
        source = "the tensors that the GGUF header lists"
        return Weights(size, "exact", source, files=1, by_layer=files.by_layer)
    return Weights(size, "derived", "the figure that the catalogue records", _plain_parts(files, size))


def _plain_parts(files: ModelFiles, size: int) -> tuple[Part, ...]:
    """One dtype for all of it, where the catalogue's number of parameters says so: 4 bytes each, or 2."""
    if files.origin != "catalogue":
        return ()
    count = parse(read_file(Path(files.location)), files.location).get("parameters")
    if type(count) is not int:
        return ()
    # A sum of files has headers in it: 0.006 % at most of the checkpoints seen.
    fits = (width for width in (4, 2) if 0 <= size - width * count <= size // 10_000)
    names = {4: "F32", 2: "F16" if "float16" in (files.config.get(key) for key in ("dtype", "torch_dtype")) else "BF16"}
    return tuple(Part(names[width], count, width * count) for width in fits)


def _asked(files: ModelFiles, *, exact: bool, offline: bool) -> Weights | UnknownWeights:
    if offline or offline_by_environment():
        what = "the catalogue records no figure" if files.origin == "catalogue" else "no weights lie beside the config"
        return UnknownWeights(f"{what}, and this run is offline", hint="Go online, or state them: --weights 15GiB.")
    from kvsize.weights.remote import from_hub

    return from_hub(endpoint(), files.id, _revision(files), exact=exact)


def _revision(files: ModelFiles) -> str:
    """The commit of the config, so that both are of one revision; else the one that was asked for."""
    if files.revision is not None and re.fullmatch(
        r"[0-9a-fA-F]{7,64}", files.revision
    ):  # the catalogue's may be a date
        return files.revision
    asked = re.search(r"/resolve/([^/]+)/", files.location) if files.origin == "hub" else None
    return unquote(asked[1]) if asked else "main"
