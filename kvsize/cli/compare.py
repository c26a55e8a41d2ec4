"""`kvsize compare MODEL… --engine all`: models by engines in one table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvsize.architectures import geometry as geometry_of
from kvsize.cli.engine_flags import with_engine_flags
from kvsize.cli.options import AsJson, Format, Offline, OutputFormat, Refresh, parse_bytes, parse_tokens
from kvsize.cli.parsing import Command
from kvsize.cli.size import DEFAULT_CTX, parse_kv_dtype
from kvsize.engines import ENGINES, Workload
from kvsize.report import ComparedDoc, CompareDoc

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
@with_engine_flags
def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One or more models.")],
    ctx: Annotated[str, typer.Option("--ctx", metavar="TOKENS", help="Tokens of one request.")] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Concurrent sequences.")] = 1,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAMES", help="all, or names with commas between.")
    ] = "all",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="FORMAT")] = "auto",
    refresh: Refresh = False,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
    **settings: Any,
) -> None:
    """The same request in several engines: its bytes, what a budget holds, and why the figures differ."""
    from kvsize.cli.output import emit
    from kvsize.source import load

    names = list(ENGINES) if engine == "all" else [name for name in engine.split(",") if name]
    k_format, v_format = parse_kv_dtype(kv_dtype)
    workload = Workload(parse_tokens(ctx) if ctx else DEFAULT_CTX, batch, k_format, v_format)
    memory = settings.pop("kv_memory", None)
    budget = None if memory is None else parse_bytes(memory, "--kv-memory")
    given = {name: value for name, value in settings.items() if value is not None}
    rows: list[ComparedDoc] = []
    for model in models:
        files = load(model, refresh=refresh, offline=offline)
        rows += compared(files.id, geometry_of(files.config), workload, names, budget, given)
    document = CompareDoc("kvsize.compare/1", workload.tokens, workload.sequences, budget, rows)
    emit(document, Format.json if as_json else output)


def compared(
    model: str, geometry: Any, workload: Workload, engines: list[str], budget: int | None, settings: dict[str, Any]
) -> list[ComparedDoc]:
    """One model's rows."""
    from kvsize.compare import compare as compare_all

    return [
        ComparedDoc(
            model=model,
            engine=row.engine,
            version=row.version,
            evidence=row.size.evidence if row.size else None,
            request_bytes=row.size.total_bytes if row.size else None,
            bytes_per_token=row.bytes_per_token,
            pool_tokens=row.pool.tokens if row.pool else None,
            pool_requests=row.pool.max_concurrency if row.pool else None,
            why=row.why,
            refused=row.refused,
        )
        for row in compare_all(geometry, workload, engines, budget, settings)
    ]
