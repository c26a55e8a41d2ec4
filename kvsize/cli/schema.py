"""`kvsize schema [DOCUMENT]`: the JSON Schema of a document."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvsize.cli.parsing import Command
from kvsize.errors import UsageError
from kvsize.report import DOCUMENTS

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def schema(document: Annotated[str, typer.Argument(help="Which document: " + ", ".join(DOCUMENTS))] = "size") -> None:
    """The JSON Schema of what a command prints under --json."""
    if document not in DOCUMENTS:
        raise UsageError(f"no document is called {document!r}", hint="Known: " + ", ".join(DOCUMENTS))
    from pydantic import TypeAdapter

    typer.echo(json.dumps(TypeAdapter(DOCUMENTS[document]).json_schema(), indent=2))
