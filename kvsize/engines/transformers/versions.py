"""Releases of transformers: which ran, which models came when, and what their generate accepts.

history.py holds what changed in the caches themselves.

Each boundary was found by running both neighbouring releases on the same configs: validate/oracle_transformers.py,
measured rows in validate/truth/transformers-releases.jsonl. A release between two that ran counts as the older one's
kind up to the first release that ran with the new behaviour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsize.errors import UnsupportedError, UsageError

VERSION = "5.24.0"
OLDEST = (5, 0, 0)

Number = tuple[int, int, int]

# The releases that were run. Any other is modelled by its neighbours.
RAN = """
    5.0.0 5.1.0 5.2.0 5.3.0 5.4.0 5.5.4 5.6.2 5.7.0 5.8.1 5.9.0 5.10.4 5.11.0 5.12.1 5.13.1 5.14.1 5.15.1 5.16.1 5.17.0
    5.18.0 5.19.0 5.20.2 5.21.1 5.22.2 5.23.0 5.24.0
    """.split()

QUANTIZED_REFUSES: Number = (5, 14, 0)  # QuantizedCache refuses windows instead of storing them in full
FP8_CACHE: Number = (5, 21, 0)
PAGES_OF_256: Number = (5, 4, 0)  # continuous batching's default page; 32 before

# Models that came after the oldest release.
FIRST_RELEASE: dict[str, Number] = {
    "glm_moe_dsa": (5, 2, 0),
    "qwen3_5_text": (5, 2, 0),
    "qwen3_5_moe_text": (5, 2, 0),
    "olmo_hybrid": (5, 3, 0),
    "nemotron_h": (5, 3, 0),
    "gemma4_text": (5, 5, 0),
    "laguna": (5, 7, 0),
    "deepseek_v4": (5, 8, 0),
    "deepseek_v32": (5, 11, 0),
    "minicpm3": (5, 13, 0),
    "mimo_v2_flash": (5, 13, 0),
    "zaya": (5, 13, 0),
    "inkling_text": (5, 14, 0),
    "axk1": (5, 15, 0),
    "step3p5": (5, 16, 0),
    "kimi_linear": (5, 17, 0),
}


@dataclass(frozen=True, slots=True)
class Release:
    """One release, asked whether a behaviour has come yet."""

    number: Number

    @property
    def full_name(self) -> str:
        """Major, minor and patch."""
        return ".".join(map(str, self.number))

    def has(self, first: Number) -> bool:
        """Whether this release is the first with a behaviour, or a later one."""
        return self.number >= first

    @property
    def ran(self) -> bool:
        """Whether this very release was run."""
        return self.full_name in RAN

    @property
    def dynamic_full(self) -> str | None:
        """What generate makes of that name: a cache without windows, `dynamic`, or a refusal (None)."""
        if self.has((5, 15, 0)):
            return None
        return "dynamic" if (5, 12, 0) <= self.number < (5, 14, 0) else "dynamic_full"


def release(version: str) -> Release:
    """A release given as 5.23 or 5.23.0; without a patch, the one that ran.

    Raises:
        UsageError: it is no version.
        UnsupportedError: it is older than what was checked.
    """
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?\S{0,20}", version)
    if match is None:
        raise UsageError("an engine's version looks like 5.23 or 5.23.0", got=version[:40])
    ran = [name for name in RAN if name.startswith(f"{match[1]}.{match[2]}.")]
    patch = match[3] or (ran[0].rsplit(".", 1)[1] if ran else "0")
    number = (int(match[1]), int(match[2]), int(patch))
    if number < OLDEST:
        raise UnsupportedError(
            f"transformers {version} is older than the oldest release that was checked, 5.0",
            hint="Use --engine transformers@5.0, or say --probe with that release installed.",
        )
    return Release(number)
