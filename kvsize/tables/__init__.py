"""Documents for people and spreadsheets: pages of at most the asked width, and grids of plain values.

One module a document. A page is styled lines, the answer first; a grid is one header and rows of raw values.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kvsize.tables.page import Grid, Line, View

# document class -> module with `page(document, view, extra)` and `grid(document)`
MODULES: Mapping[str, str] = {
    "SizeDoc": "kvsize.tables.size",
    "LayersDoc": "kvsize.tables.layers",
    "ProbeDoc": "kvsize.tables.probe",
    "ModelsDoc": "kvsize.tables.models",
    "FitDoc": "kvsize.tables.fit",
    "GpusDoc": "kvsize.tables.gpus",
    "CompareDoc": "kvsize.tables.compare",
    "ReconcileDoc": "kvsize.tables.reconcile",
    "AuditDoc": "kvsize.tables.audit",
    "ClaimDoc": "kvsize.tables.claim",
    "ValidateDoc": "kvsize.tables.validate",
}


def page(document: Any, view: View, extra: Any = None) -> list[Line]:
    """A document as styled lines; `extra` is what a command shows beside its document, to people only."""
    lines: list[Line] = _module(document).page(document, view, extra)
    return lines


def grid(document: Any) -> Grid:
    """A document as one table of raw values."""
    found: Grid = _module(document).grid(document)
    return found


def _module(document: Any) -> Any:
    return importlib.import_module(MODULES[type(document).__name__])
