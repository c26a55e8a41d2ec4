"""kvsize: how much memory will the KV cache take, and will it fit?

import kvsize

geometry = kvsize.load("meta-llama/Llama-3.1-8B")
kvsize.size(geometry, 32_768).total_bytes        # 4294967296
kvsize.size(geometry, 32_768, sequences=4, cache="static").total_bytes
kvsize.fit("meta-llama/Llama-3.1-8B", "h100", 32_768).verdict  # fits
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsize.api import CacheSize, Geometry, KvsizeError, Workload, fit, load, size

__version__ = "0.1.0"
__all__ = ["CacheSize", "Geometry", "KvsizeError", "Workload", "__version__", "fit", "load", "size"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `kvsize --version` costs nothing."""
    if name in __all__:
        return getattr(import_module("kvsize.api"), name)
    raise AttributeError(f"module 'kvsize' has no attribute {name!r}")
