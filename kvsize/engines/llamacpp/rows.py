"""What a layer allocates: rows of K and V for each cell, and states for each sequence.

llama.cpp@b11434 src/llama-kv-cache.cpp, -iswa, -dsa, -msa, -dsv4, src/llama-memory-recurrent.cpp
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from kvsize.engines.llamacpp import archs
from kvsize.engines.llamacpp.context import Context, pad
from kvsize.errors import UnsupportedError
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Sliding,
    State,
    Store,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """One cache of a layer: elements of K and of V in a cell.

    `window`: 0 keeps everything. `rate`: one cell for so many tokens. `own`: a stream for each sequence, whatever
    kv_unified says.
    """

    k: int
    v: int
    window: int = 0
    rate: int = 1
    own: bool = False

    def cells(self, context: Context, *, swa_full: bool) -> int:
        """Cells in all streams."""
        streams = context.sequences if self.own else context.streams
        if self.rate > 1:
            return pad(-(-context.per_stream // self.rate), 256) * streams
        if not self.window or swa_full:
            return context.per_stream * streams
        return context.window_cells(self.window, shared=context.unified and not self.own) * streams


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer allocates. `state` and `compressor` are float32 elements of one sequence; the log leaves out the
    latter."""

    rows: tuple[Rows, ...] = ()
    state: int = 0
    compressor: int = 0

    def __add__(self, other: Kept) -> Kept:
        return Kept((*self.rows, *other.rows), self.state + other.state, self.compressor + other.compressor)


@dataclass(frozen=True, slots=True)
class Reading:
    """One architecture as one build reads it.

    `widest_v`: what V is padded to without flash attention (0: not). `extra_window`: by how much transformers counts
    a window wider. `inner`: channels of Mamba's states, where the converter takes them from another key (0: not).
    """

    arch: str
    mla_with_v: bool
    widest_v: int
    index_v: int
    extra_window: int
    inner: int


def is_latent(geometry: Geometry, arch: str) -> bool:
    """Whether llama.cpp runs this model as MLA, K only."""
    if arch in archs.EXPANDED:
        return False
    stores = (store for layer in geometry.layers for store in layer.stores)
    return any(isinstance(store, Attention) and isinstance(store.entry, Latent) for store in stores)


def reading(geometry: Geometry, arch: str, *, old: bool, flash: bool) -> Reading:
    """How this model's layers turn into rows."""
    heads = [entry for layer in (*geometry.layers, *geometry.drafts) for entry in _heads(layer, arch)]
    pads = not flash and arch not in archs.NO_CACHE and arch != "deepseek4" and not is_latent(geometry, arch)
    widest = max((entry.count * entry.v_dim for entry in heads), default=0)
    # transformers counts MiMo-V2's window with the current token, and the converter writes it without
    stated = dict(geometry.stated)
    extra = int(arch == "mimo2" and "sliding_window_size" in stated)
    # conversion/mamba.py takes intermediate_size, transformers expand x hidden_size: Falcon-Mamba's file says 16 x
    inner = stated.get("intermediate_size", 0) if arch == "mamba" else 0
    return Reading(arch, old, widest if pads else 0, max((entry.v_dim for entry in heads), default=0), extra, inner)


def _heads(layer: Layer, arch: str) -> list[Heads]:
    entries = [store.entry for store in layer.stores if isinstance(store, Attention)]
    if arch in archs.EXPANDED:
        entries = [entry.expanded if isinstance(entry, Latent) else entry for entry in entries]
    return [entry for entry in entries if isinstance(entry, Heads)]


def kept(geometry: Geometry, how: Reading) -> tuple[Kept, ...]:
    """What each hidden layer allocates."""
    if how.arch in archs.NO_CACHE:
        return (Kept(),) * len(geometry.layers)
    owners = archs.FIXED_OWNERS.get(how.arch)
    shared = [layer.shares is not None if owners is None else i >= owners for i, layer in enumerate(geometry.layers)]
    return tuple(_layer(layer, how, shares=is_shared) for layer, is_shared in zip(geometry.layers, shared, strict=True))


def drafts(geometry: Geometry, how: Reading) -> tuple[Kept, ...]:
    """What layers for drafting take in the model's own cache, where they are in it at all."""
    if how.arch not in archs.DRAFTS_INSIDE:
        return ()
    return alone(geometry, how)


def alone(geometry: Geometry, how: Reading) -> tuple[Kept, ...]:
    """What the drafting layers take in a context of their own."""
    return tuple(_layer(layer, how, shares=False) for layer in geometry.drafts)


def _layer(layer: Layer, how: Reading, *, shares: bool) -> Kept:
    # llama.cpp has no sharing for Hunyuan's neighbours: what the layer reads it also keeps
    if shares and how.arch in ("gemma3n", "gemma4"):
        return Kept()
    total = Kept()
    for store in layer.stores:
        total += _store(store, how)
    if not layer.stores and how.arch not in archs.STATEFUL and how.widest_v:
        return Kept((Rows(0, how.widest_v),))  # DeciLM: no K, and V as wide as any
    return total


def _store(store: Store, how: Reading) -> Kept:
    match store:
        case Attention():
            return _attention(store, how)
        case Recurrent():
            return Kept(state=sum(_state(_resized(s, how), store, i) for i, s in enumerate(store.states)))
        case Compressed():
            return _compressed(store)
        case _ as never:
            assert_never(never)


def _attention(store: Attention, how: Reading) -> Kept:
    if isinstance(store.span, Encoder) or store.format == "int64":
        return Kept()  # T5's cross attention is computed anew; Qwen4's positions are cells of their own
    window = _window(store, how)
    if how.arch == "deepseek4":
        return Kept((Rows(store.entry.elements // 2, 0, window, own=True),))
    return Kept((replace(_entry(store.entry, how), window=window),))


def _window(store: Attention, how: Reading) -> int:
    if how.arch not in archs.WINDOWED:
        return 0
    match store.span:
        case Sliding(window=size) | Chunked(size=size):
            return archs.FIXED_WINDOW.get(how.arch, max(size - how.extra_window, 1))
        case _:
            return 0


def _entry(entry: Heads | Latent | IndexKey, how: Reading) -> Rows:
    match entry:
        case Heads(count=count, k_dim=k, v_dim=v):
            return Rows(count * k, how.widest_v or count * v)
        case Latent(expanded=whole) if how.arch in archs.EXPANDED:
            return _entry(whole, how)
        case Latent(rank=rank):
            return Rows(entry.elements, rank if how.mla_with_v else 0)
        case IndexKey(dim=dim):
            return _index(dim, how)
        case _ as never:
            assert_never(never)


def _index(dim: int, how: Reading) -> Rows:
    """An indexer's key; MiniMax-M3's has a V that nothing reads, and pooled ones stand beside what they pool."""
    match how.arch:
        case "minimax-m3":
            return Rows(dim, how.index_v)
        case "glm5-next":
            return Rows(3 * (dim // 2), 0)  # key, gate and pooled key; the model's own code packs 2 d + 1
        case "qwen4exp":
            return Rows(2 * dim, 0)
        case _:
            return Rows(dim, 0)


def _resized(state: State, how: Reading) -> State:
    return replace(state, shape=(how.inner, *state.shape[1:])) if how.inner else state


def _state(state: State, store: Recurrent, index: int) -> int:
    """Elements of one state; of a convolution the oldest column is not needed. llama-hparams.cpp n_embd_r, n_embd_s"""
    if state.format == "int64":
        return 0  # Qwen4's n-gram tokens
    whole = store.kind == "rwkv" or (store.kind == "gated_delta" and index > 1)  # token shift; Qwen4's n-gram columns
    if state.role == "recurrent" or whole:
        return state.elements
    return state.elements // state.shape[-1] * (state.shape[-1] - 1)


def _compressed(store: Compressed) -> Kept:
    """DeepSeek-V4: the window, the compressed entries with their index, and what the compressors carry."""
    raw = Rows(store.dim, 0, store.window, own=True)
    entries = Rows(store.dim, 0, rate=store.rate, own=True)
    if not store.overlap:
        return Kept((raw, entries), compressor=2 * store.dim * store.rate)
    index = Rows(store.index_dim, 0, rate=store.rate, own=True)
    return Kept((raw, entries, index), compressor=2 * 2 * (store.dim + store.index_dim) * 2 * store.rate)


def check_stores(layers: Sequence[Layer], arch: str) -> None:
    """Refuse what llama.cpp has no place for.

    Raises:
        UnsupportedError: cross attention to an image or an encoder, but for T5's.
    """
    spans = [store.span for layer in layers for store in layer.stores if isinstance(store, Attention)]
    if arch != "t5" and any(isinstance(span, Encoder) for span in spans):
        raise UnsupportedError(f"llama.cpp keeps no cross attention for {arch}", hint="Try --engine transformers.")
