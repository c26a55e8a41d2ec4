"""Published formulas for the size of a KV cache: what each says, who published it, and what it was meant for.

Each is evaluated as its source states it, at 2 bytes an element, beyond its scope too: that is how such formulas are
used. One that needs what a model lacks (a parameter count, a latent) says so instead of a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvsize.audit.formulas import (
    Case,
    fifth_and_two_gib,
    fifth_of_weights,
    hf_mem,
    hidden_by_heads,
    hidden_size,
    kv_heads,
    kv_heads_of_hidden,
    latent_row,
    llama_31_table,
    lmcache,
    local_and_global,
    nothing,
    one_megabyte,
    query_heads,
    twice_hidden,
    vllm_06,
    whichllm,
)


@dataclass(frozen=True, slots=True)
class Published:
    """One formula. `compute` gives the bytes of a case, or raises InapplicableError with the reason why it has none.

    `published` is a date, or as much of one as is known; of a program that says none, when it was read.
    """

    id: str
    name: str
    arithmetic: str
    title: str
    url: str
    published: str
    scope: str
    compute: Callable[[Case], int]


_NVIDIA = (
    "Mastering LLM Techniques: Inference Optimization",
    "https://developer.nvidia.com/blog/mastering-llm-techniques-inference-optimization/",
    "2023-11-17",
)
_DEEPSEEK = ("DeepSeek-V2, Table 1", "https://arxiv.org/abs/2405.04434", "2024-05-07")
_MHA = "models with a KV head for each query head"
_MHA_HIDDEN = "models with a KV head for each query head, and heads x head_dim = hidden_size"

PUBLISHED: tuple[Published, ...] = (
    Published(
        "kipply",
        "kipply",
        "2 x 2 x layers x heads x d_head",
        "Transformer Inference Arithmetic",
        "https://kipp.ly/transformer-inference-arithmetic/",
        "2022",
        _MHA,
        query_heads,
    ),
    Published(
        "flexgen",
        "FlexGen",
        "4 x layers x hidden x (s + n)",
        "FlexGen: High-Throughput Generative Inference of LLMs with a Single GPU",
        "https://arxiv.org/abs/2303.06865",
        "2023-03-13",
        "OPT-175B in FP16",
        hidden_size,
    ),
    Published(
        "eleuther",
        "EleutherAI 1.2x",
        "0.2 x weights, for all but weights",
        "Transformer Math 101, Total Inference Memory",
        "https://blog.eleuther.ai/transformer-math/#total-inference-memory",
        "2023-04-18",
        "a rule of thumb; accelerate's documentation and GPUStack repeat it",
        fifth_of_weights,
    ),
    Published(
        "ray-numbers",
        "Ray LLM numbers",
        "1 MB a token",
        "Numbers every LLM Developer should know",
        "https://github.com/ray-project/llm-numbers",
        "2023-05-17",
        "a 13B model",
        one_megabyte,
    ),
    Published(
        "pagedattention",
        "PagedAttention",
        "2 x hidden x layers x 2 B",
        "Efficient Memory Management for Large Language Model Serving with PagedAttention",
        "https://arxiv.org/abs/2309.06180",
        "2023-09-12",
        "OPT-13B: 800 KB a token",
        hidden_size,
    ),
    Published(
        "hf-production",
        "HF in production",
        "2 x layers x n_head x (n_embd // n_head)",
        "Optimizing your LLM in production",
        "https://huggingface.co/blog/optimize-llm",
        "2023-09-15",
        "said of OctoCoder, a StarCoder, which keeps one KV head for 48 query heads",
        hidden_by_heads,
    ),
    Published(
        "gpu-poor",
        "gpu_poor",
        "2 x 2 x 2 x hidden x layers",
        "GPU poor: src/App.js",
        "https://github.com/RahulSChand/gpu_poor",
        "2023-09",
        "any model, from hidden_size and layers",
        twice_hidden,
    ),
    Published(
        "databricks",
        "Databricks",
        "2 x 2 x layers x (d_model / n_heads) x n_kv_heads",
        "LLM Inference Performance Engineering: Best Practices",
        "https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices",
        "2023-10-12",
        "grouped heads of hidden_size / heads each, such as Llama 2's",
        kv_heads_of_hidden,
    ),
    Published(
        "nvidia-heads", "NVIDIA (num_heads)", "2 x layers x num_heads x dim_head x 2 B", *_NVIDIA, _MHA, query_heads
    ),
    Published(
        "nvidia-hidden", "NVIDIA (hidden_size)", "2 x layers x hidden_size x 2 B", *_NVIDIA, _MHA_HIDDEN, hidden_size
    ),
    Published(
        "baseten",
        "Baseten",
        "2 x 2 x n_layers x d_model",
        "A guide to LLM inference and performance",
        "https://www.baseten.co/blog/llm-transformer-inference-guide/",
        "2023-11-17",
        "Llama 2 7B",
        hidden_size,
    ),
    Published(
        "xinference",
        "xinference",
        "2 x 2 B x hidden x layers",
        "xinference cal-model-mem: model/llm/memory.py",
        "https://github.com/xorbitsai/inference",
        "2026-11",
        "any model, from hidden_size and layers; a port of gpu_poor without its second 2",
        hidden_size,
    ),
    Published(
        "deepseek-gqa",
        "DeepSeek-V2 (GQA)",
        "2 x n_g x d_h x l",
        *_DEEPSEEK,
        "the textbook formula: every layer attends to everything, with grouped heads",
        kv_heads,
    ),
    Published(
        "deepseek-mla",
        "DeepSeek-V2 (MLA)",
        "(d_c + d_h^R) x l",
        *_DEEPSEEK,
        "multi-head latent attention",
        latent_row,
    ),
    Published(
        "hf-llama31",
        "HF Llama 3.1",
        "2 x layers x KV heads x 128, 16 for 405B",
        "Llama 3.1 - 405B, 70B & 8B with multilinguality and long context",
        "https://huggingface.co/blog/llama31",
        "2024-07-23",
        "Llama 3.1 of 8B, 70B and 405B; GiB printed as GB, 128k as 128,000",
        llama_31_table,
    ),
    Published(
        "vllm-0.6",
        "vLLM 0.6",
        "2 x layers x KV heads x head_size, pages of 16",
        "vLLM's first engine: vllm/worker/cache_engine.py",
        "https://github.com/vllm-project/vllm/blob/017e7a4cea78f72b95f2ee3cbfa85a1f8981bd2c/vllm/worker/cache_engine.py",
        "2024-11",
        "what that engine allocated: windows in full",
        vllm_06,
    ),
    Published(
        "lmcache",
        "LMCache calculator",
        "2 x layers x KV heads x hidden / heads",
        "KV Cache Size Calculator",
        "https://lmcache.ai/kv_cache_calculator.html",
        "2026-11",
        "the models of its list; DeepSeek's latent and Qwen3's head_dim by name",
        lmcache,
    ),
    Published(
        "gemma3-report",
        "Gemma 3 report",
        "global x tokens + local x window",
        "Gemma 3 Technical Report, Figures 5 and 6",
        "https://arxiv.org/abs/2503.19786",
        "2025-03-25",
        "layers that slide beside layers that see everything, with equal heads",
        local_and_global,
    ),
    Published(
        "hf-mem",
        "hf-mem 0.5",
        "2 x (full x ctx + sliding x window) x KV heads x d",
        "hf-mem: safetensors/kv_cache.py, since pull request 61",
        "https://github.com/alvarobartt/hf-mem/pull/61",
        "2026-05-11",
        "safetensors models, from the keys that the file holds",
        hf_mem,
    ),
    Published(
        "whichllm",
        "whichllm 0.5",
        "3.5 MiB x 10^9 parameters x 1,024 tokens",
        "whichllm: engine/vram.py",
        "https://github.com/Andyyyy64/whichllm",
        "2026-06",
        "any model of a known parameter count; windows of four architectures",
        whichllm,
    ),
    Published(
        "gpustack",
        "GPUStack",
        "0.2 x weights + 2 GiB, for all but weights",
        "GPUStack's scheduler: policies/utils.py",
        "https://github.com/gpustack/gpustack",
        "2026-11",
        "the least that a GPU must offer for vLLM or SGLang; no term for the context",
        fifth_and_two_gib,
    ),
    Published(
        "accelerate",
        "accelerate",
        "none",
        "Model memory estimator (accelerate estimate-memory)",
        "https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator",
        "2023",
        "weights alone; it sends readers to EleutherAI's 20 %",
        nothing,
    ),
)
