"""Documents as text: the only place that knows units, columns and colour."""

from __future__ import annotations

import json
from typing import Any

from kvsize.report import to_dict


def render(document: Any, output: str) -> str:
    """A document in the asked format, ending in a newline."""
    if output == "json":
        return json.dumps(to_dict(document), ensure_ascii=False) + "\n"
    from kvsize.tables import table

    return table(document)
