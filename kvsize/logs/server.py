"""Who wrote the figures: the servers of a log, each with its model, version and settings.

A log may hold several pods or services, and one server may have started more than once; each start is a server here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvsize.errors import SourceError
from kvsize.logs.clean import Line
from kvsize.logs.lines import PATTERNS, Figure, figures

V = r"(?:'[^']{0,500}'|\"[^\"]{0,500}\"|[^\s,;)}\]]{1,200})"

# Settings as argument dumps write them: key='value', 'key': value, --key value. Names are those of kvsize's flags.
VLLM: Mapping[str, str] = {
    "model": "model",
    "model_tag": "model",
    "max_model_len": "max_model_len",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "dtype": "dtype",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "enable_prefix_caching": "enable_prefix_caching",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
    "async_scheduling": "async_scheduling",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "kv_cache_memory": "kv_cache_memory_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "enforce_eager": "enforce_eager",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_spec_tokens": "num_speculative_tokens",
    "method": "speculative_method",
}
SGLANG: Mapping[str, str] = {
    "model_path": "model",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "dp_size",
    "enable_dp_attention": "enable_dp_attention",
    "page_size": "page_size",
    "context_length": "max_model_len",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "mem_fraction_static": "mem_fraction_static",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_running_requests",
    "chunked_prefill_size": "chunked_prefill_size",
    "swa_full_tokens_ratio": "swa_full_tokens_ratio",
    "mamba_full_memory_ratio": "mamba_full_memory_ratio",
    "max_mamba_cache_size": "max_mamba_cache_size",
    "mamba_ssm_dtype": "mamba_ssm_cache_dtype",
    "disable_radix_cache": "disable_radix_cache",
    "speculative_algorithm": "speculative_algorithm",
}
LLAMACPP: Mapping[str, str] = {
    "n_ctx": "n_ctx",
    "n_batch": "n_batch",
    "n_ubatch": "n_ubatch",
    "n_seq_max": "n_parallel",
    "kv_unified": "kv_unified",
    "flash_attn": "flash_attn",
}
OLLAMA: Mapping[str, str] = {
    "KvSize": "n_ctx",
    "Parallel": "n_parallel",
    "BatchSize": "n_ubatch",
    "FlashAttention": "flash_attn",
    "KvCacheType": "cache_type",
}


@dataclass(frozen=True, slots=True)
class Dump:
    """Lines that name settings: what stands in them, whose they are, and whether they begin a start."""

    engine: str
    needle: str
    keys: Mapping[str, str]
    regex: re.Pattern[str]
    begins: bool = False


def _dump(
    engine: str, needle: str, keys: Mapping[str, str], *, begins: bool = False, equals: str = r"\s{0,40}[=:]\s{0,3}"
) -> Dump:
    names = "|".join(sorted(keys, key=len, reverse=True))
    return Dump(engine, needle, keys, re.compile(rf"(?<![\w.-])['\"]?({names})['\"]?{equals}({V})"), begins)


DUMPS = (
    _dump("vllm", "non-default args:", VLLM),
    _dump("vllm", "args: Namespace(", VLLM),
    _dump("vllm", "LLM engine (v", VLLM),
    _dump("vllm", "enabled with max_num_batched_tokens", VLLM),
    _dump("sglang", "ServerArgs(", SGLANG, begins=True),
    _dump("sglang", "server_args=", SGLANG, begins=True),
    _dump("llama.cpp", "llama_context: ", LLAMACPP),
    _dump("llama.cpp", "llama_new_context_with_model: ", LLAMACPP),
    _dump("llama.cpp", "llama_init_from_model: ", LLAMACPP),
    _dump("ollama", "msg=load request=", OLLAMA, begins=True, equals=":"),  # "KvCacheType: NumThreads:8" gives no type
)

# (engine, needle, expression with a group `version` or `model`, begins a start)
NAMES = tuple(
    (engine, needle, re.compile(regex), begins)
    for engine, needle, regex, begins in (
        ("vllm", "vLLM API server version", r"vLLM API server version (?P<version>\d[\w.+-]{0,60})", True),
        ("vllm", "LLM engine (v", r"LLM engine \(v(?P<version>\d[\w.+-]{0,60})\)", False),
        ("vllm", "Using max model len", r"Using max model len (?P<max_model_len>\d{1,12})", False),
        ("vllm", "  version ", r"[█▀▄ ]  version (?P<version>\d[\w.+-]{0,60})", False),
        ("vllm", "  model   ", r"[█▀▄ ]  model   (?P<model>\S{1,200})", False),
        ("sglang", "sglang", r"sglang(?: version)?[:=]\s?v?(?P<version>\d+\.\d+[\w.]{0,40})", False),
        ("llama.cpp", "build: ", r"build: (?P<version>\d{3,6}) \(", False),
        ("llama.cpp", "version: ", r"version: (?P<version>\d{3,6}) \(", False),
        ("llama.cpp", "build_info: b", r"build_info: (?P<version>b\d{3,6})", False),
        (
            "llama.cpp",
            "loaded meta data with",
            r"key-value pairs and \d+ tensors from (?P<file>.{1,400}) \(version",
            True,
        ),
        ("trtllm", "TensorRT-LLM version:", r"TensorRT-LLM version: (?P<version>\d[\w.+-]{0,60})", True),
        ("trtllm", "tokens per block", r"Number of tokens per block: (?P<tokens_per_block>\d{1,6})", False),
    )
)
_METADATA = re.compile(
    r"- kv\s{1,8}\d{1,5}:\s{1,80}([\w.-]{1,120})\s{1,8}(\w{2,4}|arr\[\w{2,4},\d{1,9}\])\s{1,40}= (.{0,4000})$"
)
_FLASH = re.compile(r"Flash Attention was auto, set to (?P<flash>\w{1,10})")
_PRINT_INFO = re.compile(r"(?:print_info|llm_load_print_meta): (?P<key>\w{1,40})\s{1,40}= (?P<value>.{1,2000})$")
_WINDOW_CACHE = "using full-size SWA cache"


NEEDLES = tuple(
    dict.fromkeys(
        [
            *(pattern.needle for pattern in PATTERNS),
            *(dump.needle for dump in DUMPS),
            *(needle for _, needle, _, _ in NAMES),
            *("- kv ", "print_", "Flash Attention was auto", _WINDOW_CACHE),
        ]
    )
)


def known(text: str) -> bool:
    """Whether a line may say something: most of a long log does not, and is passed over."""
    return any(map(text.__contains__, NEEDLES))


@dataclass(slots=True)
class Server:
    """One start of one server."""

    name: str
    engine: str = ""
    version: str | None = None
    model: str | None = None
    file: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    printed_info: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    places: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def of(self, *quantities: str) -> list[Figure]:
        """The figures of these quantities, in the log's order."""
        return [figure for figure in self.figures if figure.quantity in quantities]


MAX_FIGURES = 20_000  # of a whole log; one start prints some ten


@dataclass(slots=True)
class Reader:
    """Sorts lines into servers."""

    servers: list[Server] = field(default_factory=list)
    latest: dict[str, Server] = field(default_factory=dict)
    count: int = 0

    def take(self, line: Line) -> None:
        """Read one line."""
        server = self.latest.get(line.server)
        if server is None:
            server = self._begin(line.server)
        if _begins(line.text) and (server.figures or server.metadata):
            server = self._begin(line.server)
        _settings(server, line.text)
        for engine, found in figures(line):
            server.engine = server.engine or engine
            if _same_engine(server.engine, engine):
                _add(server, found)
                self.count += 1

    def _begin(self, name: str) -> Server:
        server = Server(name)
        self.servers.append(server)
        self.latest[name] = server
        return server


def servers(lines: Iterable[Line], where: str) -> list[Server]:
    """The servers of a log that printed at least one known figure.

    Raises:
        SourceError: there is none.
    """
    reader = Reader()
    for line in lines:
        reader.take(line)
        if reader.count > MAX_FIGURES:
            hint = "Cut the log: one start of each server is enough."
            raise SourceError(f"more than {MAX_FIGURES:,} figures", reason="too_large", where=where, hint=hint)
    found = [server for server in reader.servers if server.figures]
    if not found:
        raise SourceError(
            "no start-up line of an engine that kvsize knows",
            reason="broken",
            where=where,
            hint='It looks for lines such as "GPU KV cache size: N tokens" (vLLM), "KV Cache is allocated. #tokens: N" '
            '(SGLang), "KV buffer size = N MiB" (llama.cpp, Ollama) and "for max tokens in paged KV cache (N)" '
            "(TensorRT-LLM). Is the start of the log there?",
        )
    return found


def _begins(text: str) -> bool:
    return any(begins and needle in text for _, needle, _, begins in NAMES) or any(
        dump.begins and dump.needle in text for dump in DUMPS
    )


def _same_engine(one: str, other: str) -> bool:
    return one == other or {one, other} == {"ollama", "llama.cpp"}


def _add(server: Server, found: Figure) -> None:
    """Add a figure; one that other ranks printed too is counted. llama.cpp's caches stay apart, in their order."""
    key = (found.quantity, found.text, *sorted(found.facts.items()))
    place = server.places.get(key)
    if place is None or server.engine in ("llama.cpp", "ollama"):
        server.places[key] = len(server.figures)
        server.figures.append(found)
        return
    same = server.figures[place]
    ranks = tuple(dict.fromkeys((*same.ranks, *found.ranks)))
    server.figures[place] = replace(same, ranks=ranks, count=same.count + 1)


def _settings(server: Server, text: str) -> None:
    for dump in DUMPS:
        if dump.needle in text:
            server.engine = server.engine or dump.engine
            for key, value in dump.regex.findall(text):
                _set(server, dump.keys[key], value.strip("'\""))
    for engine, needle, regex, _ in NAMES:
        if needle in text and (match := regex.search(text)):
            server.engine = server.engine or engine
            for key, value in match.groupdict().items():
                _named(server, key, value)
    if server.engine in ("", "llama.cpp", "ollama"):
        _llama(server, text)


def _named(server: Server, key: str, value: str) -> None:
    match key:
        case "version":
            server.version = value
        case "model":
            server.model = server.model or value
        case "file":
            server.file = value
        case _:
            server.settings[key] = value


def _set(server: Server, key: str, value: str) -> None:
    if value in ("None", "", "null"):
        return
    if key == "model":
        server.model = server.model or value
    else:
        server.settings[key] = value


def _llama(server: Server, text: str) -> None:
    if "- kv " in text and (match := _METADATA.search(text)):
        server.metadata[match[1]] = match[3].strip()
    elif "print_" in text and (match := _PRINT_INFO.search(text)):
        server.printed_info.setdefault(match["key"], match["value"].strip())
    elif "Flash Attention was auto" in text and (match := _FLASH.search(text)):
        server.settings["flash_attn"] = match["flash"]
    elif _WINDOW_CACHE in text:
        server.settings["swa_full"] = "true"
