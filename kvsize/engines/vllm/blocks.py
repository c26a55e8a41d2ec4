"""The block size: what the attention kernels take, and what makes recurrent states and attention share a page.

vllm@0.33.0 platforms/interface.py update_block_size_for_backend, _align_hybrid_block_size,
_align_heterogeneous_kv_block_size; v1/attention/backends/*.py get_supported_kernel_block_sizes.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from kvsize.engines.vllm import models
from kvsize.engines.vllm.setup import Setup, indexed, latents
from kvsize.engines.vllm.specs import Cache
from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Geometry, Heads

KERNEL_BLOCK = 16
INDEXED_BLOCK, INDEXED_HEADS_BLOCK = 64, 128
MLA_HYBRID_ALIGNMENT = 128
FA4_FP8_HEAD, FA4_FP8_BLOCK = 512, 64  # flash_attn.py _get_sm90_fa4_fp8_kv_block_size


def with_blocks(caches: tuple[Cache, ...], geometry: Geometry, setup: Setup) -> tuple[Cache, ...]:
    """The caches with their block sizes; recurrent pages are filled up when pages are brought to one size.

    Raises:
        UnsupportedError: no kernel takes the --block-size.
    """
    block = _attention_block(caches, geometry, setup)
    of_states = block if setup.prefix_caching else setup.max_model_len
    return tuple(
        replace(cache, spec=replace(cache.spec, block_size=of_states if cache.spec.kind == "states" else block))
        for cache in caches
    )


def _attention_block(caches: tuple[Cache, ...], geometry: Geometry, setup: Setup) -> int:
    kernel = kernel_block(geometry, setup)
    block = setup.block_size or kernel
    grid = _sparse_block(geometry) or KERNEL_BLOCK  # Triton's kernels take what the other dense ones do not
    if block % grid:
        raise UnsupportedError(
            f"vLLM's attention kernels for this model take blocks of a multiple of {grid} tokens",
            got=f"--block-size {block}",
            hint=f"Leave it out, or use {grid}.",
        )
    states = max((cache.spec.state_bytes for cache in caches if cache.spec.kind == "states"), default=0)
    per_token = max((cache.spec.token_bytes for cache in caches if cache.spec.kind != "states"), default=0)
    if states and per_token:
        return _hybrid_block(block, kernel, states, per_token, caches, geometry, setup)
    if setup.kv.packed:  # boundary layers in the model's dtype: the packed page must cover one kernel block of them
        return max(block, 2 * KERNEL_BLOCK)
    return block


def kernel_block(geometry: Geometry, setup: Setup) -> int:
    """The smallest block of the attention kernels that vLLM chooses when the block size is left to it."""
    if sparse := _sparse_block(geometry):
        return sparse
    major, quantised = setup.device, setup.kv.name.startswith("fp8")
    if latents(geometry):
        return 32 if major == 10 else 64 if major == 9 and quantised else KERNEL_BLOCK
    entries = [s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    widest = max((entry.k_dim for entry in entries if isinstance(entry, Heads)), default=None)
    if major == 9 and setup.kv.name in ("fp8", "fp8_e4m3") and widest == FA4_FP8_HEAD:
        return FA4_FP8_BLOCK
    return KERNEL_BLOCK


def _sparse_block(geometry: Geometry) -> int | None:
    """The block of a sparse-attention kernel, which takes no smaller one."""
    if geometry.model_type in models.INDEXED_HEADS:
        return INDEXED_HEADS_BLOCK
    return INDEXED_BLOCK if indexed(geometry) else None


def _hybrid_block(
    block: int,
    kernel: int,
    states: int,
    per_token: int,
    caches: tuple[Cache, ...],
    geometry: Geometry,
    setup: Setup,
) -> int:
    """The smallest block whose attention page covers the states, on the kernels' grid; overrides --block-size."""
    grid = max(kernel, block) if setup.rules.align_to_block_size else kernel
    if latents(geometry) and setup.rules.mla_alignment:
        grid = max(grid, MLA_HYBRID_ALIGNMENT)
    if setup.prefix_caching and _gdn_checkpoints(caches):
        grid = lcm(grid, models.GDN_CHECKPOINT_TOKENS)
    needed = grid * -(-states // (grid * per_token))
    return max(block, kernel * -(-needed // kernel))


def _gdn_checkpoints(caches: tuple[Cache, ...]) -> bool:
    first = next(cache.spec for cache in caches if cache.spec.kind == "states")  # a model has one rule for its states
    return first.checkpoint and first.shape[0] == "gated_delta"
