"""What a server measured at its start, kept for `kvsize fit --calibration`: figures that replace estimates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from kvsize.errors import SourceError, UsageError
from kvsize.jsonfile import parse, read_file
from kvsize.logs.lines import Figure
from kvsize.logs.reconcile import Reconciled

SCHEMA = "kvsize.calibration/1"
# a part of fit's budget -> the figures that measure it, the best first. From 0.20 on vLLM sets aside its estimate.
PARTS: dict[str, tuple[str, ...]] = {
    "activations": ("activations", "compute"),
    "cuda_graphs": ("graphs_estimate", "graphs"),
    "non_torch": ("non_torch",),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration file: bytes by part, and the stack that they were measured on."""

    engine: str
    version: str | None
    model: str
    figures: dict[str, int]


def write(name: str, servers: Iterable[Reconciled]) -> None:
    """Store the figures of the log's one server.

    Raises:
        UsageError: there are several models or engines in the log, or nothing was measured; the file cannot be written.
    """
    found = list(servers)
    stacks = {(one.server.engine, one.files.id) for one in found}
    if len(stacks) > 1:
        what = f"the log holds {len(stacks)} stacks, and a calibration is of one"
        raise UsageError(what, hint="Cut the log, one file a server.")
    latest = found[-1]
    figures = measured(latest)
    if not figures:
        raise UsageError(
            "the log prints no activations, graphs or non-torch memory",
            hint="vLLM prints them with VLLM_LOGGING_LEVEL=DEBUG, newer releases at the end of the start.",
        )
    content = {
        "schema": SCHEMA,
        "engine": latest.server.engine,
        "version": latest.server.version,
        "gpu": {"total_bytes": _largest(latest.server.of("total")), "free_bytes": _largest(latest.server.of("free"))},
        "model": latest.files.id,
        "settings": dict(latest.server.settings),
        "figures": {f"{part}_bytes": size for part, size in figures.items()},
    }
    try:
        Path(name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", got=f"--calibrate {name}") from None


def measured(found: Reconciled) -> dict[str, int]:
    """Bytes by part, each at the upper end of what its digits leave open, the largest of all ranks."""
    sizes = {}
    for part, names in PARTS.items():
        for quantity in names:
            size = _largest(_on_device(found.server.of(quantity)))
            if size is not None:
                sizes[part] = size
                break
    return sizes


def _on_device(figures: list[Figure]) -> list[Figure]:
    """Those of GPUs, where there are any."""
    on_gpus = [f for f in figures if "Host" not in f.facts.get("device", "") and f.facts.get("device") != "CPU"]
    return on_gpus or figures


def _largest(figures: list[Figure]) -> int | None:
    return max((ceil(figure.most) for figure in figures), default=None)


def load(name: str) -> Calibration:
    """Read a calibration file.

    Raises:
        SourceError: it cannot be read, or is no calibration.
    """
    path = Path(name)
    if not path.exists():
        raise SourceError("no such file", reason="not_found", where=name, hint="kvsize reconcile LOG --calibrate FILE")
    content = parse(read_file(path), name)
    figures = content.get("figures")
    known = {f"{part}_bytes": part for part in PARTS}
    sound = isinstance(figures, dict) and all(
        key in known and type(value) is int and value >= 0 for key, value in figures.items()
    )
    if content.get("schema") != SCHEMA or not sound or not _strings(content):
        hint = "kvsize reconcile LOG --calibrate FILE writes one."
        raise SourceError("no calibration of kvsize", reason="broken", where=name, hint=hint)
    sizes = {known[key]: value for key, value in (figures or {}).items()}
    return Calibration(content["engine"], content.get("version"), content["model"], sizes)


def _strings(content: dict[str, Any]) -> bool:
    return all(isinstance(content.get(key), str) for key in ("engine", "model"))


def measured_on(name: str, engine: str, model: str) -> Calibration:
    """A calibration file that is of this engine and model.

    Raises:
        SourceError: it cannot be read, or is no calibration.
        UsageError: it is of another engine or model.
    """
    found = load(name)
    if found.engine != engine:
        raise UsageError(f"{name} was measured on {found.engine}", got=f"--engine {engine}")
    if found.model != model:
        raise UsageError(f"{name} was measured with {found.model}", got=model)
    return found
