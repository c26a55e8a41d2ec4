"""Documents for people: 80 columns, the answer first."""

from __future__ import annotations

from typing import Any

from kvsize.geometry import index_ranges


def table(document: Any) -> str:
    """A document as a plain table."""
    lines = [f"{document.model.id}  {document.model.model_type}"] if hasattr(document, "model") else []
    if hasattr(document, "cache"):
        lines += [f"total {document.cache.total_bytes:,} bytes"]
    for run in getattr(document, "layers", []):
        lines.append(
            f"{index_ranges(tuple(run.indices))}  {run.kind}  " + "; ".join(f"{s.holds}, {s.keeps}" for s in run.stores)
        )
    lines += getattr(document, "models", [])
    return "\n".join(lines) + "\n"
