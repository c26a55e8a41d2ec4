"""Safetensors files made by hand, so that they can lie."""

from __future__ import annotations

import json
from typing import Any


def encoded(entries: dict[str, Any] | bytes, data: int | None = None) -> bytes:
    """A file with that header; `data` bytes follow it, as many as the entries say where not given."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    if data is None and isinstance(entries, dict):
        data = max((e["data_offsets"][1] for name, e in entries.items() if name != "__metadata__"), default=0)
    return len(text).to_bytes(8, "little") + text + bytes(data or 0)


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
