"""`kvsize models`: the bundled catalogue, and every architecture."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsize.cli.options import AsJson, Format, OutputFormat
from kvsize.cli.parsing import Command
from kvsize.report import ModelsDoc

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=Command)
def models(
    search: Annotated[str, typer.Option("--search", help="Only ids that contain this.")] = "",
    architectures: Annotated[
        bool, typer.Option("--architectures", help="Every known model_type and its evidence.")
    ] = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """The models that kvsize answers for offline, or the architectures it knows."""
    from kvsize.render import render

    document = architectures_doc(search) if architectures else catalogue_doc(search)
    typer.echo(render(document, Format.json if as_json else output), nl=False)


def catalogue_doc(search: str) -> ModelsDoc:
    """The catalogue's ids."""
    from kvsize.source import catalogue

    names = [name for name in catalogue() if search.lower() in name.lower()]
    return ModelsDoc("kvsize.models/1", names, {})


def architectures_doc(search: str) -> ModelsDoc:
    """Every model_type with what its rule stands on."""
    from kvsize.architectures import ARCHITECTURES, evidence

    found = {name: evidence(name) for name in sorted(ARCHITECTURES) if search.lower() in name.lower()}
    return ModelsDoc("kvsize.models/1", [], found)
