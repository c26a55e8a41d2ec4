"""The keys of one GGUF, and what llama.cpp reads of them for every architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Heads, Layer


class Metadata(ConfigView):
    """The keys of one architecture, without its prefix."""

    def missing(self, key: str) -> ConfigError:
        """The error for a key that llama.cpp cannot do without."""
        return ConfigError(
            "missing, llama.cpp needs it",
            where=self.where(key),
            hint="Convert the model anew, or name the model it was made from.",
        )

    def per_layer(self, key: str, count: int) -> tuple[int, ...]:
        """One number for each layer, given as an array or as one for all.

        Raises:
            ConfigError: an array of another length, which llama.cpp refuses too.
        """
        if not isinstance(self.get(key), list):
            return (self.need(key, at_least=0),) * count
        values = self.whole_numbers(key) or ()
        if len(values) != count:
            raise ConfigError(f"has {len(values)} entries for {count} layers", where=self.where(key))
        return values

    def marks(self, key: str, count: int) -> tuple[bool, ...] | None:
        """Which layers an array marks; the ones behind its end are not. None where there is no array."""
        values = self.get(key)
        if not isinstance(values, list):
            return None
        if any(value not in (0, 1) for value in values):
            raise self.invalid(key, "a list of true and false", values)
        return tuple(bool(value) for value in (*values, *[0] * count)[:count])


@dataclass(frozen=True, slots=True)
class Shape:
    """What load_hparams reads for every architecture: layers, heads of each, and the widths of K and V."""

    layers: int
    drafts: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    k: int
    v: int
    k_swa: int
    v_swa: int

    def entry(self, index: int, *, window: bool = False) -> Heads:
        """Keys and values of one layer."""
        return Heads(self.kv_heads[index], *((self.k_swa, self.v_swa) if window else (self.k, self.v)))


def shape(cfg: Metadata) -> Shape:
    """Read the sizes that all architectures share. llama.cpp@b11434 src/llama-model.cpp load_hparams"""
    count = cfg.layers("block_count")
    drafts = cfg.maybe("nextn_predict_layers", at_least=0) or 0
    if drafts > count:
        raise cfg.invalid("nextn_predict_layers", f"at most the {count} of block_count", drafts)
    zero = (0,) * count
    heads = cfg.per_layer("attention.head_count", count) if cfg.given("attention.head_count") else zero
    kv_heads = cfg.per_layer("attention.head_count_kv", count) if cfg.given("attention.head_count_kv") else heads
    # a file of drafting layers alone (convert_hf_to_gguf.py --mtp) is a model of its own
    return Shape(count, drafts if drafts < count else 0, heads, kv_heads, *_widths(cfg, heads[0]))


def _widths(cfg: Metadata, first: int) -> tuple[int, int, int, int]:
    """K and V of a full layer, K and V of a window; 0 where layer 0 has no heads and nothing is read."""
    own = cfg.model_type == "plamo2"  # reads its widths whatever layer 0 is
    k = v = cfg.need("embedding_length") // first if first else 0
    if first or own:
        k = cfg.maybe("attention.key_length") or k
        v = cfg.maybe("attention.value_length") or v
    return k, v, cfg.maybe("attention.key_length_swa") or k, cfg.maybe("attention.value_length_swa") or v


Adapter = Callable[[Metadata, Shape], tuple[Layer, ...]]
