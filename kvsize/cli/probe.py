"""`kvsize probe MODEL`: what the installed transformers really caches, beside what kvsize's rule says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvsize.architectures import geometry as geometry_of
from kvsize.build import model_doc
from kvsize.cli.options import AsJson, Format, Model, Offline, OutputFormat, Refresh, Revision
from kvsize.cli.parsing import Command
from kvsize.engines import Workload, load_engine
from kvsize.errors import UnknownArchitectureError
from kvsize.geometry import Geometry
from kvsize.report import ProbeDoc, ProbeRunDoc
from kvsize.words import label

if TYPE_CHECKING:
    from kvsize.real.probe import Probe
    from kvsize.source import ModelFiles

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def probe(
    model: Model,
    revision: Revision = None,
    refresh: Refresh = False,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """Run the real model code on the meta device and hold its cache against kvsize's rule; exit 1 if they differ."""
    from kvsize.cli.output import emit
    from kvsize.real.probe import probe as run
    from kvsize.source import load

    files = load(model, revision=revision, refresh=refresh, offline=offline)
    document = probe_doc(files, run(files.config), rule(files))
    emit(document, Format.json if as_json else output)
    if document.agrees is False:
        raise typer.Exit(1)


def rule(files: ModelFiles) -> Geometry | None:
    """What kvsize's own rule says of a model; None where it has no rule."""
    try:
        return geometry_of(files.config)
    except UnknownArchitectureError:
        return None


def probe_doc(files: ModelFiles, found: Probe, ruled: Geometry | None) -> ProbeDoc:
    """The document: bytes of each run of layers after a prefill, by the rule and as weighed."""
    layers = (ruled or found.geometry).runs()
    measured = [weighed_bytes(found, position) for position in range(len(found.weighed))]
    expected = None if ruled is None else [predicted_bytes(found, ruled, w.tokens) for w in found.weighed]
    runs = [
        ProbeRunDoc(
            indices=list(indices),
            kind=layer.kind,
            label=label(layer),
            predicted_bytes=None if expected is None else [sum(one[i] for i in indices) for one in expected],
            measured_bytes=[sum(one.get(i, 0) for i in indices) for one in measured],
        )
        for layer, indices in layers
    ]
    totals = [sum(one.values()) for one in measured]
    same = None if expected is None else totals == [sum(one) for one in expected]
    agrees = same and all(run.predicted_bytes == run.measured_bytes for run in runs)
    notes = [] if ruled is not None else ["kvsize has no rule for this architecture; what was measured stands alone"]
    return ProbeDoc(
        schema="kvsize.probe/1",
        model=model_doc(files, ruled or found.geometry),
        transformers=found.transformers,
        model_class=found.model_class,
        dtype=found.dtype,
        encoder_tokens=found.encoder_tokens,
        tokens=[one.tokens for one in found.weighed],
        agrees=agrees,
        layers=runs,
        notes=notes,
    )


def weighed_bytes(found: Probe, position: int) -> dict[int, int]:
    """Bytes of storage that each layer held at one of the weighed token counts."""
    held: dict[int, int] = {}
    for layer in found.weighed[position].layers:
        held[layer.index] = held.get(layer.index, 0) + layer.storage
    return held


def predicted_bytes(found: Probe, ruled: Geometry, tokens: int) -> list[int]:
    """Bytes of each layer right after a prefill, as the transformers engine computes them for that release."""
    engine = load_engine("transformers")
    workload = Workload(tokens, 1, found.dtype, found.dtype, found.encoder_tokens)
    size = engine.size(ruled, workload, engine.Options(version=found.transformers))
    return [layer.after_prefill for layer in size.layers]
