"""The command line: parse, call, print, exit code. Commands are imported when they are used."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperGroup

from kvsize.cli.parsing import plain_values
from kvsize.errors import KvsizeError

# name -> (module, one line for --help). `kvsize MODEL` is `kvsize size MODEL`.
COMMANDS: dict[str, tuple[str, str]] = {
    "size": ("kvsize.cli.size", "Bytes of a model's KV cache: the main job, and the default command."),
    "fit": ("kvsize.cli.fit", "Will it fit on this GPU? The exit code is the answer."),
    "compare": ("kvsize.cli.compare", "Models by engines: one request, what a budget holds, and why they differ."),
    "layers": ("kvsize.cli.layers", "What each layer keeps, and the config keys it comes from."),
    "probe": ("kvsize.cli.probe", "What the installed transformers really caches, beside kvsize's rule."),
    "audit": ("kvsize.cli.audit", "Published formulas against the truth, or what a claimed figure comes from."),
    "reconcile": ("kvsize.cli.reconcile", "An engine's start-up log, figure by figure, against the prediction."),
    "gpus": ("kvsize.cli.gpus", "GPUs as their drivers and torch report them, and this machine's."),
    "models": ("kvsize.cli.models", "The bundled catalogue, and every architecture kvsize knows."),
    "validate": ("kvsize.cli.validate", "Builds real caches here, and holds the prediction against them."),
    "schema": ("kvsize.cli.schema", "The JSON Schema of a document."),
}
GROUP_FLAGS = ("-h", "--help", "-V", "--version", "--install-completion", "--show-completion")

# typer brings its own copy of click from 0.2x on; its errors' common base is found through what typer exports.
_CLICK_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Commands(TyperGroup):
    """A group whose commands load on use, and whose first argument may be a model."""

    def get_params(self, ctx: Any) -> Any:
        """The group's own options."""
        return plain_values(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import the command's module and build it."""
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name, command.short_help = cmd_name, summary
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """List the commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def format_usage(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Say what the first argument may be."""
        formatter.write_usage("kvsize", "MODEL [--ctx 32k] [--batch N] [--engine NAME] ...")
        formatter.write_usage("kvsize", "COMMAND ...", prefix="       ")

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands, and ids of the catalogue once a letter is there."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete or incomplete.startswith("-"):
            return found
        return [*found, *self.get_command(ctx, "size").params[0].shell_complete(ctx, incomplete)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`kvsize MODEL …` and `kvsize --ctx 32k MODEL` mean `kvsize size …`."""
        if args and args[0] not in COMMANDS and args[0] not in GROUP_FLAGS:
            args = ["size", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How much memory will the KV cache take, and will it fit? Exact to the byte, per engine.\n\n"
    "\b\nkvsize meta-llama/Llama-3.1-8B --ctx 32k\n"
    "kvsize google/gemma-3-27b-it --ctx 8k,32k,128k --batch 4 --cache static\n"
    "cat config.json | kvsize - --ctx 32k --json",
    epilog="kvsize size -h lists every option of the main job; kvsize models, the models it knows offline.",
)


@app.callback()
def _root(version: bool = typer.Option(False, "--version", "-V", help="Print the version and exit.")) -> None:
    if version:
        from kvsize import __version__

        typer.echo(f"kvsize {__version__}")
        raise typer.Exit


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; no error of any kind escapes as a traceback but a bug."""
    as_json = _wants_json(args)
    try:
        code = typer.main.get_command(app).main(list(args) or ["--help"], prog_name="kvsize", standalone_mode=False)
    except KvsizeError as error:
        return _complain(error.code, error.exit_code, error.what, as_json, error.where, error.got, error.hint)
    except _CLICK_ERROR as error:
        return _complain("usage", 2, error.format_message(), as_json, hint=_usage_hint(args))  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        from kvsize.cli.output import silence

        silence()
        return 0
    except Exception:
        import traceback

        traceback.print_exc()
        sys.stderr.write("This is a bug in kvsize. Please report the lines above with the command that you ran.\n")
        return 70
    return code if isinstance(code, int) else 0


def _wants_json(args: Sequence[str]) -> bool:
    """Whether errors are to be JSON too; asked before anything is parsed, for parsing may be what fails."""
    followed = pairwise([*args, ""])
    return any(arg in ("--json", "--format=json") or (arg, after) == ("--format", "json") for arg, after in followed)


def _usage_hint(args: Sequence[str]) -> str:
    """Where the right spelling stands; a first argument that is nearly a command was probably meant as one."""
    from difflib import get_close_matches

    first = args[0] if args else ""
    if first in COMMANDS:
        return f"kvsize {first} -h lists its options."
    meant = get_close_matches(first, COMMANDS, n=1, cutoff=0.7)
    return f"Did you mean kvsize {meant[0]}?" if meant else "kvsize -h lists the commands, kvsize size -h the options."


def _complain(
    code: str,
    exit_code: int,
    what: str,
    as_json: bool,
    where: str | None = None,
    got: str | None = None,
    hint: str | None = None,
) -> int:
    if as_json:
        from kvsize.documents import ErrorDoc, to_dict

        sys.stderr.write(
            json.dumps(to_dict(ErrorDoc("kvsize.error/1", code, exit_code, what, where, got, hint))) + "\n"
        )
    else:
        sys.stderr.write(f"kvsize: {_escaped(str(KvsizeError(what, where=where, got=got, hint=hint)))}\n")
    return exit_code


def _escaped(text: str) -> str:
    """The same without what a terminal would obey: a config, a file name or a server's answer may hold anything."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
