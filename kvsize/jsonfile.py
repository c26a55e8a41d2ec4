"""One JSON object from bytes that nobody vouches for: bounded in size and depth, each fault named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvsize.errors import ConfigError, SourceError
from kvsize.regularfile import opened

MAX_BYTES = 8 << 20  # the largest real config.json is some 100 kB
MAX_DEPTH = 100  # real ones nest about 6 deep; later code may then recurse without fear
_STARTS = "A config.json starts with {."


def read_file(path: Path) -> bytes:
    """Read a regular file, one byte more than MAX_BYTES at most, so that parse() sees that it is too large.

    Errors: SourceError "broken" if it cannot be read, or is a folder, a FIFO or a device.
    """
    with opened(path, hint="A pipe or device can be read as standard input: `kvsize - < it`.") as file:
        return file.read(MAX_BYTES + 1)


def parse(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object as Python's json does (NaN, Infinity and a BOM pass), but bounded.

    Errors: SourceError "too_large" or "not_json"; ConfigError for a key that stands there twice with
    different values, for nesting beyond MAX_DEPTH, and for a number of more digits than Python converts.
    """
    if len(data) > MAX_BYTES:
        what = f"larger than {MAX_BYTES:,} bytes, which no config.json is"
        raise SourceError(what, reason="too_large", where=where, hint="Is it the right file?")
    try:
        text = data.decode("utf-8-sig").strip()
        value = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, where))
    except UnicodeDecodeError as error:
        raise _not_json(f"not UTF-8 text (byte {error.start:,})", where, "Save it as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise _not_json(*_diagnosis(text, error, where)) from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:  # int() of over 4,300 digits
        raise ConfigError(f"a number that is out of all bounds: {error}", where=where) from None
    if not isinstance(value, dict):
        raise _not_json("JSON, but not an object", where, _STARTS, got=type(value).__name__)
    _check_depth(value, where)
    return value


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        # repr, because 1 == True == 1.0 while NaN != NaN
        if key in result and repr(result[key]) != repr(value):
            got = f"{result[key]!r:.60} and {value!r:.60}"
            what = f"the key {key!r:.80} stands there twice, with different values"
            raise ConfigError(what, where=where, got=got)
        result[key] = value
    return result


def _check_depth(value: dict[str, Any], where: str) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep(where)


def _too_deep(where: str) -> ConfigError:
    return ConfigError(f"nested more than {MAX_DEPTH} levels deep, which no config is", where=where)


def _diagnosis(text: str, error: json.JSONDecodeError, where: str) -> tuple[str, str, str]:
    if not text:
        return "empty", where, _STARTS
    if text.startswith("<"):
        return "a web page, not JSON", where, "Did a login page or captive portal of the network answer?"
    if text.startswith("version https://git-lfs"):
        return "a Git LFS pointer, not the file", where, "Run `git lfs pull` in that folder."
    return f"not JSON: {error}", where, _STARTS


def _not_json(what: str, where: str, hint: str, got: str | None = None) -> SourceError:
    return SourceError(what, reason="not_json", where=where, got=got, hint=hint)
