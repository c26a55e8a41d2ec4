"""A geometry in words: what people call each kind of layer, what one entry holds, which tokens stay."""

from __future__ import annotations

from typing import assert_never

from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
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
    Span,
    State,
    Store,
)

RECURRENT_NAMES = {
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated_delta": "gated delta",
    "kda": "KDA",
    "short_conv": "short conv",
    "lightning": "lightning",
    "rg_lru": "RG-LRU",
    "rwkv": "RWKV",
    "mlstm": "mLSTM",
    "compression": "compression",
    "measured": "states",
}

# How engines write themselves, where it is not their flag's name.
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "mlx": "MLX", "trtllm": "TensorRT-LLM", "ollama": "Ollama"}


def describe(geometry: Geometry) -> str:
    """The whole cache in one line: `10 full + 52 sliding(1024) · 16 KV heads x 128`."""
    counts: dict[str, int] = {}
    for layer in geometry.layers:
        name = label(layer)
        counts[name] = counts.get(name, 0) + 1
    ordered = sorted(counts, key=lambda name: not name.startswith("full"))  # stable: the rest as they first appear
    kinds = " + ".join(f"{counts[name]} {name}" for name in ordered)
    entry = common_entry(geometry)
    return kinds if entry is None else f"{kinds} · {entry_words(entry)}"


def common_entry(geometry: Geometry) -> Heads | Latent | None:
    """What every layer's own attention holds, if they all hold the same; index keys aside."""
    found = {
        store.entry
        for layer in geometry.layers
        for store in layer.stores
        if isinstance(store, Attention) and isinstance(store.entry, Heads | Latent)
    }
    return found.pop() if len(found) == 1 else None


def label(layer: Layer) -> str:
    """The kind of one layer, by what it stores and not by what its config calls it."""
    if layer.shares is not None:
        return "sharing"
    return "+".join(dict.fromkeys(_store_label(store) for store in layer.stores)) or "without cache"


def _store_label(store: Store) -> str:
    match store:
        case Attention():
            return "index" if isinstance(store.entry, IndexKey) else span_label(store.span)
        case Recurrent():
            return RECURRENT_NAMES[store.kind]
        case Compressed():
            return f"compressed({store.rate})"
        case _ as never:
            assert_never(never)


def span_label(span: Span) -> str:
    """Which tokens stay, as a word."""
    match span:
        case Full():
            return "full"
        case Sliding(window=window):
            return f"sliding({window})"
        case Chunked(size=size):
            return f"chunked({size})"
        case Reference(window=window):
            return f"reference({window})"
        case Encoder():
            return "cross"
        case _ as never:
            assert_never(never)


def span_words(span: Span) -> str:
    """Which tokens stay, as a phrase."""
    match span:
        case Full():
            return "all tokens"
        case Sliding(window=window):
            return f"the last {window:,} tokens"
        case Chunked(size=size):
            return f"the current chunk of {size:,} tokens"
        case Reference(window=window):
            return f"the prompt, and the last {window:,} tokens of the answer"
        case Encoder(tokens=tokens):
            return "the encoder's tokens" if tokens is None else f"the encoder's {tokens:,} tokens"
        case _ as never:
            assert_never(never)


def entry_words(entry: Entry) -> str:
    """What one token's entry holds."""
    match entry:
        case Heads(count=count, k_dim=k, v_dim=v):
            width = str(k) if k == v else f"{k}, K only" if v == 0 else f"(K {k} + V {v})"
            return f"{count} KV head{'' if count == 1 else 's'} x {width}"
        case Latent(rank=rank, rope_dim=rope):
            return f"MLA latent {rank}" + (f" + rope {rope}" if rope else "")
        case IndexKey(dim=dim):
            return f"index key {dim}"
        case _ as never:
            assert_never(never)


def state_words(states: tuple[State, ...]) -> str:
    """The state tensors of one sequence: `conv [8192, 4] + recurrent [8192, 16] float32`."""
    return " + ".join(f"{s.role} {list(s.shape)}{f' {s.format}' if s.format else ''}" for s in states)
