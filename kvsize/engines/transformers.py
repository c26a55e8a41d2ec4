"""Hugging Face transformers: what its cache objects really hold.

Rules from transformers@5.23.0 cache_utils.py, checked against caches of every architecture run on the meta device
(validate/truth). `held` is unique storage: a sliding layer keeps a view, and with it the whole tensor behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from kvsize.engines import CacheSize, LayerBytes, Workload
from kvsize.errors import UnsupportedError
from kvsize.formats import Format, format_of
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
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
    Store,
)

VERSION = "5.23.0"

CACHES = ("dynamic", "static")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a transformers cache, under the names that `generate` gives them."""

    cache: str = "dynamic"
    version: str = VERSION


@dataclass(frozen=True, slots=True)
class Bytes:
    """A store's bytes: what its tensors show, hold while decoding, and hold right after the prefill."""

    logical: int
    held: int
    after_prefill: int
    transient: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(
            self.logical + other.logical,
            self.held + other.held,
            self.after_prefill + other.after_prefill,
            max(self.transient, other.transient),
        )

    def times(self, sequences: int) -> Bytes:
        """The same for several sequences."""
        return Bytes(*(sequences * n for n in (self.logical, self.held, self.after_prefill, self.transient)))


NOTHING = Bytes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Rules:
    """One release's way of sizing, and the request's lengths."""

    tokens: int
    sequences: int
    encoder_tokens: int | None
    static: bool
    activation: Format


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of a transformers cache.

    Raises:
        UnsupportedError: this cache class refuses this model.
    """
    name, source = kv_format(geometry, workload)
    rules = Rules(
        workload.tokens, workload.sequences, workload.encoder_tokens, options.cache == "static", format_of(name)
    )
    per_layer = [_layer(layer, rules) for layer in geometry.layers]
    return CacheSize(
        engine="transformers",
        version=options.version,
        cache=options.cache,
        k_format=name,
        v_format=name,
        layers=tuple(LayerBytes(b.logical, b.held, b.after_prefill) for b in per_layer),
        transient_bytes=max((b.transient for b in per_layer), default=0),
        format_source=source,
        notes=encoder_notes(geometry, workload, format_of(name)),
    )


def kv_format(geometry: Geometry, workload: Workload) -> tuple[str, str]:
    """The cache's element format, and where it came from."""
    if workload.k_format != workload.v_format:
        raise UnsupportedError(
            "a transformers cache holds K and V in one format", hint="vLLM and llama.cpp can mix formats."
        )
    if workload.k_format != "auto":
        return format_of(workload.k_format).name, "given"
    if geometry.dtype is not None:
        return geometry.dtype, "config"
    return (
        "float32",
        "assumed: the config names no dtype, so transformers takes the checkpoint's; float32 is the widest",
    )


def encoder_notes(geometry: Geometry, workload: Workload, unit: Format) -> tuple[str, ...]:
    """What is missing from the figure of a model with an encoder, as long as nobody said how much it yields."""
    if workload.encoder_tokens is not None:
        return ()
    stores = [
        s for layer in geometry.layers for s in layer.stores if isinstance(s, Attention) and isinstance(s.span, Encoder)
    ]
    if not stores:
        return ()
    per_token = sum(unit.bytes(_elements(store.entry)) for store in stores) * workload.sequences
    fixed = next((store.span.tokens for store in stores if isinstance(store.span, Encoder) and store.span.tokens), None)
    usual = f"; this encoder always yields {fixed:,}: --encoder-ctx {fixed}" if fixed else ": add --encoder-ctx N"
    note = (
        f"the encoder's keys and values are not in these figures; they take {per_token:,} bytes "
        f"for each of its tokens{usual}"
    )
    return (note,)


def _layer(layer: Layer, rules: Rules) -> Bytes:
    if layer.shares is not None:
        return NOTHING
    total = NOTHING
    for store in layer.stores:
        total += _store(store, rules)
    return total


def _store(store: Store, rules: Rules) -> Bytes:
    match store:
        case Attention():
            return _attention(store, rules)
        case Recurrent():
            return _recurrent(store, rules).times(rules.sequences)
        case Compressed():
            return _compressed(store, rules).times(rules.sequences)
        case _ as never:
            assert_never(never)


def _attention(store: Attention, rules: Rules) -> Bytes:
    unit = format_of(store.format) if store.format else rules.activation
    per_token = unit.bytes(_elements(store.entry))
    kept = _kept_tokens(store, rules)
    growing = (
        0 if rules.static or isinstance(store.span, Encoder) else unit.bytes(_largest_tensor(store.entry)) * kept.held
    )
    total = Bytes(kept.logical * per_token, kept.held * per_token, kept.after_prefill * per_token, growing).times(
        rules.sequences
    )
    return replace(total, after_prefill=unit.bytes(kept.after_prefill)) if store.expanded_view else total


def _elements(entry: Heads | Latent | IndexKey) -> int:
    """Elements of one token; heads as the modelling code hands them to the cache."""
    if isinstance(entry, Heads) and entry.broadcast:
        return entry.broadcast * (entry.k_dim + entry.v_dim)
    return entry.elements


def _largest_tensor(entry: Heads | Latent | IndexKey) -> int:
    """torch.cat holds the old and the new tensor of one of K and V at a time."""
    match entry:
        case Heads():
            return (entry.broadcast or entry.count) * max(entry.k_dim, entry.v_dim)
        case Latent():
            return max(entry.rank, entry.rope_dim)
        case IndexKey():
            return entry.dim
        case _ as never:
            assert_never(never)


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens that a layer's tensors show, and that their storages hold while decoding and right after the prefill."""

    logical: int
    held: int
    after_prefill: int


def _all(tokens: int) -> Kept:
    return Kept(tokens, tokens, tokens)


def _kept_tokens(store: Attention, rules: Rules) -> Kept:
    tokens = rules.tokens + store.extra_tokens
    match store.span:
        case Full():
            return _all(tokens)
        case Sliding(window=window) | Chunked(size=window):
            return _windowed(tokens, window, rules.static)
        case Reference(window=window):
            return _all(tokens)
        case Encoder():
            return _all(_encoder_tokens(rules))
        case _ as never:
            assert_never(never)


def _windowed(tokens: int, window: int, static: bool) -> Kept:
    """cache_utils.py DynamicSlidingWindowLayer.update keeps `full[:, :, -window + 1 :]`, a view of what it built."""
    if static:
        return _all(min(tokens, window))
    shown = tokens if window == 1 else min(tokens, window - 1)  # [-1 + 1 :] is everything
    held = tokens if window == 1 else min(tokens, window)
    return Kept(shown, held, tokens)


def _encoder_tokens(rules: Rules) -> int:
    if rules.encoder_tokens is not None:
        return rules.encoder_tokens
    return 0  # not counted; encoder_note says so


def _recurrent(store: Recurrent, rules: Rules) -> Bytes:
    total = sum(_state_bytes(state, rules) for state in store.states)
    if store.kind != "rg_lru":
        return Bytes(total, total, total)
    # modeling_recurrent_gemma.py keeps kernel - 1 columns: their own tensor after a prefill, then a view of kernel
    column = sum(_state_bytes(state, rules) // state.shape[-1] for state in store.states if state.role == "conv")
    return Bytes(total - column, total, total if rules.tokens == 1 else total - column)


def _state_bytes(state: State, rules: Rules) -> int:
    unit = format_of(state.format) if state.format else rules.activation
    return unit.bytes(state.elements)


def _compressed(store: Compressed, rules: Rules) -> Bytes:
    """modeling_deepseek_v4.py: K and V are one tensor; buffers and windows are views of what the last step built."""
    if rules.static:
        raise UnsupportedError(
            "StaticCache has no layer for DeepSeek-V4's compressed attention", hint="Use --cache dynamic."
        )
    window = _windowed(rules.tokens, store.window, static=False)
    unit = rules.activation
    parts = Bytes(
        unit.bytes(store.dim * window.logical),
        unit.bytes(store.dim * window.held),
        unit.bytes(store.dim * window.after_prefill),
    )
    for width in (store.dim, store.index_dim) if store.overlap else (store.dim,):
        parts += _compressor(width, store, rules)
    return parts


def _compressor(width: int, store: Compressed, rules: Rules) -> Bytes:
    """Buffered tokens (twice: kv and gate), finished entries, and what the overlapping kind carries on."""
    tokens, rate, unit = rules.tokens, store.rate, rules.activation
    per_buffered = 2 * unit.bytes(width * (2 if store.overlap else 1))
    entries = unit.bytes(width) * (tokens // rate)
    carried = 0
    if store.overlap and tokens >= rate:
        carried = (unit.bytes(width) + format_of("float32").bytes(width)) * rate
    fixed = entries + carried
    return Bytes(
        fixed + per_buffered * (tokens % rate),
        fixed + per_buffered * ((tokens - 1) % rate + 1),
        fixed + per_buffered * tokens,
    )
