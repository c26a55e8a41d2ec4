"""`kvsize MODEL --ctx 32k`: bytes of a model's KV cache."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsize.architectures import geometry as geometry_of
from kvsize.build import cache_doc, size_doc
from kvsize.cli.engine_flags import with_engine_flags
from kvsize.cli.options import (
    AsJson,
    Format,
    Model,
    Offline,
    OutputFormat,
    Refresh,
    Revision,
    parse_bytes,
    parse_token_list,
    parse_tokens,
)
from kvsize.cli.parsing import Command
from kvsize.documents import CacheDoc, RowDoc
from kvsize.engines import CacheSize, Overhead, Workload, engine_options, load_engine
from kvsize.errors import UnknownArchitectureError, UnsupportedError, UsageError
from kvsize.geometry import Geometry

if TYPE_CHECKING:
    from kvsize.source import ModelFiles
    from kvsize.tables.size import Beside

MAX_BATCH = 2**31
DEFAULT_CTX = 32_768  # what --ctx is without a value: long enough to matter, and what most tools compare at

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
@with_engine_flags
def size(
    model: Model,
    ctx: Annotated[
        str, typer.Option("--ctx", metavar="TOKENS", help="Tokens of one request: 4096, 32k, 1m, or a list.")
    ] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Concurrent sequences.")] = 1,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="NAME or NAME@VERSION; else transformers, llama.cpp for a GGUF."),
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="FORMAT", help="auto, bfloat16, … or k=…,v=….")
    ] = "auto",
    encoder_ctx: Annotated[
        str | None, typer.Option("--encoder-ctx", metavar="TOKENS", help="Tokens of the encoder or the image.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TOKENS", help="Tokens of the prompt; with --new, instead of --ctx."),
    ] = None,
    new: Annotated[
        str | None, typer.Option("--new", metavar="TOKENS", help="Tokens generated; the last one is never cached.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="transformers: the assistant of assisted decoding.")
    ] = None,
    use_probe: Annotated[
        bool, typer.Option("--probe", help="Read the geometry off the installed transformers' own model code.")
    ] = False,
    revision: Revision = None,
    refresh: Refresh = False,
    offline: Offline = False,
    exact: Annotated[bool, typer.Option("--bytes", help="Exact bytes instead of GiB, MiB and KiB.")] = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
    **settings: Any,
) -> None:
    """Bytes of a model's KV cache, for one engine and one or more context lengths."""
    from kvsize.cli.output import emit
    from kvsize.source import load

    if batch > MAX_BATCH:
        raise UsageError(f"--batch takes at most {MAX_BATCH:,} sequences", got=str(batch))
    files = load(model, revision=revision, refresh=refresh, offline=offline)
    geometry, release = geometry_for(files, use_probe)
    engine = engine or ("llama.cpp" if files.origin == "gguf" else "transformers")
    if release is not None and engine == "transformers":
        engine = f"transformers@{release}"
    prompted = prompt_and_new(prompt, new, ctx)
    lengths, notes = prompted[0] or context_lengths(ctx, geometry, settings.get("n_ctx"))
    workload = workload_of(lengths[0], batch, kv_dtype, encoder_ctx, prompted[1])
    name, options = engine_settings(engine, settings)
    assistant = None if draft is None else assistant_of(draft, name, offline=offline)
    answers = [measure(name, geometry, replace(workload, tokens=n), options, assistant) for n in lengths]
    if release is not None:
        answers = [(replace(answer, evidence="measured"), row) for answer, row in answers]
    sizes, rows = [answer for answer, _ in answers], [row for _, row in answers]
    document = size_doc(files, geometry, workload, sizes, rows, options=options, notes=notes)
    chosen = Format.json if as_json else output
    extra = beside(name, geometry, workload, options, answers, assistant) if chosen is Format.table else None
    emit(document, chosen, extra=extra, exact=exact)


def workload_of(
    tokens: int, batch: int, kv_dtype: str, encoder_ctx: str | None, prompt_tokens: int | None = None
) -> Workload:
    """The workload of the flags."""
    encoder = None if encoder_ctx is None else parse_encoder(encoder_ctx)
    return Workload(tokens, batch, *parse_kv_dtype(kv_dtype), encoder, prompt_tokens)


def geometry_for(files: ModelFiles, use_probe: bool) -> tuple[Geometry, str | None]:
    """What a model stores; and the transformers release that showed it, where asked or where there is no rule."""
    if use_probe:
        return probed(files)
    try:
        return geometry_of(files.config), None
    except UnknownArchitectureError as unknown:
        if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
            with suppress(UnknownArchitectureError):  # transformers does not know it either
                return probed(files)
        raise unknown from None


def probed(files: ModelFiles) -> tuple[Geometry, str]:
    """What the installed transformers really caches, and its release."""
    from kvsize.real.probe import probe

    found = probe(files.config)
    return found.geometry, found.transformers


Lengths = tuple[list[int], tuple[str, ...]]


def prompt_and_new(prompt: str | None, new: str | None, ctx: str) -> tuple[Lengths | None, int | None]:
    """What is cached after generating `new` tokens from a prompt, and the prompt; the last token is never fed back.

    Raises:
        UsageError: one of the two is missing, or --ctx says it too.
    """
    if prompt is None and new is None:
        return None, None
    if prompt is None or new is None or ctx:
        raise UsageError("--prompt and --new go together, and stand for --ctx", hint="Say --prompt 4k --new 512.")
    first, more = parse_tokens(prompt, "--prompt"), parse_tokens(new, "--new")
    note = f"{first:,} prompt tokens and {more:,} generated ones: the cache lags the last one, so {first + more - 1:,}"
    return ([first + more - 1], (note,)), first


@dataclass(frozen=True, slots=True)
class Assistant:
    """The small model of assisted decoding, whose cache lies beside the other."""

    id: str
    geometry: Geometry


def assistant_of(model: str, engine: str, *, offline: bool) -> Assistant:
    """Load the assistant.

    Raises:
        UsageError: the engine has no assistants of this kind.
    """
    from kvsize.source import load

    if engine != "transformers":
        raise UsageError(f"--draft means nothing to {engine}", hint="Servers draft by --num-speculative-tokens.")
    files = load(model, offline=offline)
    return Assistant(files.id, geometry_of(files.config))


def context_lengths(text: str, geometry: Geometry, n_ctx: int | None = None) -> tuple[list[int], tuple[str, ...]]:
    """The lengths asked for, or an engine's own context, or a usual one; and what is worth saying about them."""
    most = geometry.max_tokens
    if not text and n_ctx == 0 and most:  # llama.cpp: what the model was trained on
        return [most], ()
    if not text and n_ctx is not None and n_ctx > 0:
        return [n_ctx], ()
    if not text:
        tokens = min(DEFAULT_CTX, most or DEFAULT_CTX)
        limit = f"; the model goes up to {most:,}" if most and most > tokens else ""
        return [tokens], (f"--ctx was not given: {tokens:,} tokens are assumed{limit}",)
    lengths = parse_token_list(text)
    beyond = most is not None and max(lengths) > most
    return lengths, (f"the config names {most:,} tokens as the most that this model takes",) if beyond else ()


def beside(
    engine: str,
    geometry: Geometry,
    workload: Workload,
    options: Any,
    answers: list[tuple[CacheSize, RowDoc]],
    assistant: Assistant | None,
) -> Beside:
    """What people see beside the document: the figures of one sequence, and what other engines would take."""
    from kvsize.elsewhere import elsewhere
    from kvsize.tables.size import Beside

    if len(answers) > 1:
        return Beside()
    single = None
    if workload.sequences > 1:
        single = measure(engine, geometry, replace(workload, sequences=1), options, assistant)[1].cache
    return Beside(single, tuple(elsewhere(geometry, workload, answers[0][0], options)))


def with_assistant(
    engine: str, geometry: Geometry, workload: Workload, options: Any, assistant: Assistant | None
) -> CacheSize:
    """The engine's answer, with the assistant's cache of the same tokens as a part of its own."""
    module = load_engine(engine)
    answer = module.size(geometry, workload, options)
    if assistant is None:
        return answer
    other = module.size(assistant.geometry, workload, options)
    part, note = Overhead("the assistant", other.total_bytes), f"the assistant is {assistant.id}"
    return replace(answer, overheads=(*answer.overheads, part), notes=(*answer.notes, note, *other.notes))


def measure(
    engine: str, geometry: Geometry, workload: Workload, options: Any, assistant: Assistant | None = None
) -> tuple[CacheSize, RowDoc]:
    """One engine's answer for one length, and the row that reports it with its slope."""
    answer = with_assistant(engine, geometry, workload, options, assistant)
    try:
        longer = replace(workload, tokens=workload.tokens + answer.step_tokens)
        more = with_assistant(engine, geometry, longer, options, assistant)
    except UnsupportedError:  # a step beyond what the engine serves
        return answer, RowDoc(workload.tokens, workload.sequences, _last_step(engine, geometry, workload, options))
    return answer, RowDoc(workload.tokens, workload.sequences, cache_doc(answer, workload.tokens, more))


def _last_step(engine: str, geometry: Geometry, workload: Workload, options: Any) -> CacheDoc:
    """The figures where no longer request is served: with the slope of the step that led here."""
    module = load_engine(engine)
    answer = module.size(geometry, workload, options)
    figures = cache_doc(answer, workload.tokens, answer)
    before = workload.tokens - answer.step_tokens
    if before < 1:
        return figures
    line = cache_doc(module.size(geometry, replace(workload, tokens=before), options), before, answer)
    return replace(figures, fixed_bytes=line.fixed_bytes, marginal_bytes_per_token=line.marginal_bytes_per_token)


def engine_settings(text: str, given: dict[str, Any]) -> tuple[str, Any]:
    """An engine's name and Options from `NAME[@VERSION]` and the flags that were given."""
    name, _, version = text.partition("@")
    return name, engine_options(name, {**plain_settings(given), "version": version or None})


def plain_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Flags as an engine's Options take them: sizes as bytes."""
    memory = given.get("kv_memory")
    return {**given, "kv_memory": parse_bytes(memory, "--kv-memory")} if isinstance(memory, str) else given


def parse_kv_dtype(text: str) -> tuple[str, str]:
    """`bfloat16`, or `k=q8_0,v=q4_0`, as (K, V).

    Raises:
        UsageError: k= or v= is missing, or twice there.
    """
    if "=" not in text:
        return text, text
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if set(pairs) != {"k", "v"}:
        raise UsageError("--kv-dtype takes one format, or k=FORMAT,v=FORMAT", got=text)
    return pairs["k"], pairs["v"]


def parse_encoder(text: str) -> int:
    """Encoder tokens; 0 is a text-only request."""
    return 0 if text == "0" else parse_tokens(text, "--encoder-ctx")
