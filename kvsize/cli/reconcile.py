"""`kvsize reconcile LOG`: an engine's start-up log, figure by figure. The exit code is the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvsize.cli.engine_flags import with_engine_flags
from kvsize.cli.options import AsJson, Format, Offline, OutputFormat
from kvsize.cli.parsing import Command
from kvsize.errors import UsageError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
@with_engine_flags
def reconcile(
    log: Annotated[str, typer.Argument(metavar="LOG", help="A log, also gzipped, or - for standard input.")],
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Where the log does not say.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="NAME@VERSION", help="As --model.")] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="FORMAT")] = None,
    calibrate: Annotated[
        str | None, typer.Option("--calibrate", metavar="FILE", help="Store what was measured, for fit --calibration.")
    ] = None,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
    **settings: Any,
) -> None:
    """Hold a start-up log against the prediction. Exit 1: a figure contradicts it beyond its printed digits."""
    from kvsize.cli.output import emit
    from kvsize.logs.clean import read
    from kvsize.logs.document import document
    from kvsize.logs.reconcile import reconcile as reconcile_all
    from kvsize.logs.server import known, servers

    found = servers(read(log, known), log)
    for server in found:
        name, version = engine_of(engine, server.engine)
        server.engine, server.version = name, version or server.version
    given = {name: value for name, value in {**settings, "kv_cache_dtype": kv_dtype}.items() if value is not None}
    answers = reconcile_all(found, model, given, offline=offline)
    if calibrate is not None:
        from kvsize.logs.calibration import write

        write(calibrate, answers)
    page = document(log, answers)
    emit(page, Format.json if as_json else output)
    raise typer.Exit(1 if page.verdict == "contradicts" else 0)


def engine_of(text: str | None, found: str) -> tuple[str, str | None]:
    """The engine and version that --engine gives, else those of the log.

    Raises:
        UsageError: the log is another engine's.
    """
    if text is None:
        return found, None
    name, _, version = text.partition("@")
    if name != found and {name, found} != {"ollama", "llama.cpp"}:
        raise UsageError(f"the log is one of {found}", got=f"--engine {name}")
    return name, version or None
