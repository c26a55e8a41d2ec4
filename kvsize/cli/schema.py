"""`kvsize schema [DOCUMENT]`: the JSON Schema of a document."""

from __future__ import annotations

import json
from typing import Annotated, Any

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
    typer.echo(json.dumps(json_schema(document), indent=2, ensure_ascii=False))


def json_schema(document: str) -> dict[str, Any]:
    """The JSON Schema of a document, derived from the very class that is printed."""
    from pydantic import TypeAdapter

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**dialect, **TypeAdapter(DOCUMENTS[document]).json_schema(mode="serialization")}
