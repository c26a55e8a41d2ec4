"""vLLM's releases: what changed in its cache planning, as ranges.

Read from the sources of 0.8.5, 0.9.2, 0.11.2, 0.13.0, 0.16.0, 0.18.1, 0.22.0 to 0.29.0, 0.31.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvsize.errors import UnsupportedError, UsageError

VERSION = "0.33.0"
OLDEST = (0, 8, 5)

Number: TypeAlias = tuple[int, int, int]
Printed: TypeAlias = Literal["blocks", "groups", "concurrency"]
StateBlocks: TypeAlias = Literal["one", "by length", "by mode"]

_NUMBER = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.+-]?[a-z]\w*(?:[.+-]\w+)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Release:
    """One release's rules.

    `group_ratio` (as a fraction): below it, groups take the larger of two layer counts. `printed`: how the log line's
    tokens come about. `state_blocks`: how many blocks a recurrent group takes. `mamba2_checkpoint`, `gdn_checkpoint`:
    one more state block under prefix caching. `usable_blocks`: the start-up check leaves out the null block.
    """

    number: Number
    hybrid_manager: bool
    group_ratio: tuple[int, int] | None
    printed: Printed
    batches_in_flight: bool
    async_scheduling: bool
    usable_blocks: bool
    hybrid_prefix_caching: bool
    state_blocks: StateBlocks
    mamba2_checkpoint: bool
    gdn_checkpoint: bool
    align_to_block_size: bool
    mla_alignment: bool
    large_gpu_batch: bool

    @property
    def name(self) -> str:
        """The number as releases are named."""
        return ".".join(map(str, self.number))


def release(text: str) -> Release:
    """The rules of that release; those of the newest modelled one for anything newer.

    Raises:
        UsageError: no release number.
        UnsupportedError: older than 0.8.5.
    """
    number = parse(text)
    if number < OLDEST:
        raise UnsupportedError(f"vLLM {text} is older than the oldest modelled release", hint="Modelled: 0.8.5 and up.")
    return Release(
        number=number,
        hybrid_manager=number >= (0, 9, 0),
        group_ratio=None if number < (0, 12, 0) else (5, 4) if number < (0, 18, 0) else (3, 2),
        printed="blocks" if number < (0, 9, 0) else "groups" if number < (0, 20, 1) else "concurrency",
        batches_in_flight=number >= (0, 26, 0),
        async_scheduling=number >= (0, 14, 0),
        usable_blocks=number >= (0, 29, 0),
        hybrid_prefix_caching=number >= (0, 26, 0),
        state_blocks="one" if number < (0, 11, 0) else "by length" if number < (0, 16, 0) else "by mode",
        mamba2_checkpoint=number >= (0, 32, 0),
        gdn_checkpoint=number >= (0, 33, 0),
        align_to_block_size=number >= (0, 22, 0),
        mla_alignment=number >= (0, 27, 0),
        large_gpu_batch=number >= (0, 28, 0),
    )


def parse(text: str) -> Number:
    """`0.33.0`, `v0.20.1`, `0.19` or `0.11.0rc2` as numbers.

    Raises:
        UsageError: it is none of these.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError("--engine vllm@VERSION takes a release such as 0.33.0", got=text[:40])
    return int(match[1]), int(match[2]), int(match[3] or 0)


def note(rules: Release) -> tuple[str, ...]:
    """What a reader should know about the release that the figures are for."""
    newest = parse(VERSION)
    if rules.number > newest:
        return (f"vLLM {rules.name} is newer than the newest modelled release: the rules of {VERSION} are used",)
    if rules.number < newest:
        return (f"vLLM {rules.name}: rules read from its sources, not run; whether it knows this model is not checked",)
    return ()
