"""GGUF architectures that attend with plain heads, and those that keep nothing."""

from __future__ import annotations

from kvsize.architectures.common import share_last
from kvsize.architectures.gguf.metadata import Adapter, Metadata, Shape
from kvsize.architectures.gguf.windows import Windows, is_window
from kvsize.geometry import Attention, Chunked, Encoder, Full, Heads, Layer, Sliding, Span

_KINDS = {Sliding: "sliding_attention", Chunked: "chunked_attention"}


def _attention(sizes: Shape, index: int, span: Span) -> Layer:
    """One layer of plain heads; without heads it keeps nothing (DeciLM)."""
    if not sizes.kv_heads[index]:
        return Layer(kind="no_attention")
    entry = sizes.entry(index, window=is_window(span))
    return Layer((Attention(entry, span),), kind=_KINDS.get(type(span), "full_attention"))


def plain(windows: Windows | None = None) -> Adapter:
    """Attention in every layer; without `windows` the file's keys for them are not read."""

    def adapt(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
        spans = windows.spans(cfg, sizes) if windows else (Full(),) * sizes.layers
        return tuple(_attention(sizes, index, span) for index, span in enumerate(spans))

    return adapt


def exaone4(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """EXAONE 4: windows in the model of 64 layers (32B) only."""
    windows = Windows(4, default=4096) if sizes.layers - sizes.drafts == 64 else None
    return plain(windows)(cfg, sizes)


def gemma3n(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Gemma 3n: 20 layers keep keys and values, whatever shared_kv_layers says."""
    return share_last(plain(Windows(5))(cfg, sizes), max(sizes.layers - 20, 0))


def gemma4(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Gemma 4: the last shared_kv_layers keep nothing of their own."""
    shared = cfg.maybe("attention.shared_kv_layers", at_least=0) or 0
    if shared >= sizes.layers:
        raise cfg.invalid("attention.shared_kv_layers", f"below the {sizes.layers} layers", shared)
    return share_last(plain(Windows(None))(cfg, sizes), shared)


def t5(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """T5: block_count self-attention caches; the decoder also reads the encoder."""
    decoder = cfg.maybe("decoder_block_count")
    if decoder is not None and decoder != sizes.layers:
        cfg.notes.append(f"llama.cpp keeps {sizes.layers} layers (block_count) for a decoder of {decoder}")
    own = plain()(cfg, sizes)
    return tuple(Layer((*one.stores, Attention(sizes.entry(i), Encoder()))) for i, one in enumerate(own))


def granite_switch(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Granite Switch: behind the layers, one head that keeps which adapter each token chose."""
    router = Layer((Attention(Heads(1, sizes.k, sizes.v)),), kind="router")
    return (*plain()(cfg, sizes), router)


def nanbeige(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Nanbeige: the stack runs num_loops times, with a cache for each pass."""
    loops = cfg.maybe("num_loops") or 1
    if loops * sizes.layers > 512:
        raise cfg.invalid("num_loops", "at most 512 layers in all", loops)
    return plain()(cfg, sizes) * loops


def nothing(_cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Encoders and diffusion models: every token is computed anew. llama-model.cpp create_memory"""
    return (Layer(kind="no_cache"),) * sizes.layers


def shares_everything(_cfg: Metadata, _sizes: Shape) -> tuple[Layer, ...]:
    """Gemma 4's assistant reads the cache of the model it drafts for."""
    return ()
