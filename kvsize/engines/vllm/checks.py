"""What vLLM refuses before it plans a cache: splits that do not divide, lengths beyond the model's, lost models.

vllm@0.33.0 config/model.py verify_with_parallel_config, _get_and_verify_max_len.
"""

from __future__ import annotations

from kvsize.engines.vllm import models
from kvsize.engines.vllm.groups import stages
from kvsize.engines.vllm.setup import Setup, indexed, latents
from kvsize.engines.vllm.specs import recurrent
from kvsize.errors import UnsupportedError
from kvsize.geometry import Attention, Chunked, Geometry, Heads, Sliding


def check(geometry: Geometry, setup: Setup, tokens: int) -> None:
    """Refuse what vLLM refuses.

    Raises:
        UnsupportedError: with the reason, and what would be accepted.
    """
    models.check_released(geometry, setup.rules)
    _check_length(geometry, setup, tokens)
    _check_heads(geometry, setup)
    _check_pipeline(geometry, setup)
    if setup.dcp > 1:
        _check_context_parallel(geometry, setup)


def context_limit(geometry: Geometry) -> int | None:
    """The longest request that vLLM derives from the config; None where the config sets no limit.

    Gemma 3 states its length with the factor already in it.
    """
    if geometry.max_tokens is None:
        return None
    factor = 1.0 if geometry.model_type.startswith("gemma3_") else geometry.context_factor
    return int(geometry.max_tokens * factor)


def _check_length(geometry: Geometry, setup: Setup, tokens: int) -> None:
    limit = context_limit(geometry)
    if limit is not None and setup.max_model_len > limit:
        raise UnsupportedError(
            f"vLLM refuses a --max-model-len of {setup.max_model_len:,}: the config says {limit:,} tokens",
            hint="vLLM itself lets VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 override this; kvsize sizes up to the limit.",
        )
    if tokens > setup.max_model_len:
        raise UnsupportedError(
            f"a request of {tokens:,} tokens is longer than --max-model-len {setup.max_model_len:,}",
            hint="Raise --max-model-len, or lower --ctx.",
        )
    if geometry.model_type in models.ENCODER_ONLY and setup.batch_tokens < setup.max_model_len:
        raise UnsupportedError(
            f"vLLM encodes a request in one step of at most {setup.batch_tokens:,} tokens",
            hint=f"Raise --max-num-batched-tokens to {setup.max_model_len}.",
        )


def _check_heads(geometry: Geometry, setup: Setup) -> None:
    heads = geometry.num_attention_heads
    attends = any(isinstance(store, Attention) for layer in geometry.layers for store in layer.stores)
    if attends and heads is not None and heads % setup.tp:
        raise UnsupportedError(
            f"vLLM refuses {setup.tp} tensor-parallel ranks: the model has {heads} attention heads",
            hint="Choose a --tensor-parallel-size that divides them.",
        )


def _check_pipeline(geometry: Geometry, setup: Setup) -> None:
    if setup.pp == 1:
        return
    if geometry.architecture in models.NO_PIPELINE:
        raise UnsupportedError(
            f"vLLM's {geometry.architecture} does not support pipeline parallelism",
            hint="Use --tensor-parallel-size.",
        )
    per_unit = models.caches_per_unit(geometry)
    if len(geometry.layers) // per_unit < setup.pp:
        raise UnsupportedError(f"{len(geometry.layers)} layers are too few for {setup.pp} pipeline stages")
    _check_sharing(geometry, stages(len(geometry.layers), setup.pp, per_unit))


def _check_sharing(geometry: Geometry, ranges: list[range]) -> None:
    """A layer can only share a cache of its own pipeline stage."""
    for index, layer in enumerate(geometry.layers):
        if layer.shares is not None and not any(index in span and layer.shares in span for span in ranges):
            raise UnsupportedError(
                f"layer {index} shares the cache of layer {layer.shares}, which is on another pipeline stage",
                hint="Use --tensor-parallel-size.",
            )


def _check_context_parallel(geometry: Geometry, setup: Setup) -> None:
    if setup.tp % setup.dcp:
        raise UnsupportedError(
            f"vLLM refuses {setup.dcp} context-parallel ranks of {setup.tp} tensor-parallel ones",
            hint="--decode-context-parallel-size must divide --tensor-parallel-size.",
        )
    spans = [s.span for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    if any(isinstance(span, (Sliding, Chunked)) for span in spans):
        raise UnsupportedError("vLLM has no decode context parallelism for windows", hint="Leave --dcp at 1.")
    if indexed(geometry) and setup.kv.name != "fp8_ds_mla":
        raise UnsupportedError(
            "sparse latent attention takes decode context parallelism only with an fp8_ds_mla cache",
            got=setup.kv.name,
            hint="Add --kv-cache-dtype fp8_ds_mla.",
        )
    if not latents(geometry):
        _check_replicas(geometry, setup)


def _check_replicas(geometry: Geometry, setup: Setup) -> None:
    """Context parallelism uses the ranks that would otherwise hold copies of the same KV heads."""
    entries = [s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    counts = [entry.count for entry in entries if isinstance(entry, Heads)]
    if not counts or recurrent(geometry):
        raise UnsupportedError("vLLM has no decode context parallelism for this model", hint="Leave --dcp at 1.")
    most = setup.tp // max(counts)
    queries = (geometry.num_attention_heads or 0) // max(counts)
    if setup.dcp > most or queries % setup.dcp:
        raise UnsupportedError(
            f"vLLM refuses {setup.dcp} context-parallel ranks: {max(counts)} KV heads on {setup.tp} ranks "
            f"leave {max(most, 1)} copies",
            hint="Raise --tensor-parallel-size, or lower --decode-context-parallel-size.",
        )
