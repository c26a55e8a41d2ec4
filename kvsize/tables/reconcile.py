"""The page of `kvsize reconcile`: one block a server, one line a figure, then what is wasted."""

from __future__ import annotations

from typing import Any

from kvsize.report import FigureDoc, ReconcileDoc, ServerDoc, WasteDoc
from kvsize.tables.page import INDENT, Grid, Line, Style, View, beside, headline, labelled, width_of
from kvsize.tables.units import unit_for

MARKS = {
    "agrees": "ok",
    "contradicts": "WRONG",
    "taken": "",
    "inside": "in range",
    "outside": "out of range",
    "not_predicted": "not predicted",
}
STYLES: dict[str, Style] = {"agrees": "answer", "contradicts": "warn", "outside": "warn"}
SHOWN = ("tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "kv_cache_dtype", "n_ctx", "n_parallel")
SHORT = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "kv_cache_dtype": "kv"}


def page(document: ReconcileDoc, view: View, extra: Any = None) -> list[Line]:  # noqa: ARG001 - every page takes one
    """Each server of the log."""
    lines: list[Line] = []
    for server in document.servers:
        lines += [*_server(server, view), []]
    return lines[:-1]


def _server(server: ServerDoc, view: View) -> list[Line]:
    engine = f"{server.engine} {server.version or f'(as {server.sized_as})' if server.sized_as else 'unknown'}"
    settings = [f"{SHORT.get(name, name)} {server.settings[name]}" for name in SHOWN if name in server.settings]
    left = " · ".join([part for part in (server.name, engine, server.model.id) if part])
    lines = headline(left, " · ".join(settings), view)
    lines += labelled("model", f"{server.model.attention} ({server.model_source})", view)
    cells = [_cells(figure) for figure in server.figures]
    heads = ("line", "", "printed", "predicted")
    widths = [max(len(row[index]) for row in (heads, *cells)) for index in range(4)]
    lines.append([(INDENT + _row(heads, widths), "dim")])
    for figure, texts in zip(server.figures, cells, strict=True):
        lines += _figure(figure, _row(texts, widths), view)
    for waste in server.waste:
        lines += labelled("waste", _waste(waste), view, style="warn")
    for note in server.notes:
        lines += labelled("note", note, view)
    return lines


def _figure(figure: FigureDoc, text: str, view: View) -> list[Line]:
    times = len(figure.ranks) or figure.count
    mark = " ".join(word for word in (MARKS[figure.status], f"x{times}" if times > 1 else "") if word)
    words = [figure.explanation]
    if figure.status in ("contradicts", "outside") and figure.difference:
        words.insert(0, f"{'+' if figure.difference > 0 else '-'}{_amount(figure)}")
    line: Line = [(INDENT + text, "")]
    if width_of(line) + 2 + len(mark) <= view.columns:
        line.append((("  " + mark) if mark else "", STYLES.get(figure.status, "dim")))
    else:
        words.insert(0, mark)
    return beside(line, "; ".join(word for word in words if word), view, gap=2, least=30)


def _amount(figure: FigureDoc) -> str:
    size = abs(figure.difference)
    if figure.unit in ("x", "%"):
        return f"{size:.2f}{figure.unit}"
    if figure.unit.endswith("B"):
        return unit_for([int(size)]).text(int(size))
    return f"{int(size):,} {figure.unit}"


def _cells(figure: FigureDoc) -> tuple[str, str, str, str]:
    unit = figure.unit if figure.unit in ("x", "%") else f" {figure.unit}"
    predicted = "-" if figure.predicted is None else f"{figure.predicted}{unit}"
    return str(figure.line), figure.label, f"{figure.printed}{unit}", predicted


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    line, label, printed, predicted = zip(cells, widths, strict=True)
    return "  ".join(
        [
            line[0].rjust(line[1]),
            label[0].ljust(label[1]),
            printed[0].rjust(printed[1]),
            predicted[0].rjust(predicted[1]),
        ]
    )


def _waste(waste: WasteDoc) -> str:
    share = "" if waste.share is None else f" ({100 * waste.share:.1f} % of the cache)"
    return f"{waste.what}{share}" + (f": {waste.flag}" if waste.flag else "")


def grid(document: ReconcileDoc) -> Grid:
    """One row a figure."""
    header = ("server", "engine", "model", "line", "quantity", "printed", "unit", "predicted", "status", "explanation")
    rows = tuple(
        (
            *(server.name, server.engine, server.model.id, figure.line, figure.quantity, figure.printed),
            *(figure.unit, figure.predicted, figure.status, figure.explanation),
        )
        for server in document.servers
        for figure in server.figures
    )
    return Grid(header, rows)
