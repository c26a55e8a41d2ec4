"""Dynamic and static caches: what each store of a layer shows, holds, and holds right after the prefill.

Rules from transformers@5.23.0 cache_utils.py. `held` is unique storage: a sliding layer keeps a view, and with it the
whole tensor behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from kvsize.errors import UnsupportedError
from kvsize.formats import Format, format_of
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Full,
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


@dataclass(frozen=True, slots=True)
class Bytes:
    """A store's bytes: what its tensors show, hold while decoding, and hold right after the prefill.

    `transient` is what one more step holds beside them (the old tensor while torch.cat builds the new one).
    """

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
    """The request's lengths, the cache class, and the release's way of sizing.

    `tokens` are cached in the end, the last `decoded` of them one by one. `prompt` is the prefill that the figure
    "right after the prefill" is about: of all tokens, unless the caller gave a prompt. `windows` is False for a cache
    built without a config (`DynamicCache()`), which knows no windows.
    """

    tokens: int
    prompt: int
    decoded: int
    sequences: int
    encoder_tokens: int
    static: bool
    activation: Format
    windows: bool


def layer_bytes(layer: Layer, rules: Rules) -> Bytes:
    """All stores of a layer together; a layer that shares another's cache holds none."""
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


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(store: Attention, rules: Rules) -> Bytes:
    unit = format_of(store.format) if store.format else rules.activation
    per_token = unit.bytes(store.entry.elements)
    kept = _kept_tokens(store, rules)
    grows = not rules.static and not isinstance(store.span, Encoder)
    copied = unit.bytes(_largest_tensor(store.entry)) * kept.held if grows else 0
    total = Bytes(kept.logical * per_token, kept.held * per_token, kept.after_prefill * per_token, copied)
    total = total.times(rules.sequences)
    return replace(total, after_prefill=unit.bytes(kept.after_prefill)) if store.expanded_view else total


def _largest_tensor(entry: Heads | Latent | IndexKey) -> int:
    """torch.cat holds the old and the new tensor of one of K and V at a time."""
    match entry:
        case Heads():
            return entry.count * max(entry.k_dim, entry.v_dim)
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


def _kept_tokens(store: Attention, rules: Rules) -> Kept:
    tokens, prompt = rules.tokens + store.extra_tokens, rules.prompt + store.extra_tokens
    plain = Kept(tokens, tokens, tokens if rules.static else prompt)
    match store.span:
        case Full():
            return plain
        case Sliding(window=window) | Chunked(size=window):
            return _windowed(tokens, prompt, window, rules) if rules.windows else plain
        case Reference(window=window):
            return _referenced(window, rules)
        case Encoder():
            return Kept(rules.encoder_tokens, rules.encoder_tokens, rules.encoder_tokens)
        case _ as never:
            assert_never(never)


def _windowed(tokens: int, prompt: int, window: int, rules: Rules) -> Kept:
    """cache_utils.py DynamicSlidingWindowLayer.update keeps `full[:, :, -window + 1 :]`, a view of what it built."""
    if rules.static:
        slots = min(tokens, window)
        return Kept(slots, slots, slots)
    if window == 1:  # [-1 + 1 :] is everything
        return Kept(tokens, tokens, prompt)
    return Kept(min(tokens, window - 1), min(tokens, window) if rules.decoded else tokens, prompt)


def _referenced(window: int, rules: Rules) -> Kept:
    """modeling_unlimited_ocr.py: the prompt stays, what is decoded has a window."""
    first = rules.tokens - rules.decoded
    if rules.static:
        slots = min(rules.tokens, first + window)
        return Kept(slots, slots, slots)
    tail = _windowed(rules.decoded, rules.prompt, window, rules)
    return Kept(first + tail.logical, first + tail.held, rules.prompt)


# -- states ------------------------------------------------------------------------------------------------------------


def _recurrent(store: Recurrent, rules: Rules) -> Bytes:
    total = sum(_state_bytes(state, rules) for state in store.states)
    if not store.rolling:
        return Bytes(total, total, total)
    # modeling_recurrent_gemma.py; a prefill of one token is a decode step
    column = sum(_state_bytes(state, rules) // state.shape[-1] for state in store.states if state.role == "conv")
    prefilled = total if rules.prompt == 1 else total - column
    return Bytes(total - column, total if rules.decoded else prefilled, prefilled)


def _state_bytes(state: State, rules: Rules) -> int:
    unit = format_of(state.format) if state.format else rules.activation
    return unit.bytes(state.elements)


# -- compressed attention ----------------------------------------------------------------------------------------------


def _compressed(store: Compressed, rules: Rules) -> Bytes:
    """modeling_deepseek_v4.py: K and V are one tensor; buffers and windows are views of what the last step built."""
    if rules.static:
        raise UnsupportedError(
            "StaticCache has no layer for DeepSeek-V4's compressed attention", hint="Use --cache dynamic."
        )
    unit = rules.activation
    window = _windowed(rules.tokens, rules.prompt, store.window, rules)
    total = Bytes(*(unit.bytes(store.dim * n) for n in (window.logical, window.held, window.after_prefill)))
    for width in (store.dim, store.index_dim) if store.overlap else (store.dim,):
        total += _compressor(width, store, rules)
    return total


def _compressor(width: int, store: Compressed, rules: Rules) -> Bytes:
    """Buffered tokens (twice: kv and gate), finished entries, and what the overlapping kind carries on."""
    rate, unit = store.rate, rules.activation
    per_buffered = 2 * unit.bytes(width * (2 if store.overlap else 1))

    def fixed(tokens: int) -> int:
        carried = (unit.bytes(width) + format_of("float32").bytes(width)) * rate if tokens >= rate else 0
        return unit.bytes(width) * (tokens // rate) + (carried if store.overlap else 0)

    buffered = (rules.tokens - 1) % rate + 1 if rules.decoded else rules.tokens
    return Bytes(
        fixed(rules.tokens) + per_buffered * (rules.tokens % rate),
        fixed(rules.tokens) + per_buffered * buffered,
        fixed(rules.prompt) + per_buffered * rules.prompt,
    )
