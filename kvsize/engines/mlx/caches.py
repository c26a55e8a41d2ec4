"""How the caches of mlx-lm grow: call by call, in steps of 256, cut and rotated as the classes do it.

mlx-lm@0.32.2 mlx_lm/models/cache.py. generate.py generate_step feeds a prompt in calls of `step` tokens, its last token
alone, and each generated token alone. A request is taken as a prompt of all its tokens but one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsize.errors import UnsupportedError, UsageError

STEP = 256
MOST_CALLS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a buffer: while decoding, after a prompt of all tokens was read (but its last), and the one outgrown.

    The outgrown buffer lives beside the new one while it is copied.
    """

    held: int
    after_prefill: int
    outgrown: int = 0


def _padded(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


def _chunks(tokens: int, step: int) -> Iterator[int]:
    full, rest = divmod(tokens, step)
    if full > MOST_CALLS:
        raise UsageError(
            f"a prompt of {tokens:,} tokens in steps of {step:,} takes {full:,} calls, too many to follow",
            hint="Raise --prefill-step-size.",
        )
    yield from [step] * full
    if rest:
        yield rest


def growing(tokens: int, step: int, chunk: int | None = None) -> Cells:
    """KVCache; with `chunk` ChunkedKVCache, cut to the chunk in front of every call."""
    single = min(tokens, 2)  # the prompt's last token, and the generated one
    held, outgrown = _grow((*_chunks(tokens - single, step), *[1] * single), chunk)
    return Cells(held, _grow(_chunks(tokens - 1, step), chunk)[0] or held, outgrown)


def _grow(calls: Iterable[int], chunk: int | None) -> tuple[int, int]:
    valid = cells = outgrown = 0
    for size in calls:
        if chunk is not None and valid > chunk:
            valid = cells = chunk
        if valid + size > cells:
            outgrown = cells
            cells = (valid if valid % STEP else cells) + _padded(size)
        valid += size
    return cells, outgrown


def rotating(tokens: int, step: int, limit: int) -> Cells:
    """RotatingKVCache: a prompt's calls are kept whole behind limit - 1 older cells, single tokens rotate."""
    held = min(max(tokens - 2, 0) + STEP, limit)
    if tokens == 1:
        return Cells(held, held)
    last = (tokens - 2) % step + 1
    read = min(tokens - 1 - last, limit - 1) + last
    return Cells(held, read, read)


# -- quantised ---------------------------------------------------------------------------------------------------------

BITS = (2, 4, 8)
GROUPS = (32, 64, 128)


def quantized_bytes(width: int, bits: int, group: int, element_bytes: int) -> int:
    """Bytes of one vector: packed elements, and a scale and a bias in the activations' format for each group.

    Raises:
        UnsupportedError: the group does not divide the vector.
    """
    if width % group:
        raise UnsupportedError(
            f"mlx quantises in groups of {group}, which do not divide vectors of {width}",
            hint="Choose another --kv-group-size: " + ", ".join(str(size) for size in GROUPS) + ".",
        )
    return width * bits // 8 + 2 * (width // group) * element_bytes
