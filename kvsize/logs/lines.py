"""The start-up lines that are known: which figures each engine prints, in which unit and with how many digits.

Wordings by release, as found in the engines' sources and in posted logs. A line that is not here is ignored.
Every expression is linear: no repetition stands inside another one without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from kvsize.logs.clean import Line

UNITS: Mapping[str, int] = {
    "": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    # all of these engines divide by powers of two, whatever they print
    "KB": 2**10,
    "MB": 2**20,
    "GB": 2**30,
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a figure is: its name for people, its unit, and whether it counts bytes."""

    label: str
    unit: str = "GiB"

    @property
    def is_bytes(self) -> bool:
        """Whether it is memory."""
        return self.unit in UNITS


# group of an expression -> what it holds. Other groups are side facts of the line.
QUANTITIES: Mapping[str, Quantity] = {
    "available": Quantity("Available KV cache memory"),
    "tokens": Quantity("GPU KV cache size", "tokens"),
    "concurrency": Quantity("Maximum concurrency", "x"),
    "blocks": Quantity("GPU blocks", "blocks"),
    "needed": Quantity("One request's KV cache"),
    "longest": Quantity("Estimated maximum length", "tokens"),
    "padding": Quantity("Padding layers", "layers"),
    "padding_share": Quantity("Padding layers' share", "%"),
    "weights": Quantity("Model weights"),
    "activations": Quantity("Peak activations"),
    "peak": Quantity("Peak torch memory"),
    "non_torch": Quantity("Non-torch memory"),
    "graphs": Quantity("CUDA graphs"),
    "graphs_estimate": Quantity("CUDA graphs, estimated"),
    "total": Quantity("GPU memory"),
    "free": Quantity("Free GPU memory"),
    "usable": Quantity("Memory the engine may use"),
    "pool_k": Quantity("K buffers", "GB"),
    "pool_v": Quantity("V buffers", "GB"),
    "pool": Quantity("KV buffers", "GB"),
    "pool_tokens": Quantity("max_total_num_tokens", "tokens"),
    "window_pool": Quantity("Window and full KV buffers", "GB"),
    "states": Quantity("State buffers", "GB"),
    "conv": Quantity("Convolution states", "GB"),
    "cache": Quantity("KV cache", "MiB"),
    "cache_k": Quantity("K of the cache", "MiB"),
    "cache_v": Quantity("V of the cache", "MiB"),
    "cells": Quantity("Cells of the cache", "cells"),
    "buffer": Quantity("KV buffer", "MiB"),
    "state_cache": Quantity("Recurrent states", "MiB"),
    "state_buffer": Quantity("RS buffer", "MiB"),
    "compute": Quantity("Compute buffer", "MiB"),
    "model_buffer": Quantity("Model buffer", "MiB"),
    "ollama_cache": Quantity("KV cache, by device", "GiB"),
    "paged": Quantity("Paged KV cache"),
    "primary": Quantity("Blocks in the primary pool", "blocks"),
    "left": Quantity("Memory available to the cache"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A printed figure. `least` and `most` are what its digits leave open, in bytes, tokens, or its own unit."""

    quantity: str
    text: str
    unit: str
    line: int
    least: Fraction
    most: Fraction
    facts: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()
    count: int = 1

    @property
    def label(self) -> str:
        """What it is, for people."""
        return QUANTITIES[self.quantity].label


def figure(
    quantity: str, text: str, unit: str, line: int = 0, rank: str = "", facts: Mapping[str, str] | None = None
) -> Figure:
    """A figure with the interval that its last digit leaves open: 17.39 is from 17.385 to 17.395."""
    plain = text.replace(",", "")
    decimals = len(plain.partition(".")[2])
    scale = UNITS.get(unit, 1)
    half = Fraction(scale, 2 * 10**decimals) if unit in UNITS and (decimals or scale > 1) else Fraction(0)
    if unit in ("x", "%"):
        half = Fraction(1, 2 * 10**decimals)
    value = Fraction(plain) * scale
    return Figure(quantity, text, unit, line, value - half, value + half, facts or {}, (rank,) if rank else ())


@dataclass(frozen=True, slots=True)
class Pattern:
    """One wording: `needle` stands in every such line, groups of `regex` are quantities or side facts."""

    engine: str
    needle: str
    regex: re.Pattern[str]
    unit: str


N = r"\d(?:[\d,]{0,20}\d)?(?:\.\d{1,8})?"
WHOLE = r"\d(?:[\d,]{0,14}\d)?(?![\d.])"
U = r"(?:[KMGT]i?B|B)"
S = r"[ \t]{0,40}"
DEVICE = r"(?P<device>[\w.:\[\]-]{1,60})"  # also RPC[10.0.0.2:50052]
POOL = rf"KV Cache is allocated\.(?: dtype: (?P<kv_dtype>[\w.]{{1,40}}),)? #tokens: (?P<slots>{WHOLE}), "
HALVES = rf"K \((?P<k>\w{{1,12}})\):{S}(?P<cache_k>{N}) MiB, V \((?P<v>\w{{1,12}})\):{S}(?P<cache_v>{N}) MiB"


def _pattern(engine: str, needle: str, regex: str, unit: str = "") -> Pattern:
    return Pattern(engine, needle, re.compile(regex), unit)


PATTERNS: tuple[Pattern, ...] = (
    # vLLM 0.8 to 0.33: v1/worker/gpu_worker.py, gpu_model_runner.py, v1/core/kv_cache_utils.py
    _pattern("vllm", "Available KV cache memory", rf"Available KV cache memory: (?P<available>{N}) ?(?P<unit>{U})"),
    _pattern(
        *("vllm", "memory for KV Cache as specified"),
        rf"reserved (?P<available>{N}) ?GiB memory for KV Cache as specified",
    ),
    _pattern("vllm", "num_gpu_blocks is:", rf"num_gpu_blocks is: (?P<blocks>{WHOLE})"),
    _pattern("vllm", "GPU KV cache size", rf"GPU KV cache size: (?P<tokens>{WHOLE}) tokens"),
    _pattern(
        "vllm",
        "Maximum concurrency for",
        rf"Maximum concurrency for (?P<length>{WHOLE}) tokens[^:]{{0,20}}: (?P<concurrency>{N})x",
    ),
    _pattern("vllm", "GPU blocks", rf"# ?GPU blocks: (?P<blocks>{WHOLE})"),
    _pattern("vllm", "cuda blocks", rf"# ?cuda blocks: (?P<blocks>{WHOLE})"),
    _pattern(
        *("vllm", "To serve at least one request"),
        rf"max seq len \((?P<length>{WHOLE})\), \(?(?P<needed>{N}) ?GiB KV cache is needed, which is larger than the "
        rf"available KV cache memory \((?P<available>{N}) ?GiB\)",
    ),
    _pattern(
        "vllm",
        "stimated maximum model length",
        r"stimated maximum model length is (?P<longest>\d(?:[\d,]{0,18}\d)?)",
    ),
    _pattern(
        *("vllm", "padding layers"),
        rf"Add (?P<padding>{WHOLE}) padding layers, may waste at most (?P<padding_share>{N})%",
    ),
    _pattern("vllm", "odel loading took", rf"Model loading took (?P<weights>{N}) ?(?P<unit>{U})"),
    _pattern("vllm", "oading model weights took", rf"Loading model weights took (?P<weights>{N}) ?(?P<unit>{U})"),
    _pattern(
        "vllm",
        "Graph capturing finished",
        rf"Graph capturing finished in {N} secs?\.?,? took (?P<graphs>{N}) ?(?P<unit>{U})",
    ),
    _pattern(
        "vllm", "Estimated CUDA graph memory", rf"Estimated CUDA graph memory: (?P<graphs_estimate>{N}) ?(?P<unit>{U})"
    ),
    _pattern(
        *("vllm", "torch peak memory increase"),
        rf"torch peak memory increase: (?P<activations>{N}) ?GiB; non-torch forward increase memory: "
        rf"(?P<non_torch>{N}) ?GiB(?:; weights memory: (?P<weights>{N}) ?GiB)?",
    ),
    _pattern(
        *("vllm", "Actual usage is"),
        rf"Free memory on device \((?P<free>{N})/(?P<total>{N}) GiB\).{{0,80}}utilization is \((?P<share>{N}), "
        rf"(?P<usable>{N}) GiB\)\. Actual usage is (?P<weights>{N}) GiB for weight, (?P<activations>{N}) GiB for peak "
        rf"activation, (?P<non_torch>{N}) GiB for non-torch memory, and (?P<graphs>{N}) GiB",
    ),
    _pattern(
        "vllm",
        "Initial free memory",
        rf"Initial free memory: (?P<free>{N}) GiB; Requested memory: (?P<share>{N}) \(util\), (?P<usable>{N}) GiB",
    ),
    _pattern(
        *("vllm", "the current vLLM instance can use"),
        rf"total_gpu_memory \((?P<total>{N}) ?GiB\) x gpu_memory_utilization \((?P<share>{N})\) = (?P<usable>{N}) ?GiB",
    ),
    _pattern(
        *("vllm", "model weights take"),
        rf"model weights take (?P<weights>{N}) ?GiB; non_torch_memory takes (?P<non_torch>{N}) ?GiB; PyTorch "
        rf"activation peak memory takes (?P<activations>{N}) ?GiB; the rest of the memory reserved for KV Cache is "
        rf"(?P<available>{N}) ?GiB",
    ),
    _pattern(
        *("vllm", "Memory profiling results"),
        rf"total_gpu_memory=(?P<total>{N})GiB.{{0,80}}peak_torch_memory=(?P<peak>{N})GiB.{{0,80}}"
        rf"non_torch_memory=(?P<non_torch>{N})GiB,? kv_cache_size=(?P<available>{N})GiB",
    ),
    # SGLang: model_executor/model_runner.py, mem_cache/memory_pool.py
    _pattern("sglang", "KV Cache is allocated", rf"{POOL}K size: (?P<pool_k>{N}) GB, V size: (?P<pool_v>{N}) GB"),
    _pattern("sglang", "KV Cache is allocated", rf"{POOL}KV size: (?P<pool>{N}) GB"),
    _pattern(
        *("sglang", "SWAKVPool mem usage"),
        rf"SWAKVPool mem usage: (?P<window_pool>{N}) GB, swa size: (?P<window_slots>{WHOLE}), "
        rf"full size: (?P<slots>{WHOLE})",
    ),
    _pattern(
        *("sglang", "Mamba Cache is allocated"),
        rf"max_mamba_cache_size: (?P<slots>{WHOLE}), conv_state size: (?P<conv>{N}) ?GB,? "
        rf"ssm_state size: (?P<states>{N}) ?GB",
    ),
    _pattern("sglang", "max_total_num_tokens=", r"max_total_num_tokens=(?P<pool_tokens>\d{1,15})"),
    _pattern("sglang", "Load weight end", rf"mem usage=(?P<weights>{N}) (?P<unit>GB)"),
    _pattern("sglang", "apture cuda graph end", rf"mem usage=(?P<graphs>{N}) (?P<unit>GB)"),
    # llama.cpp: src/llama-kv-cache*.cpp, llama-memory-recurrent.cpp, llama-context.cpp
    _pattern(
        *("llama.cpp", " cells,"),
        rf"size ={S}(?P<cache>{N}) MiB \({S}(?P<cells>{WHOLE}) cells,{S}(?P<layers>{WHOLE}) layers,{S}(?P<seqs>{WHOLE})"
        rf"(?:/{S}(?P<streams>{WHOLE}))? seqs\)(?:, {HALVES})?(?!, R)",
    ),
    _pattern(
        *("llama.cpp", " cells,"),
        rf"size ={S}(?P<state_cache>{N}) MiB \({S}(?P<state_cells>{WHOLE}) cells,{S}(?P<layers>{WHOLE}) layers,"
        rf"{S}(?P<seqs>{WHOLE}) seqs(?:{S}(?P<snapshots>{WHOLE}) rs_seq)?\)(?:, R|$)",
    ),
    _pattern("llama.cpp", "KV self size", rf"KV self size{S}={S}(?P<cache>{N}) MiB, {HALVES}"),
    _pattern("llama.cpp", "KV buffer size", rf"{DEVICE} KV buffer size ={S}(?P<buffer>{N}) MiB"),
    _pattern("llama.cpp", "RS buffer size", rf"{DEVICE} RS buffer size ={S}(?P<state_buffer>{N}) MiB"),
    _pattern("llama.cpp", "compute buffer size", rf"{DEVICE} compute buffer size ={S}(?P<compute>{N}) MiB"),
    _pattern("llama.cpp", "model buffer size", rf"{DEVICE} model buffer size ={S}(?P<model_buffer>{N}) MiB"),
    _pattern(
        *("llama.cpp", 'msg="kv cache"'),
        rf'msg="kv cache" device={DEVICE} size="(?P<ollama_cache>{N}) (?P<unit>{U})"',
    ),
    # TensorRT-LLM: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp
    _pattern(
        *("trtllm", "in paged KV cache ("),
        rf"Allocated (?P<paged>{N}) GiB for max tokens in paged KV cache \((?P<slots>{WHOLE})\)",
    ),
    _pattern("trtllm", "KV cache primary pool", rf"Number of blocks in KV cache primary pool: (?P<primary>{WHOLE})"),
    _pattern("trtllm", "in paged kv cache: total", rf"total: (?P<total>{N}) GiB, available: (?P<left>{N}) GiB"),
)


def figures(line: Line) -> Iterator[tuple[str, Figure]]:
    """(engine, figure) for each figure that the line prints."""
    for pattern in PATTERNS:
        if pattern.needle not in line.text:
            continue
        match = pattern.regex.search(line.text)
        if match is None:
            continue
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        facts = {name: text for name, text in groups.items() if name not in QUANTITIES and name != "unit"}
        for name, text in groups.items():
            if name in QUANTITIES:
                known = QUANTITIES[name]
                unit = groups.get("unit", known.unit) if known.is_bytes else known.unit
                yield pattern.engine, figure(name, text, unit, line.number, line.rank, facts)
