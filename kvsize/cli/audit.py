"""`kvsize audit`: published formulas against the truth, and where a claimed figure comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsize.cli.options import AsJson, Format, Offline, OutputFormat, Refresh, complete_model, parse_tokens
from kvsize.cli.parsing import Command
from kvsize.errors import UsageError
from kvsize.report import AuditDoc, ClaimDoc

DEFAULT_CTX = 4096  # where NVIDIA's own example stands
MAX_BATCH = 2**31

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def audit(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help="One or more; without any, the whole catalogue.", autocompletion=complete_model
        ),
    ] = None,
    ctx: Annotated[str, typer.Option("--ctx", metavar="TOKENS", help="Tokens of one request (formulas: 4k).")] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Concurrent sequences.")] = 1,
    claim: Annotated[
        str, typer.Option("--claim", metavar="FIGURE", help='Say where a figure such as "340 GB" comes from.')
    ] = "",
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="Whose cache a claim is about: NAME or NAME@VERSION.")
    ] = "",
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", metavar="FORMAT", help="Format that a claim is about (default: 16 bits).")
    ] = "",
    refresh: Refresh = False,
    offline: Offline = False,
    exact: Annotated[bool, typer.Option("--bytes", help="Exact bytes instead of GiB, MiB and KiB.")] = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """Hold published formulas against the cache that is really kept, or find what a claimed figure comes from.

    With --claim, exit 0 says that the figure is right, exit 1 that it is not.
    """
    from kvsize.audit.tally import audit_doc
    from kvsize.cli.output import emit
    from kvsize.source import load

    if not 1 <= batch <= MAX_BATCH:
        raise UsageError(f"--batch takes between 1 and {MAX_BATCH:,} sequences", got=str(batch))
    names = models or []
    document: AuditDoc | ClaimDoc
    if claim:
        document = claim_document(names, claim, (ctx, batch), (engine, kv_dtype), refresh=refresh, offline=offline)
    elif engine or kv_dtype:
        raise UsageError("--engine and --kv-dtype belong to --claim", hint="Formulas are held against 16 bits.")
    else:
        files = [load(name, refresh=refresh, offline=offline) for name in names]
        document = audit_doc(files, parse_tokens(ctx) if ctx else DEFAULT_CTX, batch)
    emit(document, Format.json if as_json else output, exact=exact)
    if isinstance(document, ClaimDoc):
        raise typer.Exit(0 if document.verdict == "right" else 1)


def claim_document(
    names: list[str], text: str, asked: tuple[str, int], stated: tuple[str, str], *, refresh: bool, offline: bool
) -> ClaimDoc:
    """The document of one claim about one model.

    Raises:
        UsageError: there is not one model, or no length to hold the figure against.
    """
    from kvsize.audit.claims import claim_doc, parse_figure
    from kvsize.source import load

    if len(names) != 1:
        raise UsageError("--claim is about one MODEL", got=f"{len(names)} models")
    figure = parse_figure(text)
    ctx, batch = asked
    if not ctx and not figure.per_token:
        raise UsageError("--claim needs --ctx: a figure is that of so many tokens", hint="A figure per token: --ctx 1.")
    files = load(names[0], refresh=refresh, offline=offline)
    tokens = 1 if figure.per_token else parse_tokens(ctx)
    return claim_doc(files, figure, tokens, batch, engine=stated[0] or "transformers", kv_dtype=stated[1])
