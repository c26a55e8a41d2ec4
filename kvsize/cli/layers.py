"""`kvsize layers MODEL`: what each layer keeps, in runs, with the config keys it comes from."""

from __future__ import annotations

import typer

from kvsize.architectures import geometry as geometry_of
from kvsize.build import layers_doc
from kvsize.cli.options import AsJson, Format, Model, Offline, OutputFormat, Refresh, Revision
from kvsize.cli.parsing import Command

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def layers(
    model: Model,
    revision: Revision = None,
    refresh: Refresh = False,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """What each layer of a model keeps, and the config keys that say so."""
    from kvsize.cli.output import emit
    from kvsize.source import load

    files = load(model, revision=revision, refresh=refresh, offline=offline)
    document = layers_doc(files, geometry_of(files.config))
    emit(document, Format.json if as_json else output)
