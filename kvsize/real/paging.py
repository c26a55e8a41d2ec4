"""Continuous batching of the installed transformers: its real pool, and the sectors that requests take out of it.

A PagedAttentionCache is one tensor; its allocators cut sectors of it into blocks and give them to requests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from typing import Any
from unittest import mock

from kvsize.errors import UnsupportedError
from kvsize.real.twin import libraries

NO_LIMIT = 1 << 62


def build_pool(model: Any, num_blocks: int, batch_tokens: int) -> Any:
    """The PagedAttentionCache that continuous batching makes for this model. transformers@5.23.0 continuous_api.py

    The meta device has no memory that could be too small.
    """
    libraries()
    from transformers.generation.continuous_batching import cache
    from transformers.generation.continuous_batching.distributed import DistributedHelper

    with ExitStack() as stack:
        if model.device.type == "meta":
            handler = cache.PagedAttentionMemoryHandler
            stack.enter_context(mock.patch.object(handler, "get_available_memory", return_value=NO_LIMIT))
        return cache.PagedAttentionCache(
            config=model.config.get_text_config(),
            continuous_batching_config=settings(num_blocks, batch_tokens),
            device=model.device,
            distributed_helper=DistributedHelper(None, None),
            dtype=model.dtype,
        )


def settings(num_blocks: int, batch_tokens: int) -> Any:
    """A pool of so many whole-model blocks; requests share no blocks, and nothing is captured or doubled."""
    _, transformers = libraries()
    return transformers.ContinuousBatchingConfig(
        num_blocks=num_blocks,
        max_batch_tokens=batch_tokens,
        max_memory_percent=0.9,
        allow_block_sharing=False,
        use_async_batching=False,
        use_cuda_graph=False,
    )


def admit(pool: Any, sequences: int, plan: Sequence[int]) -> None:
    """Give each sequence room for plan[0] tokens, then for each other entry.

    Raises:
        UnsupportedError: the pool has no room for them.
    """
    from transformers.generation.continuous_batching.requests import RequestState

    states = [RequestState(request_id=str(number), initial_tokens=[1] * sum(plan)) for number in range(sequences)]
    for tokens in plan:
        for state in states:
            if not pool.can_store_request_tokens(state, tokens):
                raise UnsupportedError(f"a pool of {pool.num_sectors:,} sectors has no room for these requests")
            state.position_offset += tokens


def served_bytes(model: Any, sequences: int, prompt: int, new_tokens: int, num_blocks: int) -> int:
    """Bytes of the most sectors that a real generate_batch takes for equal requests, all of them in one batch.

    Raises:
        UnsupportedError: a request failed.
        MemoryError: the step's masks and the pool do not fit into this machine.
    """
    _, transformers = libraries()
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    taken: list[int] = []
    store = PagedAttentionCache.can_store_request_tokens

    def watched(pool: Any, *request: Any, **options: Any) -> bool:
        stored = bool(store(pool, *request, **options))
        taken.append(taken_bytes(pool))
        return stored

    chosen = transformers.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, eos_token_id=-1)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    with mock.patch.object(PagedAttentionCache, "can_store_request_tokens", watched), redirect_stdout(StringIO()):
        answers = model.generate_batch(
            [[1] * prompt] * sequences,
            generation_config=chosen,
            continuous_batching_config=settings(num_blocks, sequences * prompt),
            progress_bar=False,
            warmup=False,
        )
    errors = [str(answer.error) for answer in answers.values() if answer.error]
    if errors and "available memory" in errors[0]:
        raise MemoryError(errors[0])
    if errors or len(answers) < sequences:
        raise UnsupportedError(f"continuous batching does not run it: {errors[0] if errors else 'it stopped'}")
    return max(taken)


def taken_bytes(pool: Any) -> int:
    """Bytes of the sectors that requests have taken."""
    return int((pool.num_sectors - pool.pool.num_free_sectors) * pool.bytes_per_sector)
