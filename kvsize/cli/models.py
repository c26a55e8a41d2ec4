"""`kvsize models`: the bundled catalogue, and every architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from kvsize.cli.options import AsJson, Format, OutputFormat
from kvsize.cli.parsing import Command
from kvsize.documents import ArchitectureDoc, EntryDoc, ModelsDoc
from kvsize.engines import Evidence

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def models(
    search: Annotated[str, typer.Option("--search", metavar="WORD", help="Only ids that contain this.")] = "",
    architectures: Annotated[
        bool, typer.Option("--architectures", help="Every known model_type and its evidence.")
    ] = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """The models that kvsize answers for offline, or the architectures it knows."""
    from kvsize.cli.output import emit

    document = architectures_doc(search) if architectures else catalogue_doc(search)
    emit(document, Format.json if as_json else output)


def catalogue_doc(search: str) -> ModelsDoc:
    """The catalogue's models whose id, or an id of the same shape, contains the words."""
    from kvsize.source import catalogue

    also = _aliases()
    found = [
        name for name in catalogue() if any(search.lower() in known.lower() for known in (name, *also.get(name, ())))
    ]
    return ModelsDoc("kvsize.models/1", [_entry(name, also.get(name, [])) for name in found], [])


def _read(name: str) -> Mapping[str, Any]:
    """A file of the catalogue, by its name."""
    from kvsize.jsonfile import parse, read_file
    from kvsize.source import catalogue_dir

    path = catalogue_dir() / f"{name}.json"
    return parse(read_file(path), str(path))


def _aliases() -> dict[str, list[str]]:
    """Catalogue id -> the other ids that have its shape."""
    found: dict[str, list[str]] = {}
    for alias, name in _read("aliases").items():
        found.setdefault(name, []).append(alias)
    return found


def _entry(name: str, also: list[str]) -> EntryDoc:
    from kvsize.architectures import geometry
    from kvsize.errors import ConfigError
    from kvsize.words import describe

    item = _read(name.replace("/", "--"))
    revision = item["revision"] or item["date"]
    try:
        model = geometry(item["config"])
    except ConfigError:
        return EntryDoc(name, str(item["config"].get("model_type")), None, item["weight_bytes"], revision, also)
    return EntryDoc(name, model.model_type, describe(model), item["weight_bytes"], revision, also)


def architectures_doc(search: str) -> ModelsDoc:
    """Every model_type with what its rule stands on."""
    from kvsize.architectures import ARCHITECTURES, evidence

    names = [name for name in sorted(ARCHITECTURES) if search.lower() in name.lower()]
    counts = Counter(entry.model_type for entry in catalogue_doc("").models)
    found = [ArchitectureDoc(name, cast("Evidence", evidence(name)), counts[name]) for name in names]
    return ModelsDoc("kvsize.models/1", [], found)
