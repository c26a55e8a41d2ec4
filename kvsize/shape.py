"""Widths of a model's computing, as far as its config names them: what activations are estimated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsize.config import ConfigView, open_config, text_config

MULTIMODAL_KEYS = (
    "vision_config",
    "audio_config",
    "vision_tower",
    "mm_vision_tower",
    "visual",
    "vit_config",
    "thinker_config",
)
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
MLP_KEYS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "decoder_ffn_dim")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Elements a token passes through; `mlp` of a mixture counts the experts that one token visits. `index_heads` score
    every token for sparse attention; `latent`: MLA; `vision`: layers and width of the image encoder, each as the keys
    that may name it say. None: not named."""

    layers: int
    hidden: int | None
    vocab: int | None
    mlp: int | None
    moe: bool
    multimodal: bool
    index_heads: int | None = None
    latent: bool = False
    vision: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def model_shape(raw: Mapping[str, Any], layers: int) -> ModelShape:
    """Read the widths; nothing here is required, since nothing exact stands on it."""
    if "general.architecture" in raw:
        return _of_gguf(raw, layers)
    outer = open_config(raw)
    text = text_config(outer)
    moe = any(_number(text, key) for key in EXPERT_KEYS)
    return ModelShape(
        layers=layers,
        hidden=_number(text, "hidden_size"),
        vocab=_number(text, "vocab_size") or _number(outer, "vocab_size"),
        mlp=_expert_width(text) if moe else _first(text, MLP_KEYS),
        moe=moe,
        multimodal=any(outer.raw.get(key) for key in MULTIMODAL_KEYS),
        index_heads=_number(text, "index_n_heads"),
        latent=_number(text, "kv_lora_rank") is not None,
        vision=_vision(outer.raw.get("vision_config")),
    )


def _of_gguf(raw: Mapping[str, Any], layers: int) -> ModelShape:
    """The same from a GGUF's metadata."""

    def number(key: str) -> int | None:
        value = raw.get(f"{raw['general.architecture']}.{key}")
        if isinstance(value, list):
            value = max((one for one in value if type(one) is int), default=None)
        return value if type(value) is int and value > 0 else None

    visited = (number("expert_used_count") or 0) + (number("expert_shared_count") or 0)
    expert = number("expert_feed_forward_length") or number("feed_forward_length")
    return ModelShape(
        layers=layers,
        hidden=number("embedding_length"),
        vocab=number("vocab_size") or (tokens if type(tokens := raw.get("kvsize.vocab_size")) is int else None),
        mlp=expert * visited if expert and visited else number("feed_forward_length"),
        moe=visited > 0,
        multimodal=False,
        index_heads=number("attention.indexer.head_count"),
    )


def _vision(config: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """SGLang reads num_hidden_layers and hidden_size of the encoder's class, 24 and 1,024 where that has none."""
    if not isinstance(config, Mapping):
        return None
    layers, widths = (
        tuple(value for key in keys if type(value := config.get(key)) is int and 0 < value < 1 << 20)
        for keys in (("num_hidden_layers", "depth", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size"))
    )
    plain = "num_hidden_layers" in config and "hidden_size" in config
    return (layers, widths) if plain and layers and widths else ((*layers, 24), widths or (1024,))


def _expert_width(text: ConfigView) -> int | None:
    width = _first(text, ("moe_intermediate_size", *MLP_KEYS))
    visited = _first(text, ("num_experts_per_tok", "moe_topk", "moe_k", "top_k")) or 1
    shared = _first(text, ("n_shared_experts", "num_shared_experts")) or 0
    return None if width is None else width * (visited + shared)


def _first(view: ConfigView, keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if (value := _number(view, key))), None)


def _number(view: ConfigView, key: str) -> int | None:
    name = view.facts.map.get(key, key)
    value = view.raw.get(name, view.raw.get(key, view.facts.fields.get(name)))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
