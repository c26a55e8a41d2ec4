"""Hugging Face transformers: what its cache objects really hold.

Checked against caches of every architecture that transformers 5.23.0 can run (validate/truth). One module a kind of
cache: growing (dynamic, static), quantized, offloaded, paged; versions holds what changed between releases.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import CacheSize, Evidence, LayerBytes, Overhead, Pool, Workload
from kvsize.engines.transformers import offloaded, paged, quantized
from kvsize.engines.transformers.growing import Rules, elements, layer_bytes
from kvsize.engines.transformers.versions import VERSION, Release, release
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format, format_of
from kvsize.geometry import Attention, Encoder, Geometry, Latent

CACHES = ("dynamic", "dynamic_full", "static", "offloaded", "offloaded_static", "quantized", "paged")
# generation/configuration_utils.py: deprecated names, and what generate makes of them.
DEPRECATED = {
    "sliding_window": "static",
    "hybrid": "static",
    "hybrid_chunked": "static",
    "offloaded_hybrid": "offloaded_static",
    "offloaded_hybrid_chunked": "offloaded_static",
}
# Their modelling code brings its own cache and ignores the setting. generation/utils.py _supports_default_dynamic_cache
OWN_CACHE = ("minimax", "reformer", "rwkv", "xlnet", "xlstm")


POSITIVE = (
    *("num_beams", "num_return_sequences", "max_cache_len", "page_size", "num_blocks"),
    *("nbits", "q_group_size", "residual_length"),
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
    page_size: int = paged.DEFAULT_PAGE
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

    @property
    def kind(self) -> str:
        """The cache's present name."""
        return DEPRECATED.get(self.cache, self.cache)


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of a transformers cache, all sequences (and their beams) together.

    Raises:
        UnsupportedError: this cache class refuses this model, or this release this cache.
    """
    rules_of = release(options.version)
    name, source = kv_format(geometry, workload)
    refuse(geometry, workload, options, rules_of)
    rules = make_rules(geometry, workload, options, rules_of, format_of(name))
    layers, overheads, transient, pool = _sized(geometry, rules, options)
    return CacheSize(
        engine="transformers",
        version=options.version,
        cache=options.kind,
        k_format=_format_name(name, options),
        v_format=_format_name(name, options),
        layers=tuple(layers),
        overheads=overheads,
        transient_bytes=transient,
        step_tokens=options.page_size if options.kind == "paged" else 1,
        format_source=source,
        evidence=_evidence(options),
        pool=pool,
        notes=_notes(geometry, workload, options, rules),
    )


def make_rules(geometry: Geometry, workload: Workload, options: Options, rules_of: Release, unit: Format) -> Rules:
    """The workload as the cache classes see it."""
    kind = options.kind if geometry.model_type not in OWN_CACHE else "dynamic"
    static = kind in ("static", "offloaded_static")
    tokens = max(workload.tokens, options.max_cache_len or 0) if static else workload.tokens
    prompt = workload.prompt_tokens
    return Rules(
        tokens=tokens,
        prompt=workload.tokens if prompt is None else prompt,
        decoded=min(1, workload.tokens - 1) if prompt is None else workload.tokens - prompt,
        sequences=workload.sequences * max(options.num_beams, options.num_return_sequences),
        encoder_tokens=workload.encoder_tokens or 0,
        static=static,
        activation=unit,
        release=rules_of,
        windows=kind != "dynamic_full",
    )


Sized = tuple[list[LayerBytes], tuple[Overhead, ...], int, Pool | None]


def _sized(geometry: Geometry, rules: Rules, options: Options) -> Sized:
    if options.kind == "paged":
        return _paged(geometry, rules, options)
    if options.kind == "quantized":
        packing = quantized.quantization(options.backend, {n: getattr(options, n) for n in quantized.GROUPWISE})
        quantized.check(geometry)
        sizes = [quantized.quantized_layer(layer, rules, packing) for layer in geometry.layers]
    else:
        sizes = [layer_bytes(layer, rules) for layer in geometry.layers]
    layers = [LayerBytes(one.logical, one.held, one.after_prefill) for one in sizes]
    if options.kind in ("offloaded", "offloaded_static"):
        only = options.offload_only_non_sliding
        layers = offloaded.place(geometry, layers, rules.static if only is None else only, rules.static)
    return layers, (), max((one.transient for one in sizes), default=0), None


def _paged(geometry: Geometry, rules: Rules, options: Options) -> Sized:
    plan = paged.plan(geometry, rules.activation, options.page_size)
    layers = paged.layer_bytes(plan, geometry, rules.tokens, rules.sequences)
    rest = paged.padding(plan, rules.tokens, rules.sequences)
    sectors = None if options.num_blocks is None else plan.num_sectors(options.num_blocks)
    if sectors is None and options.kv_memory is not None:
        flash = options.attn_implementation.startswith(("flash", "paged|flash"))
        memory = paged.Memory(options.kv_memory, flash, options.max_num_batched_tokens)
        sectors = paged.sectors_for(plan, geometry, rules.activation, memory)
    return layers, (rest,), 0, None if sectors is None else paged.pool(plan, rules.tokens, sectors)


def refuse(geometry: Geometry, workload: Workload, options: Options, rules_of: Release) -> None:
    """What generate refuses before it builds a cache.

    Raises:
        UnsupportedError: the cache does not exist in this release, or not for this model.
    """
    if options.kind == "dynamic_full" and not rules_of.dynamic_full:
        raise UnsupportedError(
            f"transformers {options.version} no longer accepts cache_implementation=dynamic_full",
            hint="Use --cache dynamic, or --engine transformers@5.13.1.",
        )
    if geometry.model_type == "blt" and options.kind != "dynamic_full":
        raise UnsupportedError("transformers cannot build BLT's cache from its config (no num_hidden_layers)")
    beams = max(options.num_beams, options.num_return_sequences)
    if beams > 1 and geometry.model_type in OWN_CACHE:
        raise UnsupportedError(f"{geometry.model_type}'s own cache cannot be reordered for beams")
    if workload.prompt_tokens is not None and not 1 <= workload.prompt_tokens <= workload.tokens:
        raise UsageError("--prompt must lie between 1 and the cached tokens", got=str(workload.prompt_tokens))


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


def _format_name(name: str, options: Options) -> str:
    if options.kind != "quantized":
        return name
    return "fp8_e4m3" if options.backend == "fp8" else f"{options.backend}-{options.nbits or 4}bit"


def _evidence(options: Options) -> Evidence:
    checked = {VERSION, "5.13.1", "5.23", "5.13"}
    return "exact" if options.version in checked else "derived"


def _notes(geometry: Geometry, workload: Workload, options: Options, rules: Rules) -> tuple[str, ...]:
    notes = []
    if options.cache != options.kind:
        notes.append(f"cache_implementation={options.cache} is a deprecated name; generate makes it {options.kind}")
    if options.kind in ("static", "offloaded_static") and geometry.model_type in OWN_CACHE:
        notes.append(f"{geometry.model_type} brings its own cache and ignores cache_implementation")
    if options.max_cache_len is not None and not rules.static:
        notes.append("max_cache_len is ignored by this cache: only static ones have slots")
    if not rules.release.compressed_latent and any(_has_latent(layer.stores) for layer in geometry.layers):
        notes.append(f"transformers {options.version} caches every head's K and V, not the latent")
    return (*notes, *encoder_notes(geometry, workload, rules))


def _has_latent(stores: tuple[object, ...]) -> bool:
    return any(isinstance(store, Attention) and isinstance(store.entry, Latent) for store in stores)


def encoder_notes(geometry: Geometry, workload: Workload, rules: Rules) -> tuple[str, ...]:
    """What is missing from the figure of a model with an encoder, as long as nobody said how much it yields."""
    if workload.encoder_tokens is not None:
        return ()
    spans = [
        (store.span, elements(store.entry, rules.release))
        for layer in geometry.layers
        for store in layer.stores
        if isinstance(store, Attention) and isinstance(store.span, Encoder)
    ]
    if not spans:
        return ()
    per_token = rules.activation.bytes(sum(count for _, count in spans)) * rules.sequences
    fixed = next((span.tokens for span, _ in spans if isinstance(span, Encoder) and span.tokens), None)
    usual = f"; this encoder always yields {fixed:,}: --encoder-ctx {fixed}" if fixed else ": add --encoder-ctx N"
    note = (
        f"the encoder's keys and values are not in these figures; they take {per_token:,} bytes "
        f"for each of its tokens{usual}"
    )
    return (note,)
