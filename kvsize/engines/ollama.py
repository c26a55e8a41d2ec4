"""Ollama: starts llama-server with a stream of num_ctx cells for each of num_parallel requests.

Read from its source of 21 August 2026 (llm/llama_server.go, server/sched.go), which brings llama.cpp b10488; not run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsize.engines import CacheSize, Workload, llamacpp
from kvsize.engines.llamacpp.archs import arch_of
from kvsize.errors import UnsupportedError, UsageError
from kvsize.geometry import Geometry

VERSION = "2026-08-21"
LLAMA_CPP = "b10488"

LEAST_CTX = 4
# server/sched.go: one request at a time, whatever OLLAMA_NUM_PARALLEL says
ONE_AT_A_TIME = frozenset(
    "lfm2 lfm2moe nemotron_h qwen35 qwen35moe qwen3next qwen3vl qwen3vlmoe bert nomic-bert nomic-bert-moe".split()
)
# num_batch where nobody sets it: above so many tokens, if memory allows
BATCHES = ((32_768, 2048), (4096, 1024))
BATCH = 512


@dataclass(frozen=True, slots=True)
class Options:
    """Ollama's settings under llama.cpp's names.

    `n_ctx` is num_ctx, one request's cells; `n_parallel` OLLAMA_NUM_PARALLEL; `n_ubatch` num_batch; `n_gpu_layers`
    num_gpu; `flash_attn` OLLAMA_FLASH_ATTENTION.
    """

    n_ctx: int | None = None
    n_parallel: int | None = None
    n_ubatch: int | None = None
    flash_attn: str | None = None
    n_gpu_layers: int | None = None
    version: str = VERSION


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes of the caches of Ollama's llama-server.

    Raises:
        UsageError: a setting that means nothing.
        UnsupportedError: another release, two cache types, or what llama.cpp itself refuses.
    """
    if options.version != VERSION:
        raise UnsupportedError(f"Ollama {options.version[:40]} was not read", hint=f"Use --engine ollama@{VERSION}.")
    if workload.k_format != workload.v_format:
        raise UnsupportedError("OLLAMA_KV_CACHE_TYPE is one type for K and V", hint="llama.cpp itself can mix them.")
    asked = workload.sequences if options.n_parallel is None else options.n_parallel
    if asked < 1:
        raise UsageError("--parallel must be at least 1 for Ollama", got=str(asked))
    parallel = 1 if arch_of(geometry) in ONE_AT_A_TIME else asked
    wanted = workload.tokens if options.n_ctx is None else options.n_ctx
    if wanted < 1:
        raise UsageError("--ctx-size must be at least 1 for Ollama", got=str(wanted))
    num_ctx = max(min(wanted, geometry.max_tokens or wanted), LEAST_CTX)
    batch = options.n_ubatch or _batch(num_ctx)
    settings = llamacpp.Options(
        n_ctx=num_ctx * parallel,
        n_batch=batch,
        n_ubatch=batch,
        n_parallel=parallel,
        kv_unified=False,
        flash_attn=options.flash_attn,
        n_gpu_layers=options.n_gpu_layers,
        version=LLAMA_CPP,
    )
    inside = llamacpp.size(geometry, replace(workload, tokens=num_ctx, sequences=parallel), settings)
    notes = (*_notes(asked, parallel, wanted, num_ctx, options), *inside.notes)
    jump = options.n_ubatch is None and _batch(num_ctx) != _batch(num_ctx + inside.step_tokens)
    step = -inside.step_tokens if jump else inside.step_tokens
    return replace(inside, engine="ollama", version=VERSION, evidence="derived", step_tokens=step, notes=notes)


def _batch(num_ctx: int) -> int:
    return next((size for above, size in BATCHES if num_ctx > above), BATCH)


def _notes(asked: int, parallel: int, wanted: int, num_ctx: int, options: Options) -> tuple[str, ...]:
    found = [f"Ollama of {VERSION} runs llama.cpp {LLAMA_CPP}"]
    if parallel != asked:
        found.append("Ollama serves this model one request at a time, whatever OLLAMA_NUM_PARALLEL says")
    if num_ctx < wanted:
        found.append(f"Ollama cuts num_ctx to the {num_ctx:,} tokens that the model was trained on")
    if options.n_ubatch is None and _batch(num_ctx) > BATCH:
        found.append("num_batch as Ollama sets it where memory allows; windows are smaller with a smaller one")
    return tuple(found)
