"""mem_fraction_static as SGLang sets it when nobody does: what it leaves for activations, graphs and images.

sglang@0.5.23 arg_groups/memory_hook.py, arg_groups/cuda_graph_hook.py. Sizes in MiB, as there.
"""

from __future__ import annotations

GIB = 1024

# (below this much GPU memory in GiB, chunked_prefill_size, decode graphs' largest batch, the same from 4 ranks on)
CAPACITY = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
)
LARGEST = (16384, 512)
FLOOR_ABOVE, FLOOR = 60, 10  # GiB
LEAST_CHUNK = 2048
IMAGES_MIB = 100  # SGLANG_VLM_CACHE_SIZE_MB, taken off the pool of a model that sees


def defaults(gpu_mib: float, tensor_parallel: int) -> tuple[int, int]:
    """(chunked_prefill_size, largest decode batch with a graph) for a GPU of that memory."""
    for below, chunk, batch, wide in CAPACITY:
        if gpu_mib < below * GIB:
            return chunk, wide if tensor_parallel >= 4 else batch
    return LARGEST


def prefill_graphs(tokens: int) -> int:
    """How many prefill sizes get a graph, up to `tokens`."""
    sizes = (*range(4, 36, 4), *range(48, 272, 16), *range(288, 544, 32), *range(576, 1088, 64))
    sizes += (*range(1280, 4352, 256), *range(4608, tokens + 1, 512))
    return sum(size <= tokens for size in sizes)


def reserved_mib(
    gpu_mib: float,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    attention_replicas: int = 1,
    latent: bool = False,
    chunked_prefill: int | None = None,
) -> float:
    """MiB that the default leaves to activations and graphs.

    `latent`: an MLA model, whose prefill graphs cost a flat 1.5 GiB. `chunked_prefill` None: by the GPU's memory.
    """
    chunk, batch = defaults(gpu_mib, tensor_parallel)
    chunk = chunked_prefill or chunk
    reserved = 512 + 1.5 * max(chunk, LEAST_CHUNK) + tensor_parallel * pipeline_parallel / 8 * GIB
    reserved += batch * 2
    if attention_replicas > 1:
        reserved += batch * attention_replicas * (4.5 if batch > 300 else 3)
    reserved += 1.5 * GIB if latent else 8 * prefill_graphs(chunk)
    return max(reserved, FLOOR * GIB) if gpu_mib > FLOOR_ABOVE * GIB else reserved


def mem_fraction_static(
    gpu_mib: float,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    attention_replicas: int = 1,
    latent: bool = False,
    chunked_prefill: int | None = None,
) -> float:
    """The default fraction of the memory free at start that weights and cache may take, for a model without images."""
    reserved = reserved_mib(
        gpu_mib,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        attention_replicas=attention_replicas,
        latent=latent,
        chunked_prefill=chunked_prefill,
    )
    return round((gpu_mib - reserved) / gpu_mib, 3)


def vision_factor(layers: int, hidden: int) -> float:
    """What a fraction that nobody set is multiplied by for a model that sees: less for a larger encoder."""
    likeness = layers * hidden**2 / (24 * 1024**2)  # to ViT-L/14
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (likeness - 1)))
