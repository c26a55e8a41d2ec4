"""Options that commands share, and the words they accept for sizes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from kvsize.errors import UsageError

_TOKENS = re.compile(r"(\d+)([km]?)", re.IGNORECASE | re.ASCII)
_BYTES = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d+))?\s*(?:([kmgt])(i?))?b?", re.IGNORECASE | re.ASCII)
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
    """Bytes as people write them: 64424509440, 60GiB = 60 x 2^30, 60GB = 60 x 10^9; a part of a byte is dropped.

    Raises:
        UsageError: it is none of these.
    """
    match = _BYTES.fullmatch(text.strip().replace("_", ""))
    if not match or len(match[0]) > 40:
        raise UsageError(f"{flag} takes bytes such as 60GiB, 60GB or 64424509440", got=text[:40])
    whole, decimals = match[1].replace(",", ""), match[2] or ""
    unit = pow(1024 if match[4] else 1000, " kmgt".index((match[3] or " ").lower()))
    return int(int(whole + decimals) * unit // 10 ** len(decimals))


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
