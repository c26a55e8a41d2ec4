"""Hugging Face transformers: what its cache objects really hold.

Checked against caches of every architecture that transformers 5.23.0 can run, and of some eighty of them in each
release since 5.0 (validate/truth). One module a kind of cache: growing (dynamic, static), quantized, offloaded, paged;
versions and history hold what changed between releases.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import CacheSize, LayerBytes, Overhead, Pool, Workload
from kvsize.engines.transformers import offloaded, paged, quantized
from kvsize.engines.transformers.growing import Rules, layer_bytes
from kvsize.engines.transformers.history import as_of
from kvsize.engines.transformers.versions import (
    FP8_CACHE,
    PAGES_OF_256,
    QUANTIZED_REFUSES,
    VERSION,
    Release,
    release,
)
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format, format_of
from kvsize.geometry import Attention, Encoder, Geometry

__all__ = ["CACHES", "VERSION", "Options", "size"]

CACHES = ("dynamic", "dynamic_full", "static", "offloaded", "offloaded_static", "quantized", "paged")
# Deprecated names, and the cache that generate builds for them; as run in each release since 5.0.
DEPRECATED = {
    "sliding_window": "static",
    "hybrid": "dynamic",
    "hybrid_chunked": "static",
    "offloaded_hybrid": "offloaded_static",
    "offloaded_hybrid_chunked": "offloaded_static",
}
# Their modelling code brings its own cache and ignores the setting. generation/utils.py _supports_default_dynamic_cache
OWN_CACHE = ("minimax", "reformer", "rwkv", "xlnet", "xlstm")
STATIC = ("static", "offloaded_static")
POSITIVE = (
    *("num_beams", "num_return_sequences", "max_cache_len", "page_size", "num_blocks"),
    *("nbits", "q_group_size", "residual_length", "max_num_batched_tokens", "kv_memory"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a transformers cache, under the names that `generate` gives them; None is its own default."""

    cache: str = "dynamic"
    version: str = VERSION
    num_beams: int = 1
    num_return_sequences: int = 1
    max_cache_len: int | None = None
    backend: str = "quanto"
    nbits: int | None = None
    q_group_size: int | None = None
    residual_length: int | None = None
    axis_key: int | None = None
    axis_value: int | None = None
    offload_only_non_sliding: bool | None = None
    page_size: int | None = None
    num_blocks: int | None = None
    kv_memory: int | None = None
    max_num_batched_tokens: int = 8192
    attn_implementation: str = "sdpa"

    def __post_init__(self) -> None:
        if self.cache not in CACHES and self.cache not in DEPRECATED:
            raise UsageError(f"unknown cache {self.cache!r}", hint="Known: " + ", ".join(CACHES))
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1", got=str(value))


@dataclass(frozen=True, slots=True)
class Setting:
    """The options as the release takes them: which cache it builds, and whether that cache knows windows."""

    kind: str
    release: Release
    options: Options
    windows: bool

    @property
    def static(self) -> bool:
        """Whether the cache has a fixed number of slots."""
        return self.kind in STATIC

    @property
    def page(self) -> int:
        """Tokens of a page of the paged cache."""
        default = paged.DEFAULT_PAGE if self.release.has(PAGES_OF_256) else 32
        return default if self.options.page_size is None else self.options.page_size

    @property
    def beams(self) -> int:
        """Copies of each sequence: generate expands a request by the larger of the two."""
        return max(self.options.num_beams, self.options.num_return_sequences)


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of a transformers cache, all sequences (and their beams) together.

    Raises:
        UnsupportedError: this cache class refuses this model, or this release this cache.
    """
    setting = settle(geometry, options)
    name, source = kv_format(geometry, workload)
    cached, history = as_of(geometry, setting.release, static=setting.static)
    rules = make_rules(workload, setting, format_of(name))
    if setting.kind == "paged":
        plan = paged.plan(geometry, rules.activation, setting.page)
        layers, overheads, transient, pool = _paged(plan, geometry, rules, setting)
        history = (*history, paged.note(plan))
    else:
        (layers, transient), overheads, pool = _kept(cached, rules, setting), (), None
    shown = _format_name(name, setting)
    return CacheSize(
        engine="transformers",
        version=setting.release.full_name,
        cache=setting.kind,
        k_format=shown,
        v_format=shown,
        layers=tuple(layers),
        overheads=overheads,
        transient_bytes=transient,
        step_tokens=setting.page if setting.kind == "paged" else 1,
        format_source=source,
        evidence="exact" if setting.release.ran else "derived",
        pool=pool,
        notes=(*history, *_notes(setting), *encoder_notes(cached, workload, rules)),
    )


def settle(geometry: Geometry, options: Options) -> Setting:
    """What generate makes of the options, or why it refuses them.

    Raises:
        UnsupportedError: the cache does not exist in this release, or not for this model.
    """
    version = release(options.version)
    kind = DEPRECATED.get(options.cache, options.cache)
    windows = True
    if kind == "dynamic_full":
        if version.dynamic_full is None:
            raise UnsupportedError(
                f"transformers {version.full_name} no longer accepts cache_implementation=dynamic_full",
                hint="Use --cache dynamic, or --engine transformers@5.11.",
            )
        windows = version.dynamic_full == "dynamic"
    if kind == "quantized":
        windows = version.has(QUANTIZED_REFUSES)
        if options.backend == "fp8" and not version.has(FP8_CACHE):
            raise UnsupportedError(f"transformers {version.full_name} has no fp8 cache", hint="It came with 5.21.")
    if geometry.model_type == "blt":
        raise UnsupportedError("transformers cannot build BLT's cache from its config: it has no num_hidden_layers")
    if geometry.model_type in OWN_CACHE and kind != "paged":
        kind = "dynamic"
    setting = Setting(kind, version, options, windows)
    if kind == "paged" and options.num_beams > 1:
        raise UnsupportedError("continuous batching searches no beams", hint="Leave out --num-beams.")
    if setting.beams > 1 and geometry.model_type in OWN_CACHE:
        raise UnsupportedError(f"{geometry.model_type}'s own cache cannot be reordered for beams")
    return setting


def make_rules(workload: Workload, setting: Setting, unit: Format) -> Rules:
    """The workload as the cache classes see it.

    Raises:
        UsageError: the prompt is longer than what is cached.
    """
    prompt = workload.prompt_tokens
    if prompt is not None and not 1 <= prompt <= workload.tokens:
        raise UsageError("--prompt must lie between 1 and the cached tokens", got=str(prompt))
    slots = setting.options.max_cache_len if setting.static else None
    return Rules(
        tokens=workload.tokens if slots is None else max(workload.tokens, slots),
        prompt=workload.tokens if prompt is None else prompt,
        decoded=min(1, workload.tokens - 1) if prompt is None else workload.tokens - prompt,
        sequences=workload.sequences * setting.beams,
        encoder_tokens=workload.encoder_tokens or 0,
        static=setting.static,
        activation=unit,
        windows=setting.windows,
    )


def _kept(geometry: Geometry, rules: Rules, setting: Setting) -> tuple[list[LayerBytes], int]:
    """Bytes of each layer, and what one more step holds beside them."""
    options = setting.options
    if setting.kind == "quantized":
        packing = quantized.quantization(options.backend, {n: getattr(options, n) for n in quantized.GROUPWISE})
        quantized.check(geometry, windows_too=not setting.windows)
        sizes = [quantized.quantized_layer(layer, rules, packing) for layer in geometry.layers]
    else:
        sizes = [layer_bytes(layer, rules) for layer in geometry.layers]
    layers = [LayerBytes(one.logical, one.held, one.after_prefill) for one in sizes]
    if setting.kind in ("offloaded", "offloaded_static"):
        only = options.offload_only_non_sliding
        layers = offloaded.place(geometry, layers, setting.static if only is None else only, setting.static)
    return layers, max((one.transient for one in sizes), default=0)


def _paged(
    plan: paged.Paged, geometry: Geometry, rules: Rules, setting: Setting
) -> tuple[list[LayerBytes], tuple[Overhead, ...], int, Pool | None]:
    options = setting.options
    layers = paged.layer_bytes(plan, geometry, rules.tokens, rules.sequences)
    rest = paged.padding(plan, rules.tokens, rules.sequences)
    sectors = None if options.num_blocks is None else plan.num_sectors(options.num_blocks)
    if sectors is None and options.kv_memory is not None:
        flash = options.attn_implementation.startswith(("flash", "paged|flash"))
        memory = paged.Memory(options.kv_memory, flash, options.max_num_batched_tokens)
        sectors = paged.sectors_for(plan, geometry, rules.activation, memory)
    return layers, (rest,), 0, None if sectors is None else paged.pool(plan, rules.tokens, sectors)


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


def _format_name(name: str, setting: Setting) -> str:
    if setting.kind != "quantized":
        return name
    options = setting.options
    return "fp8_e4m3" if options.backend == "fp8" else f"{options.backend}-{options.nbits or 4}bit"


def _notes(setting: Setting) -> list[str]:
    notes, asked = [], setting.options.cache
    if asked in DEPRECATED:
        notes.append(f"cache_implementation={asked} is a deprecated name; generate makes it {DEPRECATED[asked]}")
    if DEPRECATED.get(asked, asked) in STATIC and not setting.static:
        notes.append("this model brings its own cache and ignores cache_implementation")
    if setting.options.max_cache_len is not None and not setting.static:
        notes.append("max_cache_len is ignored by this cache: only static ones have slots")
    return notes


def encoder_notes(geometry: Geometry, workload: Workload, rules: Rules) -> tuple[str, ...]:
    """What is missing from the figure of a model with an encoder, as long as nobody said how much it yields."""
    if workload.encoder_tokens is not None:
        return ()
    found = [
        (store.span.tokens, store.entry.elements)
        for layer in geometry.layers
        for store in layer.stores
        if isinstance(store, Attention) and isinstance(store.span, Encoder)
    ]
    if not found:
        return ()
    per_token = rules.activation.bytes(sum(count for _, count in found)) * rules.sequences
    fixed = next((tokens for tokens, _ in found if tokens), None)
    usual = f"; this encoder always yields {fixed:,}: --encoder-ctx {fixed}" if fixed else ": add --encoder-ctx N"
    note = (
        f"the encoder's keys and values are not in these figures; they take {per_token:,} bytes "
        f"for each of its tokens{usual}"
    )
    return (note,)
