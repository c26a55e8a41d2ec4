"""`kvsize fit MODEL --gpu h100`: the gate. The exit code is the answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsize.cli.engine_flags import FLAGS, LAUNCH_FLAGS, OVERRIDES, with_flags
from kvsize.cli.options import (
    AsJson,
    Format,
    Model,
    Offline,
    OutputFormat,
    Refresh,
    Revision,
    parse_bytes,
    parse_tokens,
)
from kvsize.cli.parsing import Command
from kvsize.cli.size import DEFAULT_CTX, plain_settings, workload_of
from kvsize.deployment.judge import Outcome
from kvsize.engines import load_engine
from kvsize.errors import UsageError
from kvsize.gpus import find
from kvsize.source import ModelFiles

SOLVE = ("ctx", "batch", "gpus", "kv-dtype")
ASKED = {*("model", "gpu", "engine", "ctx", "batch"), *("solve", "emit_for", "as_json", "output")}
EMIT = ("vllm", "sglang", "llama.cpp", "trtllm", "k8s", "github-action")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
@partial(with_flags, flags=(*LAUNCH_FLAGS, *OVERRIDES, *FLAGS))
def fit(
    context: typer.Context,
    model: Model,
    gpu: Annotated[str, typer.Option("--gpu", metavar="GPU", help="h100, 4xh100, 24GiB, auto …")],
    ctx: Annotated[str, typer.Option("--ctx", metavar="TOKENS", help="Tokens of one request.")] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Concurrent sequences.")] = 1,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="NAME or NAME@VERSION; else vllm, llama.cpp for a GGUF."),
    ] = None,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="FORMAT")] = "auto",
    encoder_ctx: Annotated[str | None, typer.Option("--encoder-ctx", metavar="TOKENS")] = None,
    weights: Annotated[str | None, typer.Option("--weights", metavar="BYTES", help="Instead of what is known.")] = None,
    exact_weights: Annotated[bool, typer.Option("--exact-weights", help="Read every shard's header.")] = False,
    dp: Annotated[int, typer.Option("--dp", metavar="N", help="Replicas.")] = 1,
    ep: Annotated[int, typer.Option("--ep", metavar="N", help="Ranks that split the experts.")] = 1,
    calibration: Annotated[
        str | None, typer.Option("--calibration", metavar="FILE", help="As reconcile --calibrate stored it.")
    ] = None,
    accept_tight: Annotated[bool, typer.Option("--accept-tight", help="Exit 0 for a tight fit too.")] = False,
    solve: Annotated[str | None, typer.Option("--solve", metavar="WHAT", help=", ".join(SOLVE))] = None,
    emit_for: Annotated[str | None, typer.Option("--emit", metavar="WHAT", help=", ".join(EMIT))] = None,
    revision: Revision = None,
    refresh: Refresh = False,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
    **settings: Any,
) -> None:
    """Will it fit? Exit 0: yes. Exit 1: no, or not for certain, or unknown."""
    from kvsize.cli.output import emit, write
    from kvsize.deployment.advice import advise
    from kvsize.deployment.case import Asked, default_engine, make_case
    from kvsize.deployment.document import fit_doc
    from kvsize.deployment.judge import evaluate
    from kvsize.gpus import select
    from kvsize.source import load

    chosen(solve, SOLVE, "--solve")
    chosen(emit_for, EMIT, "--emit")
    files = load(model, revision=revision, refresh=refresh, offline=offline)
    engine = engine or default_engine(files)
    launch = launch_of(settings, calibrated(calibration, engine, files.id))
    case = make_case(
        files,
        select(gpu),
        engine,
        workload_of(parse_tokens(ctx) if ctx else DEFAULT_CTX, batch, kv_dtype, encoder_ctx),
        plain_settings(settings),
        launch,
        (dp, ep),
        Asked(None if weights is None else parse_bytes(weights, "--weights"), exact_weights, offline),
    )
    outcome = evaluate(case)
    if emit_for is not None:
        from kvsize.deployment.launch import script

        write(script(emit_for, served(files), outcome, asked_again(context, model, outcome)))
        raise typer.Exit(exit_code(outcome, accept_tight))
    document = fit_doc(files, outcome, advise(outcome), solution(solve, outcome))
    emit(document, Format.json if as_json else output)
    raise typer.Exit(exit_code(outcome, accept_tight))


def served(files: ModelFiles) -> str:
    """The name under which a server finds the model: an id, the folder of a config, a file."""
    if files.origin == "file":
        return str(Path(files.location).parent)
    return files.location if files.origin == "gguf" and files.revision is None else files.id


def asked_again(context: Any, model: str, outcome: Outcome) -> list[str]:
    """The words of the same question, in full: defaults may change, and this machine's GPUs are not the next one's."""
    case, gpu = outcome.case, outcome.case.gpus.gpu
    known = gpu if gpu.key != "auto" else find(gpu.name)
    name = known.key if known else f"{gpu.usable.low >> 20}MiB"
    words = ["kvsize", "fit", model, "--gpu", f"{case.gpus.count}x{name}"]
    words += ["--engine", f"{case.engine}@{case.options.version}"]
    words += ["--ctx", str(case.workload.tokens), "--batch", str(case.workload.sequences)]
    for param in context.command.params:
        if param.name not in ASKED and str(context.get_parameter_source(param.name)).endswith("COMMANDLINE"):
            value = context.params[param.name]
            flag = param.opts[0] if value is not False else (param.secondary_opts or param.opts)[0]
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return words


def exit_code(outcome: Outcome, accept_tight: bool) -> int:
    """0 only for a fit that is certain, or a tight one that the caller accepts."""
    return 0 if outcome.verdict == "fits" or (accept_tight and outcome.verdict == "tight") else 1


def chosen(value: str | None, known: tuple[str, ...], flag: str) -> None:
    """Refuse a word that is none of the choices."""
    if value is not None and value not in known:
        raise UsageError(f"{flag} takes one of {', '.join(known)}", got=value)


def launch_of(settings: dict[str, Any], stored: dict[str, int]) -> dict[str, Any]:
    """What is said of the launch, taken out of the settings; what is told replaces what a calibration stored."""
    launch = {flag.field: settings.pop(flag.field) for flag in LAUNCH_FLAGS}
    told = {flag.field: settings.pop(flag.field) for flag in OVERRIDES}
    overrides = {name: measured(text, name) for name, text in told.items() if text is not None}
    return {**{k: v for k, v in launch.items() if v is not None}, "overrides": {**stored, **overrides}}


def measured(text: str, name: str) -> int:
    """A figure that replaces an estimate."""
    return 0 if text == "0" else parse_bytes(text, "--" + name.replace("_", "-"))


def calibrated(file: str | None, engine: str, model: str) -> dict[str, int]:
    """What a server of this engine and model measured at its start; nothing where no file is given.

    Raises:
        UsageError: the file is of another engine or model.
    """
    if file is None:
        return {}
    from kvsize.deployment.case import version_of
    from kvsize.logs.calibration import measured_on

    name, _, version = engine.partition("@")
    found = measured_on(file, name, model)
    sized = version or load_engine(name).VERSION
    if found.version is not None and version_of(found.version) != version_of(sized):
        typer.echo(f"{file} was measured on {name} {found.version}; this is {name} {sized}", err=True)
    return found.figures


def solution(solve: str | None, outcome: Outcome) -> dict[str, Any] | None:
    """What --solve asked for."""
    if solve is None:
        return None
    found = outcome.capacity
    if solve == "ctx":
        return {"ctx": found.max_tokens if found else None}
    if solve == "batch":
        return {"batch": found.max_sequences if found else None}
    from kvsize.deployment.solve import fewest_gpus, widest_format

    return {"gpus": fewest_gpus(outcome.case)} if solve == "gpus" else {"kv_dtype": widest_format(outcome.case)}
