"""What a budget holds: the longest context whose caches fit, as llama.cpp's own --fit would shorten it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from kvsize.engines import Pool

STEP = 256
MOST = 1 << 31  # n_ctx is an int32


def pool(budget: int, tokens: int, sequences: int, total: Callable[[int], int]) -> Pool | None:
    """The largest n_ctx that fits, in cells of all sequences; None where nothing fits, or any length does.

    `total` gives the bytes of an n_ctx, and never falls as it grows.
    """
    unit = STEP * sequences
    lengths = range(unit, MOST + 1, unit)
    fitting = bisect_right(lengths, budget, key=total)
    if fitting in (0, len(lengths)):
        return None
    cells = fitting * unit
    return Pool(
        num_blocks=cells // STEP,
        block_size=STEP,
        bytes_per_block=(total(cells + unit) - total(cells)) // sequences,
        tokens=cells,
        max_concurrency=cells / tokens,
        request_blocks=math.ceil(tokens / STEP),
        request_bytes=total(tokens * sequences) // sequences,
    )
