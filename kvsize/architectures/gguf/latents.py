"""GGUF architectures that keep latents, index keys or compressed entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsize.architectures.gguf.attention import plain
from kvsize.architectures.gguf.metadata import Adapter, Metadata, Shape
from kvsize.architectures.gguf.windows import Windows, is_window
from kvsize.architectures.latent import indexed_layer
from kvsize.geometry import Attention, Compressed, Heads, IndexKey, Latent, Layer, Sliding


def _latent(cfg: Metadata, sizes: Shape, width: int, tail: str = "") -> Latent:
    """One latent of `width`, the keys of windows ending in `tail`. head_count_kv is 1 in such files."""
    rank = cfg.need(f"attention.kv_lora_rank{tail}")
    if width < rank:
        raise cfg.invalid(f"attention.key_length{tail}", f"at least kv_lora_rank, {rank}", width)
    k, v = cfg.need(f"attention.key_length_mla{tail}"), cfg.need(f"attention.value_length_mla{tail}")
    return Latent(rank, width - rank, Heads(max(sizes.heads), k, v))


def _full_latent(cfg: Metadata, sizes: Shape) -> Latent:
    if any(count not in (0, 1) for count in sizes.kv_heads):
        raise cfg.invalid("attention.head_count_kv", "1 beside key_length_mla", max(sizes.kv_heads))
    return _latent(cfg, sizes, sizes.k)


def mla_or_heads(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """DeepSeek-V2 and V3; files from before MLA hold no key_length_mla, and cache the heads in full."""
    if not cfg.maybe("attention.key_length_mla", at_least=0):
        return plain()(cfg, sizes)
    return (Layer((Attention(_full_latent(cfg, sizes)),)),) * sizes.layers


def indexed(default: Callable[[Metadata, int], Sequence[bool]], *, packed: bool = False) -> Adapter:
    """A latent, and an index key where the layer has an indexer: listed, else by `default`.

    `packed`: an entry holds key, gate and a validity bit, as GLM-5 next's own code stores it.
    """

    def adapt(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
        entry = _full_latent(cfg, sizes)
        width = cfg.need("attention.indexer.key_length")
        dim = 2 * width + 1 if packed else width
        own = cfg.marks("attention.indexer.types", sizes.layers) or default(cfg, sizes.layers)
        last = sizes.layers - sizes.drafts
        return tuple(indexed_layer(entry, dim if has and i < last else None) for i, has in enumerate(own))

    return adapt


def every_layer(_cfg: Metadata, count: int) -> Sequence[bool]:
    """Each layer has an indexer of its own."""
    return (True,) * count


def _none(_cfg: Metadata, count: int) -> Sequence[bool]:
    return (False,) * count


def glm_indexers(cfg: Metadata, count: int) -> Sequence[bool]:
    """GLM-5 has one in each layer; GLM-5.2 (told by its context) in 0, 1, 2 and each fourth after that."""
    if cfg.need("context_length") < 1 << 20:
        return every_layer(cfg, count)
    return [max(index - 2, 0) % 4 == 0 for index in range(count)]


def hy_v4(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Hunyuan 4: without indexer.top_k a plain latent."""
    return (indexed(_none) if cfg.maybe("attention.indexer.top_k", at_least=0) else mla_or_heads)(cfg, sizes)


def dots3_note(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """dots.note: latents of their own in the windows, indexers in the full layers."""
    full = indexed(_none)(cfg, sizes)
    entry = _latent(cfg, sizes, sizes.k_swa, "_swa")
    spans = Windows(None).spans(cfg, sizes)
    return tuple(
        Layer((Attention(entry, span),), kind="sliding_attention") if is_window(span) else layer
        for layer, span in zip(full, spans, strict=True)
    )


def minimax_m3(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """MiniMax-M3: an index key from leading_dense_block_count on."""
    dense = cfg.maybe("leading_dense_block_count", at_least=0) or 0
    index = Attention(IndexKey(cfg.need("attention.indexer.key_length")))
    return tuple(
        layer if i < dense else Layer((*layer.stores, index), kind="minimax_m3_sparse")
        for i, layer in enumerate(plain()(cfg, sizes))
    )


def deepseek4(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """DeepSeek-V4: windows of one shared head, and compressed entries on layers of ratio 4 and 128."""
    ratios = cfg.whole_numbers("attention.compress_ratios")
    if ratios is None or len(ratios) < sizes.layers:
        raise cfg.invalid("attention.compress_ratios", f"a list of {sizes.layers}", len(ratios or ()))
    window, index_dim = cfg.need("attention.sliding_window"), cfg.need("attention.indexer.key_length")
    sliding = Layer((Attention(Heads(1, sizes.k, sizes.v), Sliding(window)),), kind="sliding_attention")
    kinds = {
        0: sliding,
        4: Layer((Compressed(sizes.k, window, 4, True, index_dim),), kind="compressed_sparse_attention"),
        128: Layer((Compressed(sizes.k, window, 128, False),), kind="heavily_compressed_attention"),
    }
    unknown = set(ratios[: sizes.layers]) - set(kinds)
    if unknown:
        raise cfg.invalid("attention.compress_ratios", "a list of 0, 4 and 128", sorted(unknown))
    return tuple(kinds[ratio] for ratio in ratios[: sizes.layers])
