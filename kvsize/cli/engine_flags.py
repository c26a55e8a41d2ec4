"""Every engine's settings as command-line flags: one table, read by each command that sizes a cache.

A row is data only, so that building the command line imports no engine. `field` is the name in the engine's Options;
an engine without that field refuses the flag.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting: its Options field, its spellings, its type, and its line in --help."""

    field: str
    names: tuple[str, ...]
    type: type
    help: str
    panel: str


def _rows(panel: str, *rows: tuple[str, str, type, str]) -> tuple[Flag, ...]:
    return tuple(Flag(field, tuple(names.split()), kind, text, panel) for field, names, kind, text in rows)


FLAGS: tuple[Flag, ...] = (
    *_rows(
        "transformers",
        ("cache", "--cache", str, "cache_implementation: dynamic, static, quantized, offloaded, paged …"),
        ("num_beams", "--num-beams", int, "Beams of each request."),
        ("num_return_sequences", "--num-return-sequences", int, "Answers to each request."),
        ("max_cache_len", "--max-cache-len", int, "Slots of a static cache (default: --ctx)."),
        ("backend", "--backend", str, "Quantised cache: quanto, hqq or fp8."),
        ("nbits", "--nbits", int, "Quantised cache: bits of an element."),
        ("q_group_size", "--q-group-size", int, "Quantised cache: elements that share a scale."),
        ("residual_length", "--residual-length", int, "Quantised cache: newest tokens kept unquantised."),
        ("axis_key", "--axis-key", int, "Quantised cache: axis of K's groups."),
        ("axis_value", "--axis-value", int, "Quantised cache: axis of V's groups."),
        ("attn_implementation", "--attn-implementation", str, "Paged cache: sdpa, eager or flash_attention_2."),
        (
            "offload_only_non_sliding",
            "--offload-only-non-sliding",
            bool,
            "Offloaded: keep windows on the device.",
        ),
        ("num_blocks", "--num-blocks", int, "Paged cache: blocks of the pool."),
    ),
    *_rows(
        "servers",
        ("kv_memory", "--kv-memory", str, "Bytes for the cache on each rank, such as 60GiB: what do they hold?"),
        ("tensor_parallel_size", "--tensor-parallel-size --tp", int, "Tensor parallel ranks."),
        ("pipeline_parallel_size", "--pipeline-parallel-size --pp", int, "Pipeline stages."),
        (
            "max_model_len",
            "--max-model-len --context-length",
            int,
            "The engine's limit on a request (default: --ctx).",
        ),
        ("num_speculative_tokens", "--num-speculative-tokens", int, "Tokens drafted ahead."),
    ),
    *_rows(
        "vLLM",
        ("block_size", "--block-size", int, "Tokens of a block."),
        ("decode_context_parallel_size", "--decode-context-parallel-size --dcp", int, "Ranks that share one context."),
        ("max_num_batched_tokens", "--max-num-batched-tokens", int, "Tokens of one scheduler step."),
        ("enable_prefix_caching", "--enable-prefix-caching", bool, "Prefix caching on or off."),
        ("async_scheduling", "--async-scheduling", bool, "Two steps in flight, or one."),
        ("disable_hybrid_kv_cache_manager", "--disable-hybrid-kv-cache-manager", bool, "Charge windows in full."),
        ("mamba_cache_dtype", "--mamba-cache-dtype", str, "Format of convolution states."),
        ("mamba_ssm_cache_dtype", "--mamba-ssm-cache-dtype", str, "Format of recurrent states."),
        ("speculative_method", "--speculative-method", str, "Who drafts: ngram, or mtp (one more layer)."),
        (
            "device_capability",
            "--device-capability",
            str,
            "Compute capability that picks backends: 9.0 …",
        ),
    ),
    *_rows(
        "SGLang",
        ("page_size", "--page-size", int, "Tokens of a page (also: transformers' paged cache)."),
        ("swa_full_tokens_ratio", "--swa-full-tokens-ratio", float, "Window tokens for each full token."),
        ("mamba_full_memory_ratio", "--mamba-full-memory-ratio", float, "Bytes of states for each byte of attention."),
        ("max_mamba_cache_size", "--max-mamba-cache-size", int, "State slots."),
        ("max_running_requests", "--max-running-requests", int, "Concurrent requests."),
        ("disable_radix_cache", "--disable-radix-cache", bool, "No prefix sharing."),
        ("max_total_tokens", "--max-total-tokens", int, "Most tokens of the pool."),
        ("chunked_prefill_size", "--chunked-prefill-size", int, "Tokens of one prefill chunk."),
        ("mamba_radix_cache_strategy", "--mamba-radix-cache-strategy", str, "auto, no_buffer or extra_buffer."),
        ("data_parallel_size", "--data-parallel-size --dp-size", int, "Groups of data-parallel attention."),
        ("dsa_decode_backend", "--dsa-decode-backend", str, "trtllm keeps a plain fp8 latent."),
        ("num_draft_layers", "--num-draft-layers", int, "Layers of the draft model."),
    ),
    *_rows(
        "llama.cpp",
        ("n_ctx", "--ctx-size --n-ctx", int, "Cells of the context (default: --ctx x sequences)."),
        ("n_batch", "--batch-size", int, "Logical batch."),
        ("n_ubatch", "--ubatch-size", int, "Physical batch."),
        ("n_parallel", "--parallel", int, "Sequences (default: --batch)."),
        ("kv_unified", "--kv-unified", bool, "One pool for all sequences, or a stream each."),
        ("flash_attn", "--flash-attn", str, "on, off or auto."),
        ("cache_type_k", "--cache-type-k", str, "Format of K: f16, q8_0 …"),
        ("cache_type_v", "--cache-type-v", str, "Format of V."),
        ("swa_full", "--swa-full", bool, "Full-size caches for windows."),
        ("n_gpu_layers", "--n-gpu-layers", int, "Layers on the GPU."),
        ("kv_offload", "--kv-offload", bool, "Keep the cache on the GPU."),
    ),
    *_rows(
        "MLX",
        ("kv_bits", "--kv-bits", int, "Quantised cache: bits of an element."),
        ("kv_group_size", "--kv-group-size", int, "Quantised cache: elements that share a scale."),
        ("quantized_kv_start", "--quantized-kv-start", int, "Tokens before quantisation sets in."),
        ("max_kv_size", "--max-kv-size", int, "Cells of a rotating cache."),
        ("prefill_step_size", "--prefill-step-size", int, "Tokens of one prefill step."),
    ),
    *_rows(
        "TensorRT-LLM",
        ("tokens_per_block", "--tokens-per-block", int, "Tokens of a block."),
        ("max_attention_window", "--max-attention-window", str, "Windows of the layers, repeating: 4096,131072."),
    ),
)


# What fit asks beside: the launch itself, and figures that replace an estimate.
LAUNCH_FLAGS: tuple[Flag, ...] = _rows(
    "the launch",
    ("gpu_memory_utilization", "--gpu-memory-utilization", float, "Share of the GPU that vLLM may use."),
    ("mem_fraction_static", "--mem-fraction-static", float, "Share of the free memory that SGLang may use."),
    ("max_num_seqs", "--max-num-seqs", int, "Sequences of one step."),
    ("enforce_eager", "--enforce-eager", bool, "No CUDA graphs."),
)
OVERRIDES: tuple[Flag, ...] = _rows(
    "the budget, in bytes",
    ("activations", "--activations", str, "As measured: 2GiB …"),
    ("cuda_graphs", "--cuda-graphs", str, "As measured."),
    ("non_torch", "--non-torch", str, "As measured."),
    ("reserve", "--reserve", str, "Keep this free."),
)


METAVARS = {int: "N", float: "X", str: "NAME"}


def _parameter(flag: Flag) -> inspect.Parameter:
    names = [f"{name}/--no-{name.removeprefix('--')}" if flag.type is bool else name for name in flag.names]
    option = typer.Option(
        *names,
        help=flag.help,
        rich_help_panel=f"Settings of {flag.panel}",
        show_default=False,
        metavar=METAVARS.get(flag.type),
    )
    annotation = Annotated[flag.type | None, option]  # type: ignore[name-defined]
    return inspect.Parameter(flag.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command that ends in `**settings: Any`, taking every flag of the table as a keyword."""
    return with_flags(command, FLAGS)


def with_flags(command: Callable[..., None], flags: tuple[Flag, ...]) -> Callable[..., None]:
    """The same with flags of more tables."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    extra = [_parameter(flag) for flag in flags]
    command.__signature__ = signature.replace(parameters=[*own, *extra])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *extra)}
    return command
