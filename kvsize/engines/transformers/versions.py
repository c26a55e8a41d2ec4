"""What changed between releases of transformers, as ranges with evidence.

Each boundary was found by running neighbouring releases on the same configs (validate/oracle_transformers.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsize.errors import UnsupportedError, UsageError

VERSION = "5.23.0"
OLDEST = (5, 13)


@dataclass(frozen=True, slots=True)
class Release:
    """How one release sizes its caches.

    `compressed_latent`: MLA models cache the latent, not every head's K and V. `float32_states`: recurrent states are
    kept in float32, not in the activations' format. `dynamic_full`: generate accepts that name.
    """

    version: str
    compressed_latent: bool = True
    float32_states: bool = True
    dynamic_full: bool = False


def release(version: str) -> Release:
    """The rules of a release, given as 5, 5.23 or 5.23.0.

    Raises:
        UsageError: it is no version.
        UnsupportedError: it is older than what was checked.
    """
    match = re.fullmatch(r"(\d{1,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?\S{0,20}", version)
    if match is None:
        raise UsageError("an engine's version looks like 5.23 or 5.23.0", got=version[:40])
    numbers = tuple(int(part or 0) for part in match.groups())
    if numbers[:2] < OLDEST:
        raise UnsupportedError(
            f"transformers {version} is older than the oldest release that was checked, {OLDEST[0]}.{OLDEST[1]}",
            hint="Use --engine transformers@5.13.1, or say --probe with that release installed.",
        )
    old = numbers[:2] < (5, 14)
    return Release(version, compressed_latent=not old, float32_states=not old, dynamic_full=old)
