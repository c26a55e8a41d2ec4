"""Bytes that one token takes in one layer's buffers on one rank, and that one state slot takes.

sglang@0.5.23 model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py, configs/mamba_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from kvsize.engines.sglang.models import is_encoder_decoder, is_indexed, stated, states_pooled, windows_pooled
from kvsize.errors import UnsupportedError
from kvsize.formats import Format, format_of
from kvsize.geometry import (
    Attention,
    Chunked,
    Encoder,
    Entry,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    State,
)

QUANT_BLOCK = 128  # memory_pool.py DSATokenToKVPool.quant_block_size; a float32 scale for each block
SCALE_BYTES = 4
CONV = format_of("bfloat16")  # SGLANG_MAMBA_CONV_DTYPE


@dataclass(frozen=True, slots=True)
class Layout:
    """How elements become bytes on one rank.

    Of `ranks` (tp), `tensor` share one attention layer's heads (tp / attention dp), and `context` one context (dcp).
    `scaled` adds mxfp8's byte for 32 elements; `raw_latent` is the plain fp8 latent of the trtllm backend.
    """

    unit: Format
    state: Format
    tensor: int = 1
    ranks: int = 1
    context: int = 1
    scaled: bool = False
    raw_latent: bool = False


@dataclass(frozen=True, slots=True)
class LayerCell:
    """One layer: bytes of a token in its K and V (or latent) and in its indexer, and of one state slot.

    `window` is set where the layer's tokens live in the window pool; `chunked` where that window is a chunk.
    """

    kv: int = 0
    index: int = 0
    state: int = 0
    window: int | None = None
    chunked: bool = False

    @property
    def token(self) -> int:
        """Bytes of one token."""
        return self.kv + self.index


def charged_layers(geometry: Geometry) -> int:
    """How many layers SGLang counts: the config's num_hidden_layers (the encoder's), whatever the decoder has."""
    count = len(geometry.layers)
    given = stated(geometry, "num_hidden_layers")
    if geometry.model_type == "longcat_flash":  # configs/longcat_flash.py: two attention blocks a layer
        return given or count // 2
    if is_encoder_decoder(geometry):
        return given or stated(geometry, "encoder_layers") or stated(geometry, "num_layers") or count
    return count


def layer_cells(geometry: Geometry, layout: Layout) -> tuple[LayerCell, ...]:
    """The cell of each layer of the geometry. Layers that read another's cache are charged like the rest."""
    if not any(layer.stores for layer in geometry.layers):  # models that cache nothing are charged all the same
        return (LayerCell(kv=_heads_bytes(_common_heads(geometry), layout)),) * len(geometry.layers)
    windows, slots = windows_pooled(geometry), states_pooled(geometry)
    cells = {layer: _cell(geometry, layer, layout, windows, slots) for layer in dict.fromkeys(geometry.layers)}
    return tuple(cells[layer] for layer in geometry.layers)


def _cell(geometry: Geometry, layer: Layer, layout: Layout, windows: bool, slots: bool) -> LayerCell:
    attention = [store for store in layer.stores if isinstance(store, Attention)]
    recurrent = [store for store in layer.stores if isinstance(store, Recurrent)]
    if recurrent and not slots:
        return LayerCell(kv=_heads_bytes(_common_heads(geometry), layout))
    state = sum(slot_bytes(store, layout) for store in recurrent)
    if not attention:
        return LayerCell(state=state)
    main, *rest = attention  # a cross-attention cache beside the decoder's own has no buffer
    index = sum(index_bytes(s.entry, layout) for s in rest if isinstance(s.entry, IndexKey))
    window = _window(geometry, main) if windows else None
    return LayerCell(
        _entry_bytes(geometry, main.entry, layout), index, state, window, window is not None and _is_chunk(main)
    )


def _is_chunk(store: Attention) -> bool:
    return isinstance(store.span, Chunked)


def _window(geometry: Geometry, store: Attention) -> int | None:
    match store.span:
        case Sliding(window=window) | Chunked(size=window):
            return stated(geometry, "sliding_window_size") or window
        case Full() | Reference() | Encoder():
            return None
        case _ as never:
            assert_never(never)


def _common_heads(geometry: Geometry) -> Heads:
    """Heads of a layer that SGLang takes for attention: those of the model's attention layers, or of its config."""
    for layer in geometry.layers:
        for store in layer.stores:
            if isinstance(store, Attention) and isinstance(store.entry, Heads) and store.entry.v_dim:
                return store.entry
    count = geometry.num_attention_heads
    hidden = geometry.hidden_size or stated(geometry, "hidden_size")
    if count is None or hidden is None or hidden < count:
        raise UnsupportedError("no attention layer, and the config names no heads for SGLang to count")
    return Heads(count, hidden // count, hidden // count)


def _entry_bytes(geometry: Geometry, entry: Entry, layout: Layout) -> int:
    match entry:
        case Heads():
            return _heads_bytes(_charged_heads(geometry, entry), layout)
        case Latent():
            return latent_bytes(entry, layout, is_indexed(geometry))
        case IndexKey():
            return index_bytes(entry, layout)
        case _ as never:
            assert_never(never)


def _charged_heads(geometry: Geometry, entry: Heads) -> Heads:
    """model_config.py reads num_key_value_heads and head_dim off any config, also where the class ignores them."""
    if not entry.v_dim:  # one tensor that is K and V at once: SGLang counts both
        return _common_heads(geometry)
    queries, hidden = geometry.num_attention_heads, stated(geometry, "hidden_size")
    count, k_dim, v_dim = entry.count, entry.k_dim, entry.v_dim
    if count == queries:
        # configs/chatglm.py: multi_query_group_num is 1 by default, and is read before the heads
        count = 1 if geometry.model_type == "chatglm" else stated(geometry, "num_key_value_heads") or count
    if queries and hidden and k_dim == v_dim == hidden // queries:
        k_dim = v_dim = stated(geometry, "head_dim") or k_dim
    return Heads(count, k_dim, v_dim)


def _heads_bytes(entry: Heads, layout: Layout) -> int:
    """model_config.py get_num_kv_heads: rounded down, one head at least."""
    count = max(1, entry.count // max(1, layout.tensor // layout.context))
    elements = count * (entry.k_dim + entry.v_dim)
    return layout.unit.bytes(elements) + (elements // 32 if layout.scaled else 0)


def latent_bytes(entry: Latent, layout: Layout, indexed: bool) -> int:
    """calculate_mla_kv_cache_dim: not spread over ranks; with an indexer, fp8 carries scales and a bfloat16 rope."""
    if layout.scaled:
        raise UnsupportedError("mxfp8 has no layout for a latent", hint="Use --kv-cache-dtype fp8_e4m3.")
    if not indexed or layout.raw_latent or layout.unit.name != "fp8_e4m3":
        return layout.unit.bytes(entry.elements)
    if entry.rank % QUANT_BLOCK:
        raise UnsupportedError(f"the fp8 latent needs a rank in blocks of {QUANT_BLOCK}, not {entry.rank}")
    return entry.rank + entry.rank // QUANT_BLOCK * SCALE_BYTES + 2 * entry.rope_dim


def index_bytes(entry: IndexKey, layout: Layout) -> int:
    """fp8 index keys with their scales, whatever the cache's format; every rank of one context keeps them all."""
    return (entry.dim + entry.dim // QUANT_BLOCK * SCALE_BYTES) * layout.context


# -- states ------------------------------------------------------------------------------------------------------------


def slot_bytes(store: Recurrent, layout: Layout) -> int:
    """Bytes of one layer's states in one slot: convolutions keep kernel - 1 columns, both parts are spread over ranks.

    Raises:
        UnsupportedError: heads or channels do not divide by the ranks.
    """
    ranks = layout.ranks if store.kind == "mamba" else layout.tensor  # configs/mamba.py takes the whole group
    conv = sum(_share(_channels(store, state, ranks), ranks) * _columns(state) for state in _convs(store))
    rest = [state for state in store.states if state.role == "recurrent"]
    return CONV.bytes(conv) + sum(
        layout.state.bytes(_share(state.shape[0], ranks) * (state.elements // state.shape[0])) for state in rest
    )


def _convs(store: Recurrent) -> list[State]:
    return [state for state in store.states if state.role == "conv"]


def _columns(state: State) -> int:
    return state.shape[-1] - 1


def _channels(store: Recurrent, state: State, ranks: int) -> int:
    """mamba_utils.py extra_groups_for_head_shards: B and C groups that do not divide are copied, one for each rank."""
    channels = state.shape[0]
    match store.kind:
        case "mamba2":
            groups, size = store.groups, store.states[1].shape[2]
        case "gated_delta":  # keys are the groups: [v_heads, k_dim, v_dim]
            v_heads, size, v_dim = store.states[1].shape
            groups = (channels - v_heads * v_dim) // (2 * size)
        case _:
            return channels
    return channels + 2 * size * (ranks - groups) if groups % ranks else channels


def _share(count: int, ranks: int) -> int:
    share, rest = divmod(count, ranks)
    if rest:
        raise UnsupportedError(
            f"{count} heads or channels of a state do not divide by {ranks} ranks",
            hint="Choose a --tp that divides them.",
        )
    return share
