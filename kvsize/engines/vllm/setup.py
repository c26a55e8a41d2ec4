"""A request and vLLM's settings, resolved as `vllm serve` resolves them: defaults filled in, formats found, checked."""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import Workload
from kvsize.engines.vllm import models
from kvsize.engines.vllm.formats import KV_FORMATS, KvFormat, capability, find, model_dtype, name_of
from kvsize.engines.vllm.versions import VERSION, Release, release
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import Attention, Geometry, Latent, Recurrent

DTYPES = ("auto", "float32", "float16", "bfloat16")
COUNTS = (
    *("kv_memory", "tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"),
    *("max_model_len", "block_size", "max_num_batched_tokens"),
)
METHODS = ("ngram", "mtp")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of `vllm serve`, under its flags' names; None is vLLM's own default.

    `kv_memory` is bytes of one rank (`--kv-cache-memory-bytes`). `max_model_len` None: the request's tokens.
    `device_capability` picks kernels and with them block sizes (None: Hopper, 9.0).
    """

    version: str = VERSION
    kv_memory: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    max_model_len: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    disable_hybrid_kv_cache_manager: bool = False
    num_speculative_tokens: int = 0
    speculative_method: str = "ngram"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    device_capability: str | None = None

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"--{name.replace('_', '-')} must be a whole number, at least 1", got=str(value)[:40])
        if self.num_speculative_tokens < 0:
            raise UsageError("--num-speculative-tokens must not be negative", got=str(self.num_speculative_tokens))
        for name, known in (
            ("mamba_cache_dtype", DTYPES),
            ("mamba_ssm_cache_dtype", DTYPES),
            ("speculative_method", METHODS),
        ):
            if getattr(self, name) not in known:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} takes one of " + ", ".join(known), got=str(getattr(self, name))[:40])


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the planning reads. `device` is a major compute capability, `kv` the cache's format,
    `dense` the model's own dtype as one."""

    rules: Release
    device: int
    kv: KvFormat
    dense: KvFormat
    kv_source: str
    tp: int
    pp: int
    dcp: int
    max_model_len: int
    block_size: int | None
    batch_tokens: int
    in_flight_tokens: int
    prefix_caching: bool
    hybrid_manager: bool
    speculative: int
    draft_layers: int
    conv_dtype: str
    ssm_dtype: str


def resolve(geometry: Geometry, workload: Workload, options: Options) -> Setup:
    """The settings as this release would run them on this model.

    Raises:
        UsageError, UnsupportedError: a setting that means nothing, or that vLLM refuses.
    """
    rules = release(options.version)
    device, kv, source = _kv_format(geometry, workload, options.device_capability)
    batch = options.max_num_batched_tokens or default_batch_tokens(rules, device)
    hybrid = not options.disable_hybrid_kv_cache_manager and rules.hybrid_manager
    draft = options.num_speculative_tokens > 0 and options.speculative_method == "mtp"
    if draft and geometry.model_type not in models.MTP:
        raise UnsupportedError(
            f"no rule for the MTP layers of {geometry.model_type}", hint="Modelled: " + ", ".join(models.MTP) + "."
        )
    return Setup(
        rules=rules,
        device=device,
        kv=kv,
        dense=KV_FORMATS[model_dtype(geometry)],
        kv_source=source,
        tp=options.tensor_parallel_size,
        pp=options.pipeline_parallel_size,
        dcp=options.decode_context_parallel_size,
        max_model_len=options.max_model_len or workload.tokens,
        block_size=options.block_size,
        batch_tokens=batch,
        in_flight_tokens=batch * _batches_in_flight(rules, options),
        prefix_caching=_prefix_caching(geometry, rules, options),
        hybrid_manager=hybrid,
        speculative=options.num_speculative_tokens,
        draft_layers=int(draft),
        conv_dtype=options.mamba_cache_dtype,
        ssm_dtype=options.mamba_ssm_cache_dtype,
    )


def default_batch_tokens(rules: Release, device: int) -> int:
    """`vllm serve`'s own --max-num-batched-tokens. engine/arg_utils.py: by GPU memory, here that of the usual GPUs."""
    if device == 10:
        return 16384 if rules.large_gpu_batch else 8192  # 160 GiB and up
    return 8192 if device == 9 else 2048  # 70 GiB and up, or smaller (and any A100)


def _batches_in_flight(rules: Release, options: Options) -> int:
    """config/vllm.py max_concurrent_batches: one for each pipeline stage, and one more under async scheduling."""
    if not rules.batches_in_flight:
        return 1
    given = options.async_scheduling
    return options.pipeline_parallel_size + int(rules.async_scheduling if given is None else given)


def _prefix_caching(geometry: Geometry, rules: Release, options: Options) -> bool:
    """config/model.py is_prefix_caching_supported for models with states, unless said otherwise; others pay nothing."""
    if options.enable_prefix_caching is not None:
        return options.enable_prefix_caching
    stores = [store for layer in geometry.layers for store in layer.stores]
    return rules.hybrid_prefix_caching and not all(isinstance(store, Recurrent) for store in stores)


def _kv_format(geometry: Geometry, workload: Workload, given_device: str | None) -> tuple[int, KvFormat, str]:
    if workload.k_format != workload.v_format:
        raise UnsupportedError("vLLM keeps K and V in one format", hint="llama.cpp can mix formats.")
    name, source = name_of(workload.k_format), "given"
    if name == "auto" and geometry.kv_scheme is not None:
        name, source = geometry.kv_scheme, "the checkpoint's own KV cache scheme"
    device = capability(given_device, name)
    if name == "auto":
        name, source = _auto(geometry, device)
    asked = name
    if geometry.model_type in models.INDEXED:
        name = _indexed_name(name, source, device)
    if name != asked:
        source = f"what vLLM's sparse attention keeps for {asked}"
    kv = find(name, device)
    if geometry.model_type in models.IGNORES_KV_FORMAT:
        kv, source = KV_FORMATS[model_dtype(geometry)], "the model's dtype: vLLM's Falcon ignores --kv-cache-dtype"
    return device, kv, source


def _auto(geometry: Geometry, device: int) -> tuple[str, str]:
    """The model's dtype; models/config.py GlmMoeDsaForCausalLM has a default of its own."""
    if geometry.model_type == "glm_moe_dsa" and device == 10:
        return "fp8_e4m3", "vLLM's default for GLM's sparse attention on compute capability 10"
    dtype = model_dtype(geometry)
    return (
        dtype,
        "config" if geometry.dtype == dtype else f"vLLM computes in {dtype} where the config names no 16-bit dtype",
    )


def _indexed_name(name: str, source: str, device: int) -> str:
    """mla_attention.py _canonicalize_sparse_mla_kv_cache_dtype, with the backend that platforms/cuda.py picks."""
    if device == 9 and name == "fp8":
        return "fp8_ds_mla"
    if device == 12 and (name in ("fp8", "fp8_e4m3") or source != "given"):
        return "fp8_ds_mla"
    return name


def indexed(geometry: Geometry) -> bool:
    """Whether the model has a sparse-attention indexer over latents."""
    return geometry.model_type in models.INDEXED


def latents(geometry: Geometry) -> bool:
    """Whether vLLM caches latents for this model."""
    if geometry.model_type in models.EXPANDED_LATENT:
        return False
    entries = (s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention))
    return any(isinstance(entry, Latent) for entry in entries)
