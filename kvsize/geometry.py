"""What a model stores for its context: value types only, the same for every engine.

Two axes, kept apart: *what one entry holds* (heads, a latent, an index key) and *which tokens stay*
(all of them, a window, a chunk, the encoder's). Engines turn these into bytes; nothing here knows a
dtype's width, a page or a GPU. Sizes are elements and tokens, as integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Literal, TypeAlias


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class Heads:
    """Keys and values of `count` heads. `v_dim` is 0 where V is K itself and is kept once.

    `broadcast` is the head count after K and V were repeated for the query heads, where the model's
    own code repeats them *before* caching (transformers' Falcon-40B does); most engines cache `count`.
    """

    count: int
    k_dim: int
    v_dim: int
    broadcast: int | None = None

    def __post_init__(self) -> None:
        _positive(count=self.count, k_dim=self.k_dim)
        if self.v_dim < 0:
            raise ValueError(f"v_dim must not be negative, got {self.v_dim}")
        if self.broadcast is not None and self.broadcast % self.count:
            raise ValueError(f"broadcast {self.broadcast} is no multiple of {self.count} heads")

    @property
    def elements(self) -> int:
        """Elements of one token."""
        return self.count * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Latent:
    """MLA: one compressed vector a token, shared by all heads. `expanded` is what decompressing engines keep.

    `rope_dim` is 0 on layers without rotary embedding.
    """

    rank: int
    rope_dim: int
    expanded: Heads

    def __post_init__(self) -> None:
        _positive(rank=self.rank)
        if self.rope_dim < 0:
            raise ValueError(f"rope_dim must not be negative, got {self.rope_dim}")

    @property
    def elements(self) -> int:
        """Elements of one token."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class IndexKey:
    """The key of a sparse-attention indexer (DSA): one vector a token, beside the layer's own cache."""

    dim: int

    def __post_init__(self) -> None:
        _positive(dim=self.dim)

    @property
    def elements(self) -> int:
        """Elements of one token."""
        return self.dim


@dataclass(frozen=True, slots=True)
class Full:
    """Every token stays."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """The last `window` tokens are attended to, the current one included."""

    window: int

    def __post_init__(self) -> None:
        _positive(window=self.window)


@dataclass(frozen=True, slots=True)
class Chunked:
    """Attention inside chunks of `size` tokens (Llama 4)."""

    size: int

    def __post_init__(self) -> None:
        _positive(size=self.size)


@dataclass(frozen=True, slots=True)
class Reference:
    """The whole prompt stays, and of what is generated the last `window` tokens (Unlimited-OCR)."""

    window: int

    def __post_init__(self) -> None:
        _positive(window=self.window)


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoder's (or the image's) tokens, filled once.

    `optional`: a text-only request has none. `tokens`: how many the encoder always yields, where that is fixed.
    """

    optional: bool = False
    tokens: int | None = None


Entry: TypeAlias = Heads | Latent | IndexKey
Span: TypeAlias = Full | Sliding | Chunked | Reference | Encoder


@dataclass(frozen=True, slots=True)
class Attention:
    """One cache that grows with tokens.

    `format` fixes the element format where the model's code does (None: the cache's own format).
    `extra_tokens` are entries held beside the request's tokens (CPM-Ant's prompt). `expanded_view`: until it is first
    appended to, the tensor shows one stored element many times (Qwen4's positions).
    """

    entry: Entry
    span: Span = Full()
    format: str | None = None
    extra_tokens: int = 0
    expanded_view: bool = False


StateRole: TypeAlias = Literal["conv", "recurrent"]
RecurrentKind: TypeAlias = Literal[
    "mamba",
    "mamba2",
    "gated_delta",
    "kda",
    "short_conv",
    "lightning",
    "rg_lru",
    "rwkv",
    "mlstm",
    "compression",
    "measured",
]


@dataclass(frozen=True, slots=True)
class State:
    """One state tensor of one sequence, of constant size. A conv state's last axis is the kernel width.

    `format` is what current reference code keeps it in (None: the activations' format).
    """

    role: StateRole
    shape: tuple[int, ...]
    format: str | None = None

    def __post_init__(self) -> None:
        for axis, size in enumerate(self.shape):
            _positive(**{f"shape[{axis}]": size})

    @property
    def elements(self) -> int:
        """Elements of one sequence."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """States that do not grow with tokens. `groups` are Mamba-2's B/C groups (0: none).

    `rolling` convolutions keep all columns but one: their own tensor after a prefill, then a view of all of them.
    """

    kind: RecurrentKind
    states: tuple[State, ...]
    groups: int = 0
    rolling: bool = False


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4: a window of shared K=V entries, and one compressed entry per `rate` tokens.

    `overlap` compressors (CSA) read two windows and carry an indexer of `index_dim`; the others (HCA) neither.
    """

    dim: int
    window: int
    rate: int
    overlap: bool
    index_dim: int = 0

    def __post_init__(self) -> None:
        _positive(dim=self.dim, window=self.window, rate=self.rate)
        if self.overlap:
            _positive(index_dim=self.index_dim)


Store: TypeAlias = Attention | Recurrent | Compressed


@dataclass(frozen=True, slots=True)
class Layer:
    """What one hidden layer keeps; nothing at all is a fact too (an MLP layer).

    `shares` names the earlier layer whose cache this one reads: then `stores` is the shape it reads, and only
    an engine without sharing allocates it again.
    """

    stores: tuple[Store, ...] = ()
    shares: int | None = None
    kind: str = "full_attention"


@dataclass(frozen=True, slots=True)
class Read:
    """One config key that decided something: `$.text_config.head_dim = 256 (class default)`."""

    path: str
    value: str
    origin: Literal["config", "alias", "default", "derived"]

    def __str__(self) -> str:
        tail = "" if self.origin == "config" else f" ({'class default' if self.origin == 'default' else self.origin})"
        return f"{self.path} = {self.value}{tail}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's cache, layer by layer, before any engine, format or workload.

    `dtype` is the compute dtype the config names (None: it names none). `architecture` is the class name of
    `architectures[0]`, which some engines key their rules on. `state_dtype` is `mamba_ssm_dtype` and its kin.
    `stated` are sizes as the file names them, read or not: some engines trust a key that the model's class ignores.
    `drafts` are layers for drafting tokens (MTP) that a file counts after the hidden ones; the model's own cache is
    without them.
    `context_factor` is by how much rope scaling stretches `max_tokens` (1 where it is already in there). `kv_scheme` is
    the KV format that a quantised checkpoint was calibrated for.
    """

    model_type: str
    layers: tuple[Layer, ...]
    num_attention_heads: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_tokens: int | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    architecture: str | None = None
    stated: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    drafts: tuple[Layer, ...] = ()
    context_factor: float = 1.0
    kv_scheme: str | None = None
    reads: tuple[Read, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for index, layer in enumerate(self.layers):
            if layer.shares is not None and not 0 <= layer.shares < index:
                raise ValueError(f"layer {index} shares layer {layer.shares}, which is not an earlier one")

    def runs(self) -> tuple[tuple[Layer, tuple[int, ...]], ...]:
        """Equal layers together, in order of first appearance: (layer, its indices)."""
        order: dict[Layer, list[int]] = {}
        for index, layer in enumerate(self.layers):
            order.setdefault(layer, []).append(index)
        return tuple((layer, tuple(indices)) for layer, indices in order.items())


def index_ranges(indices: tuple[int, ...]) -> str:
    """Indices as people write them: (0, 1, 2, 5) -> "0-2, 5"."""
    parts = []
    for _, group in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
