"""Options that commands share, and the words they accept for sizes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from kvsize.errors import UsageError

_TOKENS = re.compile(r"(\d+)([km]?)", re.IGNORECASE)
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
MAX_TOKENS = 2**40


def parse_tokens(text: str, flag: str = "--ctx") -> int:
    """Tokens as people write them: 4096, 32k = 32,768, 1m = 1,048,576.

    Raises:
        UsageError: it is none of these, or out of bounds.
    """
    match = _TOKENS.fullmatch(text.strip().replace("_", ""))
    if match and len(match[1]) <= 13:
        tokens = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]
        if 1 <= tokens <= MAX_TOKENS:
            return tokens
    raise UsageError(f"{flag} takes a number of tokens such as 4096, 32k or 1m", got=text)


def parse_token_list(text: str, flag: str = "--ctx") -> list[int]:
    """A comma-separated list of token counts.

    Raises:
        UsageError: it is empty, or one entry is no token count.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts or len(parts) > 1000:
        raise UsageError(f"{flag} takes one number of tokens, or up to 1000 with commas between", got=text[:40])
    return [parse_tokens(part, flag) for part in parts]


def parse_bytes(text: str, flag: str) -> int:
    """Bytes as people write them: 64424509440, 60GiB = 60 x 2^30, 60GB = 60 x 10^9.

    Raises:
        UsageError: it is none of these.
    """
    match = _BYTES.fullmatch(text.strip().replace("_", "").replace(",", ""))
    if not match or len(match[1]) > 24:
        raise UsageError(f"{flag} takes bytes such as 60GiB, 60GB or 64424509440", got=text[:40])
    power = " kmgt".index(match[2].lower() or " ")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * (1024 if match[3] else 1000) ** power)


class Format(StrEnum):
    """How a command prints."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def complete_model(incomplete: str) -> list[str]:
    """Ids of the catalogue, for the shell."""
    from kvsize.source import catalogue

    return [name for name in catalogue() if name.lower().startswith(incomplete.lower())]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="org/name, org/name@revision, a Hub URL, a folder, a config.json, a .gguf, or -.",
        autocompletion=complete_model,
    ),
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit; asks the Hub.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Ask the Hub even if the model is cached or bundled.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never touch the network (also HF_HUB_OFFLINE=1).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the same as --format json.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print.")]
