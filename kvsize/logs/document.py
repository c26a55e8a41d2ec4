"""From verdicts to the document that `kvsize reconcile` prints."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from kvsize.build import model_doc
from kvsize.logs.lines import Figure
from kvsize.logs.reconcile import Overall, Reconciled
from kvsize.logs.verdict import Verdict
from kvsize.report import FigureDoc, ReconcileDoc, ServerDoc, WasteDoc

WHOLE = ("tokens", "blocks", "cells", "layers")


def document(log: str, servers: list[Reconciled]) -> ReconcileDoc:
    """All servers of one log."""
    docs = [server_doc(server) for server in servers]
    return ReconcileDoc("kvsize.reconcile/1", log, overall([doc.verdict for doc in docs]), docs)


def overall(verdicts: list[Overall]) -> Overall:
    """One contradiction decides; else one agreement."""
    if "contradicts" in verdicts:
        return "contradicts"
    return "agrees" if "agrees" in verdicts else "not_predicted"


def server_doc(found: Reconciled) -> ServerDoc:
    """One server."""
    size = found.findings.size
    return ServerDoc(
        name=found.server.name,
        engine=found.server.engine,
        version=found.server.version,
        sized_as=None if size is None else size.version,
        evidence=None if size is None else size.evidence,
        model=model_doc(found.files, found.geometry),
        model_source=found.model_source,
        settings=dict(found.server.settings),
        verdict=found.verdict,
        figures=[figure_doc(verdict) for verdict in found.findings.verdicts],
        waste=[WasteDoc(one.what, one.share, one.bytes, one.flag or None) for one in found.findings.waste],
        notes=[*found.geometry.notes, *(note for note in found.findings.notes if note)],
    )


def figure_doc(verdict: Verdict) -> FigureDoc:
    """One figure."""
    figure = verdict.figure
    return FigureDoc(
        line=figure.line,
        quantity=figure.quantity,
        label=figure.label,
        printed=figure.text,
        unit=figure.unit,
        least=_number(figure.least, figure, up=True),
        most=_number(figure.most, figure, up=False),
        predicted=verdict.predicted,
        predicted_least=None if verdict.low is None else _number(verdict.low, figure, up=False),
        predicted_most=None if verdict.high is None else _number(verdict.high, figure, up=True),
        difference=_number(verdict.difference, figure, up=verdict.difference > 0),
        status=verdict.status,
        explanation=verdict.why,
        ranks=list(figure.ranks),
        count=figure.count,
    )


def _number(value: Fraction, figure: Figure, *, up: bool) -> int | float:
    """Whole bytes, tokens and layers; ratios as they are."""
    if figure.unit in ("x", "%"):
        return float(value)
    return ceil(value) if up else floor(value)
