"""Continuous batching's paged cache: pages, blocks and sectors of one flat tensor.

transformers@5.23.0 generation/continuous_batching/cache.py. Its pages are sized by config.num_key_value_heads and
config.head_dim alone, whatever the model caches: MLA, Falcon and shared layers are charged more than they need.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import lcm

from kvsize.engines import Group, LayerBytes, Overhead, Pool
from kvsize.errors import UnsupportedError
from kvsize.formats import Format
from kvsize.geometry import Attention, Encoder, Geometry, Heads, Latent, Sliding

DEFAULT_PAGE = 256
ALIGNMENT = 128
TRASH_SECTORS = 2
INT32, INT64, FLOAT32 = 4, 8, 4
ACCEPTED = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Allocator:
    """The layers of one attention type: they share blocks, one page a layer in each."""

    kind: str
    layers: tuple[int, ...]
    page_bytes: int
    window: int | None

    @property
    def block_bytes(self) -> int:
        """One page of every layer."""
        return self.page_bytes * len(self.layers)

    def blocks(self, tokens: int, page: int) -> int:
        """Blocks that one request of this many tokens takes."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return -(-kept // page)


@dataclass(frozen=True, slots=True)
class Paged:
    """A model's allocators, and the sector that all their blocks divide."""

    page: int
    allocators: tuple[Allocator, ...]

    @property
    def sector_bytes(self) -> int:
        """The least common multiple of all blocks, aligned."""
        return lcm(*(allocator.block_bytes for allocator in self.allocators), ALIGNMENT)

    def sectors(self, allocator: Allocator, tokens: int, requests: int) -> int:
        """Sectors of the requests' blocks of one type, which share them."""
        blocks = allocator.blocks(tokens, self.page) * requests
        return -(-blocks // (self.sector_bytes // allocator.block_bytes))

    def request_bytes(self, tokens: int, requests: int = 1) -> int:
        """Bytes that so many equal requests take out of the pool together, whole sectors."""
        return sum(self.sectors(allocator, tokens, requests) for allocator in self.allocators) * self.sector_bytes

    def requests(self, tokens: int, num_sectors: int) -> int:
        """The most equal requests that so many sectors hold."""
        held = num_sectors * self.sector_bytes
        return bisect_right(range(held), held, key=lambda count: self.request_bytes(tokens, count)) - 1

    def num_sectors(self, num_blocks: int) -> int:
        """`num_blocks` whole-model blocks, as sectors."""
        whole = sum(allocator.block_bytes for allocator in self.allocators)
        return -(-num_blocks * whole // self.sector_bytes)


def plan(geometry: Geometry, unit: Format, page: int) -> Paged:
    """Group the layers by attention type, as continuous batching does.

    Raises:
        UnsupportedError: a layer is of a type that it does not know, or reads an encoder, which it does not feed.
    """
    kinds: dict[str, list[int]] = {}
    for index, layer in enumerate(geometry.layers):
        if any(isinstance(store, Attention) and isinstance(store.span, Encoder) for store in layer.stores):
            raise UnsupportedError(
                f"continuous batching feeds no encoder; layer {index} reads one", hint="Use --cache dynamic or static."
            )
        if layer.kind not in ACCEPTED or not layer.stores:
            raise UnsupportedError(
                f"continuous batching knows only full and sliding attention; layer {index} is {layer.kind}",
                hint="Use --cache dynamic.",
            )
        kinds.setdefault(layer.kind, []).append(index)
    heads, width = _plain_heads(geometry)
    if not width:
        raise UnsupportedError("continuous batching takes head_dim from qk_rope_head_dim, which is 0 in this config")
    page_bytes = 2 * unit.bytes(heads * width) * page
    allocators = tuple(
        Allocator(kind, tuple(indices), page_bytes, _window(geometry, indices[0])) for kind, indices in kinds.items()
    )
    return Paged(page, allocators)


def _window(geometry: Geometry, index: int) -> int | None:
    if geometry.layers[index].kind != "sliding_attention":
        return None
    spans = [store.span for store in geometry.layers[index].stores if isinstance(store, Attention)]
    return next((span.window for span in spans if isinstance(span, Sliding)), None)


def _plain_heads(geometry: Geometry) -> tuple[int, int]:
    """config.num_key_value_heads (or num_attention_heads) and config.head_dim, as its helpers find them."""
    entries = [
        (layer.kind, store.entry) for layer in geometry.layers for store in layer.stores if isinstance(store, Attention)
    ]
    if not entries:
        raise UnsupportedError(f"{geometry.model_type} caches nothing that could be paged", hint="Use --cache dynamic.")
    entry = next((entry for kind, entry in entries if kind == "full_attention"), entries[0][1])
    shapes = {(e.count, e.k_dim) for _, e in entries if isinstance(e, Heads)}
    if isinstance(entry, Latent):
        width = entry.expanded.k_dim if geometry.model_type == "mistral4" else entry.rope_dim
        return entry.expanded.count, width
    if not isinstance(entry, Heads) or (len(shapes) > 1 and geometry.model_type != "mimo_v2_flash"):
        raise UnsupportedError(
            "continuous batching reads one head_dim and one head count from the config; this model's layers differ",
            hint="Use --cache dynamic.",
        )
    queries = geometry.num_attention_heads if geometry.model_type == "falcon" else None
    return queries or entry.count, entry.k_dim


@dataclass(frozen=True, slots=True)
class Memory:
    """What the pool is sized by when `num_blocks` is not given. cache.py PagedAttentionMemoryHandler

    `free_bytes` is what the device has left. `flash` reads K and V as they are; otherwise they are repeated for the
    query heads and a mask is built. `batch_tokens` are those of one step.
    """

    free_bytes: int
    flash: bool
    batch_tokens: int
    percent: int = 90
    logit_rows: int = 1024


def sectors_for(paged: Paged, geometry: Geometry, unit: Format, memory: Memory) -> int:
    """Sectors that the free memory pays for, beside the step's activations, masks and logits.

    Raises:
        UnsupportedError: the config does not name hidden_size, vocab_size and heads, or nothing is left.
    """
    hidden, vocab, query_heads = geometry.hidden_size, geometry.vocab_size, geometry.num_attention_heads
    if hidden is None or vocab is None or query_heads is None:
        raise UnsupportedError("sizing the pool needs hidden_size, vocab_size and num_attention_heads in the config")
    heads, width = _plain_heads(geometry)
    at_peak = 2 * heads if memory.flash else 2 * query_heads + heads
    groups = len(paged.allocators)
    masks = 0 if memory.flash else 1 + any(allocator.window for allocator in paged.allocators)
    per_sector_tokens = max(paged.sector_bytes // a.block_bytes * paged.page for a in paged.allocators)

    step = unit.bytes(hidden + (query_heads + 2 * heads + at_peak) * width) + 8 * INT32 + 2 * groups * INT64
    fixed = TRASH_SECTORS * paged.sector_bytes + memory.logit_rows * (unit.bytes(hidden) + vocab * FLOAT32)
    per_sector = paged.sector_bytes + per_sector_tokens * (unit.bytes(at_peak * width) + groups * INT64)

    def mask_bytes(sectors: int) -> int:
        return masks * unit.bytes(memory.batch_tokens * (sectors * per_sector_tokens + memory.batch_tokens))

    usable = memory.free_bytes * memory.percent // 100
    sectors = (usable - fixed - memory.batch_tokens * step) // per_sector
    slope = mask_bytes(sectors + 1) - mask_bytes(sectors)
    sectors -= -(-mask_bytes(sectors) // (per_sector + slope))
    if sectors <= 0:
        raise UnsupportedError(f"{memory.free_bytes:,} free bytes hold no sector of {paged.sector_bytes:,}")
    return sectors


def layer_bytes(paged: Paged, geometry: Geometry, tokens: int, sequences: int) -> list[LayerBytes]:
    """Each layer's pages of all requests; the rest of their sectors is padding()."""
    sizes = [LayerBytes()] * len(geometry.layers)
    for allocator in paged.allocators:
        size = allocator.blocks(tokens, paged.page) * allocator.page_bytes * sequences
        for index in allocator.layers:
            sizes[index] = LayerBytes(size, size, size)
    return sizes


def padding(paged: Paged, tokens: int, sequences: int) -> Overhead:
    """What whole sectors add to the pages."""
    pages = sum(allocator.blocks(tokens, paged.page) * allocator.block_bytes for allocator in paged.allocators)
    return Overhead("sectors that blocks do not fill", paged.request_bytes(tokens, sequences) - pages * sequences)


def note(paged: Paged) -> str:
    """What a pool holds and no request gets."""
    spare = TRASH_SECTORS * paged.sector_bytes
    return f"beside them a pool keeps {TRASH_SECTORS} sectors that no request gets: {spare:,} bytes"


def pool(paged: Paged, tokens: int, num_sectors: int) -> Pool:
    """What a pool of that many sectors holds; requests share sectors, so it may hold more than a quotient says."""
    most = paged.requests(tokens, num_sectors)
    request = paged.request_bytes(tokens) // paged.sector_bytes
    widest = max((paged.sector_bytes // allocator.block_bytes) * paged.page for allocator in paged.allocators)
    groups = tuple(
        Group(a.kind, len(a.layers), paged.page, a.page_bytes, a.blocks(tokens, paged.page)) for a in paged.allocators
    )
    return Pool(
        num_blocks=num_sectors,
        block_size=widest,
        bytes_per_block=paged.sector_bytes,
        tokens=most * tokens,
        max_concurrency=max(float(most), num_sectors / request),
        request_blocks=request,
        request_bytes=paged.request_bytes(tokens),
        groups=groups,
    )
