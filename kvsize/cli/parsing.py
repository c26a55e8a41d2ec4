"""How typer's commands are parsed and explained here: plain values at once, options in panels under --help."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from typer.core import TyperCommand

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Command(TyperCommand):
    """A command whose plain options cost no pydantic, and whose --help is grouped by panel."""

    def get_params(self, ctx: Any) -> Any:
        """The command's parameters, and the help option that click adds."""
        return plain_values(super().get_params(ctx))

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, as people write them."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        names = [param.metavar or param.name.upper() for param in arguments]
        pairs = zip(names, arguments, strict=True)
        shown = [name if param.required or name.startswith("[") else f"[{name}]" for name, param in pairs]
        formatter.write_usage(ctx.command_path, " ".join([*shown, "[OPTIONS]"]))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """One section a panel, in the order in which the command names them."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                panels.setdefault(_panel(param), []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or "Options"


def plain_values(params: list[Any]) -> list[Any]:
    """Let strings, whole numbers and what was not given through without typer's converters.

    typer@0.29.2 core.py process_value builds a pydantic adapter for each parameter of a command, given or not: half of
    a start-up. Whatever is not plain still goes there, and with it every error message.
    """
    for param in params:
        if not isinstance(param.process_value, partial):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    descriptor = getattr(param, "type_descriptor", None)  # older typer has none, and needs no help
    if descriptor is None or descriptor.is_ranged or (value is None and param.required):
        return convert(ctx, value)
    kind = descriptor.annotation
    if kind is int and isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    elif value is not None and type(value) is not kind:
        return convert(ctx, value)
    return value if param.callback is None else param.callback(ctx, param, value)
