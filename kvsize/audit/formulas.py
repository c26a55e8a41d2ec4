"""What formulas in common use say for the same request, so that an answer can tell how far off they are.

First the two that every answer is held against: one layer's figure times the number of layers, all tokens kept, with
query heads (from before grouped-query attention) or with KV heads. Then the arithmetic of published formulas; who
published them stands in kvsize.audit.published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kvsize.engines import CacheSize, Workload
from kvsize.formats import FORMATS
from kvsize.geometry import Attention, Chunked, Compressed, Encoder, Geometry, Heads, Latent, Recurrent, Sliding

TOLERANCE = 50  # off by less than a 50th is near enough


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula's text, what it says for this request, and what it does not know about this model."""

    text: str
    bytes: int
    misses: str

    def is_off(self, true_bytes: int) -> bool:
        """Whether it misses the true figure by 2 % or more."""
        return abs(self.bytes - true_bytes) * TOLERANCE >= true_bytes


def misleading(geometry: Geometry, workload: Workload, size: CacheSize) -> list[Formula]:
    """The formulas that are off for this request; none for an engine's own formats, which they do not cover."""
    if size.k_format not in FORMATS or size.v_format not in FORMATS or not size.total_bytes:
        return []
    return [f for f in formulas(geometry, workload, size) if f.is_off(size.total_bytes)]


def formulas(geometry: Geometry, workload: Workload, size: CacheSize) -> list[Formula]:
    """Each formula with this model's numbers put in."""
    heads = typical_heads(geometry)
    if heads is None:
        return []
    widths = "head_dim" if heads.k_dim == heads.v_dim else "(k_dim + v_dim)"
    two = "2 x " if heads.k_dim == heads.v_dim else ""
    blind = blind_spots(geometry)
    found = []
    queries = geometry.num_attention_heads
    if queries and queries != heads.count:
        missed = ["grouped KV heads", *blind]
        text = f"{two}layers x query heads x {widths}"
        found.append(Formula(text, _bytes(geometry, queries, heads, workload, size), "; ".join(missed)))
    if blind:
        text = f"{two}layers x KV heads x {widths}"
        found.append(Formula(text, _bytes(geometry, heads.count, heads, workload, size), "; ".join(blind)))
    return found


def _bytes(geometry: Geometry, count: int, heads: Heads, workload: Workload, size: CacheSize) -> int:
    times = len(geometry.layers) * workload.tokens * workload.sequences
    key, value = FORMATS[size.k_format], FORMATS[size.v_format]
    per_head = _whole(key.block_elements, key.block_bytes, heads.k_dim) + _whole(
        value.block_elements, value.block_bytes, heads.v_dim
    )
    return times * count * per_head


def _whole(block_elements: int, block_bytes: int, elements: int) -> int:
    return -(-elements // block_elements) * block_bytes


def typical_heads(geometry: Geometry) -> Heads | None:
    """The heads of most attention layers, decompressed where they are a latent."""
    counts: dict[Heads, int] = {}
    for layer in geometry.layers:
        for store in layer.stores:
            entry = store.entry if isinstance(store, Attention) else None
            heads = entry.expanded if isinstance(entry, Latent) else entry
            if isinstance(heads, Heads):
                counts[heads] = counts.get(heads, 0) + 1
                break
    return max(counts, key=lambda heads: counts[heads]) if counts else None


def blind_spots(geometry: Geometry) -> list[str]:
    """What the formulas do not know about this model."""
    stores = [store for layer in geometry.layers for store in layer.stores]
    attention = [store for store in stores if isinstance(store, Attention)]
    seen = {
        "the MLA latent": any(isinstance(store.entry, Latent) for store in attention),
        "windows": any(isinstance(store.span, Sliding | Chunked) for store in attention),
        "the encoder's keys and values": any(isinstance(store.span, Encoder) for store in attention),
        "compressed entries": any(isinstance(store, Compressed) for store in stores),
        "recurrent states": any(isinstance(store, Recurrent) for store in stores),
        "shared caches": any(layer.shares is not None for layer in geometry.layers),
        "layers without a cache": any(not layer.stores for layer in geometry.layers),
        "heads that differ between layers": len({s.entry for s in attention if isinstance(s.entry, Heads)}) > 1,
    }
    return [name for name, there in seen.items() if there]


# -- the arithmetic of published formulas -----------------------------------------------------------------------------

GIB = 2**30
WIDTH = 2  # bytes of an element: every source here assumes 16 bits
Known = TypeVar("Known")


class InapplicableError(Exception):
    """A formula has nothing to say about this model; the message is the reason."""


@dataclass(frozen=True)
class Case:
    """A model and a request, as formulas read them. `config` is the raw config.json; None is what nobody knows."""

    model: str
    geometry: Geometry
    tokens: int
    sequences: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    weight_bytes: int | None = None

    @property
    def layers(self) -> int:
        """Hidden layers, whatever they keep."""
        return len(self.geometry.layers)

    @cached_property
    def heads(self) -> Heads:
        """Keys and values of most attention layers, decompressed where they are a latent."""
        return needed(typical_heads(self.geometry), "no attention heads")

    @property
    def queries(self) -> int:
        """Query heads of a layer."""
        return needed(self.geometry.num_attention_heads, "no attention heads")

    @property
    def hidden(self) -> int:
        """hidden_size."""
        return needed(self.geometry.hidden_size, "no hidden_size in the config")

    def stated(self, key: str) -> int | None:
        """A size as the file itself names it."""
        return dict(self.geometry.stated).get(key)

    @property
    def stated_kv_heads(self) -> int:
        """num_key_value_heads where the file has that key, else the query heads: how most tools read a config."""
        return self.stated("num_key_value_heads") or self.queries


def needed(value: Known | None, reason: str) -> Known:
    """The value, unless there is none.

    Raises:
        InapplicableError: it is None.
    """
    if value is None:
        raise InapplicableError(reason)
    return value


def _all(case: Case, elements: int) -> int:
    """So many elements a token in every layer, for all tokens."""
    return case.layers * elements * WIDTH * case.tokens * case.sequences


def query_heads(case: Case) -> int:
    """K and V of every query head."""
    return _all(case, 2 * case.queries * (case.stated("head_dim") or case.heads.k_dim))


def hidden_size(case: Case) -> int:
    """K and V as wide as the model."""
    return _all(case, 2 * case.hidden)


def hidden_by_heads(case: Case) -> int:
    """Query heads of hidden_size // heads each."""
    return _all(case, 2 * case.queries * (case.hidden // case.queries))


def kv_heads(case: Case) -> int:
    """K and V of every KV head."""
    return _all(case, case.heads.elements)


def kv_heads_of_hidden(case: Case) -> int:
    """KV heads of d_model / n_heads each."""
    return _all(case, 2 * case.heads.count * case.hidden) // case.queries


def twice_hidden(case: Case) -> int:
    """gpu_poor: the factor for K and V, and a second one."""
    return 2 * hidden_size(case)


# (layers, hidden_size) of Llama 3's vocabulary of 128,256 -> KV heads as the table has them
LLAMA_3_TABLE = {(32, 4096): 8, (80, 8192): 8, (126, 16384): 16}


def llama_31_table(case: Case) -> int:
    """8 KV heads of 128, but 16 for the 405B model, which was released with 8."""
    rows = LLAMA_3_TABLE if case.geometry.vocab_size == 128_256 and case.geometry.model_type == "llama" else {}
    count = needed(rows.get((case.layers, case.geometry.hidden_size or 0)), "not a Llama 3.1 of 8B, 70B or 405B")
    return _all(case, 2 * count * 128)


def lmcache(case: Case) -> int:
    """DeepSeek's latent and Qwen3's head_dim are known by name; everything else has heads of hidden / heads."""
    name, latent = case.model.lower(), _latent(case.geometry)
    if "deepseek" in name and latent is not None:
        return _all(case, latent.elements)
    width = case.stated("head_dim") if "qwen/qwen3-" in name else None
    if width is not None:
        return _all(case, 2 * case.stated_kv_heads * width)
    return _all(case, 2 * case.stated_kv_heads * case.hidden) // case.queries


def hf_mem(case: Case) -> int:
    """Windows where layer_types or sliding_window_pattern is in the file; everything else in full."""
    nested = case.config.get("text_config")
    text = nested if isinstance(nested, Mapping) else case.config
    width = case.stated("head_dim") or case.hidden // case.queries
    full = _full_layers(text, case.layers)
    window = text.get("sliding_window")
    local = min(window, case.tokens) if isinstance(window, int) and window > 0 else case.tokens
    kept = full * case.tokens + (case.layers - full) * local
    return 2 * kept * case.stated_kv_heads * width * WIDTH * case.sequences


def _full_layers(text: Mapping[str, Any], layers: int) -> int:
    pattern, kinds = text.get("sliding_window_pattern"), text.get("layer_types")
    if isinstance(pattern, int) and pattern > 0:
        return layers // pattern
    if isinstance(kinds, list):
        return sum(kind in ("attention", "full_attention", "global_attention") for kind in kinds)
    return layers


def latent_row(case: Case) -> int:
    """(d_c + d_h^R) x l elements a token."""
    return _all(case, needed(_latent(case.geometry), "no MLA latent").elements)


def _latent(geometry: Geometry) -> Latent | None:
    entries = (s.entry for layer in geometry.layers for s in layer.stores if isinstance(s, Attention))
    return next((entry for entry in entries if isinstance(entry, Latent)), None)


def local_and_global(case: Case) -> int:
    """Local layers keep their window, global ones every token."""
    stores = [s for layer in case.geometry.layers for s in layer.stores if isinstance(s, Attention)]
    windows = [s.span.window for s in stores if isinstance(s.span, Sliding)]
    if not windows:
        raise InapplicableError("no sliding layers")
    kept = sum(min(window, case.tokens) for window in windows) + (case.layers - len(windows)) * case.tokens
    return kept * case.heads.elements * WIDTH * case.sequences


def vllm_06(case: Case) -> int:
    """Pages of 16 tokens, every layer in full."""
    if _latent(case.geometry) is not None:
        raise InapplicableError("it had another rule for MLA")
    pages = -(-case.tokens // 16)
    return case.layers * 2 * case.heads.count * case.heads.k_dim * WIDTH * 16 * pages * case.sequences


# Architectures whose windows whichllm counts -> the share of global layers. models/fetcher.py _SWA_ARCH_DEFAULTS
WHICHLLM_GLOBAL = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}


def whichllm(case: Case) -> int:
    """3.5 MiB for each 10^9 parameters and 1,024 tokens; mixtures by their active parameters."""
    from kvsize.shape import model_shape

    parameters = needed(case.parameters, "needs the parameter count")
    if model_shape(case.config, case.layers).moe:
        raise InapplicableError("needs the active parameter count")
    period = WHICHLLM_GLOBAL.get(case.geometry.model_type, 1)
    window = min(_windows(case.geometry), default=case.tokens)
    seen = case.tokens + (period - 1) * min(window, case.tokens)  # `period` times the tokens of an average layer
    return 3584 * parameters * seen // (10**9 * period) * case.sequences


def _windows(geometry: Geometry) -> list[int]:
    spans = [s.span for layer in geometry.layers for s in layer.stores if isinstance(s, Attention)]
    sliding = [span.window for span in spans if isinstance(span, Sliding)]
    return sliding + [span.size for span in spans if isinstance(span, Chunked)]


def one_megabyte(case: Case) -> int:
    """1 MB a token, said of a 13B model."""
    parameters = needed(case.parameters, "needs the parameter count")
    if not 12 * 10**9 <= parameters <= 14 * 10**9:
        raise InapplicableError("said of 13B models only")
    return 10**6 * case.tokens * case.sequences


def fifth_of_weights(case: Case) -> int:
    """What 1.2 x the weights leaves for everything but the weights, at any context length."""
    parameters = needed(case.parameters, "needs the parameter count")
    return parameters * WIDTH // 5


def fifth_and_two_gib(case: Case) -> int:
    """GPUStack: 1.2 x the files of the weights, and 2 GiB."""
    weights = needed(case.weight_bytes, "needs the size of the weights")
    return weights // 5 + 2 * GIB


def nothing(_case: Case) -> int:
    """accelerate estimate-memory weighs the weights alone."""
    raise InapplicableError("it has no term for the cache")
