"""Which GPUs an engine's own pages say it runs on. Others are never advised; one that is named is planned with a note.

vLLM docs/getting_started/installation/gpu.md, SGLang docs/platforms, TensorRT-LLM docs/legacy/reference/support-matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvsize.gpus import Gpu

MAKERS: Mapping[str, str] = {
    "vllm": "nvidia amd intel",
    "sglang": "nvidia amd intel",
    "trtllm": "nvidia",
    "mlx": "apple",
}
CUDA: Mapping[str, tuple[int, int]] = {"vllm": (7, 0), "sglang": (7, 5), "trtllm": (8, 0)}  # from which capability on
AMD: Mapping[str, str] = {
    "vllm": "gfx90a gfx942 gfx950 gfx1100 gfx1101 gfx1150 gfx1151 gfx1200 gfx1201",
    "sglang": "gfx942 gfx950",
}


def runs(engine: str, gpu: Gpu) -> bool:
    """Whether the engine is said to run there; what nobody says of a GPU does not count against it."""
    if gpu.vendor != "any" and gpu.vendor not in MAKERS.get(engine, gpu.vendor).split():
        return False
    if gpu.capability is None:
        return True
    if gpu.vendor == "amd":
        return gpu.capability in AMD.get(engine, gpu.capability).split()
    major, _, minor = gpu.capability.partition(".")
    return (int(major), int(minor or 0)) >= CUDA.get(engine, (0, 0))
