"""MLX-LM: caches that grow with what they have seen, nothing reserved.

Rules from mlx-lm@0.32.2 mlx_lm/models/cache.py and the model modules, checked against real caches of tiny models on
mlx 0.32.4 (validate/truth).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from kvsize.engines import CacheSize, LayerBytes, Workload
from kvsize.engines.mlx import models
from kvsize.engines.mlx.caches import BITS, GROUPS, Cells, growing, quantized_bytes, rotating
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format, canonical, format_of
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

VERSION = "0.32.2"
FORMATS = ("bfloat16", "float16", "float32")

# Kinds whose states the modules keep, with the format of the recurrent part (None: the activations').
STATE_FORMATS: dict[str, str | None] = {
    "mamba": None,
    "mamba2": "float32",
    "gated_delta": "float32",
    "kda": "float32",
    "short_conv": None,
    "rg_lru": None,
}


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of `mlx_lm.generate`, under their flags' names."""

    version: str = VERSION
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000
    prefill_step_size: int = 2048

    def __post_init__(self) -> None:
        for name in ("max_kv_size", "prefill_step_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1", got=str(value))
        if self.kv_bits is not None and self.kv_bits not in BITS:
            raise UsageError("--kv-bits is one of 2, 4 and 8 here", got=str(self.kv_bits))
        if self.kv_group_size not in GROUPS:
            raise UsageError("--kv-group-size is one of 32, 64 and 128", got=str(self.kv_group_size))


@dataclass(frozen=True, slots=True)
class Rules:
    """One request's length and how its caches are kept.

    `window` overrides the windows of rotating caches, `limit` is --max-kv-size where it counts.
    """

    tokens: int
    step: int
    unit: Format
    rotates: bool
    window: int | None
    expanded: bool
    limit: int | None
    bits: int | None
    group: int

    @property
    def quantizes(self) -> bool:
        """Whether the request is long enough for quantisation to have set in."""
        return self.bits is not None


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of an mlx-lm cache.

    Raises:
        UnsupportedError: mlx-lm has no module for the model, or its caches refuse the setting.
    """
    if geometry.model_type not in models.KNOWN:
        raise UnsupportedError(
            f"mlx-lm {VERSION} has no rule here for {geometry.model_type}",
            hint="--engine llama.cpp runs on the same machines.",
        )
    name, source = kv_format(geometry, workload)
    rules = _rules(geometry, workload, options, format_of(name))
    if rules.quantizes and geometry.model_type in models.READS_PLAIN:
        raise UnsupportedError(
            f"mlx-lm's attention of {geometry.model_type} cannot read a quantised cache", hint="Leave --kv-bits out."
        )
    layers = [_layer(layer, rules) for layer in _with_indexers(geometry)]
    return CacheSize(
        engine="mlx",
        version=options.version,
        cache="quantized" if rules.quantizes else "prompt cache",
        k_format=f"{options.kv_bits}-bit" if rules.quantizes else name,
        v_format=f"{options.kv_bits}-bit" if rules.quantizes else name,
        layers=tuple(
            LayerBytes(*(n * workload.sequences for n in (part.logical, part.held, part.after_prefill)))
            for part in layers
        ),
        transient_bytes=max((part.outgrown for part in layers), default=0) * workload.sequences,
        step_tokens=256,
        format_source="given" if rules.quantizes else source,
        evidence="exact" if options.version == VERSION and geometry.model_type in models.WEIGHED else "derived",
        notes=tuple(_notes(geometry, workload, options)),
    )


def kv_format(geometry: Geometry, workload: Workload) -> tuple[str, str]:
    """The activations' format, in which mlx-lm caches, and where it came from.

    Raises:
        UnsupportedError: a format that is not one of activations.
    """
    name = canonical(workload.k_format)
    if name != canonical(workload.v_format) or name not in (*FORMATS, "auto"):
        raise UnsupportedError(
            "mlx-lm caches K and V in the activations' format", hint="--kv-bits 8 or --kv-bits 4 quantises both."
        )
    if name != "auto":
        return name, "given"
    if geometry.dtype is not None:
        return geometry.dtype, "config"
    return "float32", "assumed: the config names no dtype, so mlx-lm takes the checkpoint's; float32 is the widest"


def _rules(geometry: Geometry, workload: Workload, options: Options, unit: Format) -> Rules:
    started = workload.tokens >= options.quantized_kv_start and geometry.model_type not in models.LISTED
    return Rules(
        tokens=workload.tokens,
        step=options.prefill_step_size,
        unit=unit,
        rotates=models.rotates(geometry),
        window=dict(geometry.stated).get("sliding_window_size"),
        expanded=geometry.model_type in models.EXPANDED,
        limit=None if models.makes_its_own_caches(geometry) else options.max_kv_size,
        bits=options.kv_bits if started else None,
        group=options.kv_group_size,
    )


def _with_indexers(geometry: Geometry) -> Sequence[Layer]:
    """GLM-5's layers that share an indexer in the reference code run one of their own here."""
    keys = [s for layer in geometry.layers for s in layer.stores if _is_index(s)]
    if geometry.model_type not in models.INDEXED or not keys:
        return geometry.layers
    return [
        layer if any(map(_is_index, layer.stores)) else Layer((*layer.stores, keys[0]), kind=layer.kind)
        for layer in geometry.layers
    ]


def _is_index(store: Store) -> bool:
    return isinstance(store, Attention) and isinstance(store.entry, IndexKey)


# -- layers ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bytes:
    """One layer of one sequence; `outgrown` is the old buffer that lives beside the new one while it is copied."""

    logical: int = 0
    held: int = 0
    after_prefill: int = 0
    outgrown: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(
            self.logical + other.logical,
            self.held + other.held,
            self.after_prefill + other.after_prefill,
            self.outgrown + other.outgrown,
        )


def _layer(layer: Layer, rules: Rules) -> Bytes:
    total = Bytes()
    for store in layer.stores if layer.shares is None else ():
        total += _store(store, rules)
    return total


def _store(store: Store, rules: Rules) -> Bytes:
    match store:
        case Attention():
            return _attention(store, rules)
        case Recurrent():
            return _recurrent(store, rules)
        case Compressed():
            raise UnsupportedError("mlx-lm's DeepSeek-V4 caches are not modelled")
        case _ as never:
            assert_never(never)


def _attention(store: Attention, rules: Rules) -> Bytes:
    cells, kept = _cells(store, rules)
    quantized = rules.quantizes and not isinstance(store.span, Chunked)
    if quantized and _limit(store, rules) is not None:
        raise UnsupportedError("RotatingKVCache cannot be quantised", hint="Leave --kv-bits out for this model.")
    if quantized and isinstance(store.entry, Latent) and not rules.expanded:
        raise UnsupportedError(
            "mlx-lm's attention over a latent cannot read a quantised cache", hint="Leave --kv-bits out."
        )
    token = sum(heads * _vector(width, rules, quantized) for heads, width in _vectors(store, rules))
    return Bytes(kept * token, cells.held * token, cells.after_prefill * token, cells.outgrown * token)


def _limit(store: Attention, rules: Rules) -> int | None:
    """Cells of a rotating cache; None where the cache grows."""
    if isinstance(store.span, Sliding) and rules.rotates:
        return rules.window or store.span.window
    return rules.limit


def _cells(store: Attention, rules: Rules) -> tuple[Cells, int]:
    """The buffer's cells, and the tokens in them that count."""
    tokens, step = rules.tokens, rules.step
    match store.span:
        case Chunked(size=chunk):
            return growing(tokens, step, chunk), min(tokens, chunk)
        case Full() | Sliding():
            limit = _limit(store, rules)
            if limit is not None:
                return rotating(tokens, step, limit), min(tokens, limit)
            return growing(tokens, step), tokens
        case Encoder() | Reference():
            raise UnsupportedError("mlx-lm has no cache for an encoder")
        case _ as never:
            assert_never(never)


def _vectors(store: Attention, rules: Rules) -> list[tuple[int, int]]:
    """(heads, width) of the keys' and the values' buffer."""
    match store.entry:
        case Heads(count=count, k_dim=k, v_dim=v) if v:
            return [(count, k), (count, v)]
        case Latent(expanded=heads) if rules.expanded:
            return [(heads.count, heads.k_dim), (heads.count, heads.v_dim)]
        case Latent(rank=rank, rope_dim=rope):
            return [(1, rank), (1, rope)]
        case IndexKey(dim=dim):  # deepseek_v32.py fills the values with zeros
            return [(1, dim), (1, dim)]
        case _:
            raise UnsupportedError("mlx-lm has no cache for one vector that is K and V at once")


def _vector(width: int, rules: Rules, quantized: bool) -> int:
    if quantized and rules.bits is not None:
        return quantized_bytes(width, rules.bits, rules.group, rules.unit.block_bytes)
    return rules.unit.bytes(width)


def _recurrent(store: Recurrent, rules: Rules) -> Bytes:
    """ArraysCache: constant, kernel - 1 columns of a convolution."""
    if store.kind not in STATE_FORMATS:
        raise UnsupportedError(f"mlx-lm's states of kind {store.kind} are not modelled")
    total = sum(_state(state, store.kind, rules) for state in store.states)
    return Bytes(total, total, total)


def _state(state: State, kind: str, rules: Rules) -> int:
    if state.role == "conv":
        return rules.unit.bytes(state.elements // state.shape[-1] * (state.shape[-1] - 1))
    fixed = STATE_FORMATS[kind]
    return (format_of(fixed) if fixed else rules.unit).bytes(state.elements)


# -- notes -------------------------------------------------------------------------------------------------------------


def _notes(geometry: Geometry, workload: Workload, options: Options) -> list[str]:
    notes = ["all tokens but one are taken as the prompt; nothing is reserved for tokens not seen yet"]
    if options.version != VERSION:
        notes.append(f"only mlx-lm {VERSION} was checked; {options.version} is computed by its rules")
    if options.max_kv_size is not None and models.makes_its_own_caches(geometry):
        notes.append(f"mlx-lm ignores --max-kv-size for {geometry.model_type}, which makes its own caches")
    windows = any(isinstance(s, Attention) and isinstance(s.span, Sliding) for ly in geometry.layers for s in ly.stores)
    if windows and not models.rotates(geometry):
        notes.append(f"mlx-lm keeps windows in full for {geometry.model_type}")
    if options.kv_bits is not None and geometry.model_type in models.LISTED:
        notes.append(f"quantisation passes over the caches of {geometry.model_type}")
    elif options.kv_bits is not None and workload.tokens < options.quantized_kv_start:
        notes.append(f"quantisation sets in at {options.quantized_kv_start:,} tokens (--quantized-kv-start)")
    if workload.sequences > 1:
        notes.append("a batch is padded to its longest prompt; equal lengths are assumed")
    return notes
