"""What a config says about how weights are split: heads, experts, latents, drafts. None: it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsize.config import MAX_LAYERS, ConfigView, open_config, text_config

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_moe_experts")
# Draft layers with embeddings and a head of their own (DeepSeek-V3's layer 61), and those that share the model's.
_DRAFTS = ("num_nextn_predict_layers", "num_mtp_modules")
_SHARING_DRAFTS = ("mtp_num_hidden_layers", "n_mtp_layers")
# Checkpoints hold one, and the config does not say so: vllm@0.33.0 models/qwen3_next.py drops "mtp.".
_UNSAID_DRAFTS = {"qwen3_next": 1}
_TOWERS = ("vision_config", "audio_config", "vit_config", "visual", "vision_tower", "thinker_config", "talker_config")
_LEARNED_POSITIONS = {"gpt2", "gpt_bigcode", "gpt_neo", "opt", "xglm", "biogpt"}
# Keys whose presence says that layers differ in size, other than by being dense or a mixture.
_UNLIKE = (
    "block_configs",
    "hybrid_override_pattern",
    "layers_block_type",
    "attn_layer_period",
    "expert_layer_period",
    "attn_layer_indices",
    "linear_attn_config",
    "full_attention_interval",
    "mlp_only_layers",
    "full_attn_idxs",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "cross_attention_layers",
    "encoder_layers",
    "is_encoder_decoder",
)
_TOWER_KEYS = (
    ("num_hidden_layers", "depth", "layers", "encoder_layers", "num_layers"),
    ("hidden_size", "embed_dim", "width", "d_model"),
    ("intermediate_size", "mlp_dim", "encoder_ffn_dim"),
)
_LIKE: tuple[object, ...] = (None, False, 0, 1, [], {}, "")  # values with which they say that layers are alike
_WIDTHS = {"float32": (4, 4), "bfloat16": (2, 2), "float16": (2, 2)}


@dataclass(frozen=True, slots=True)
class Facts:
    """Sizes in elements. `dense_layers` come before the mixtures; `unlike`: layers differ in other ways as well.

    `tied`: one table for input and output, None where only the class knows. `vocabulary` is elements of one such table.
    `element_bytes`: least and most of an element of what is never quantised, the vocabulary. `towers`: bytes of image
    and sound encoders, at most.
    """

    layers: int
    hidden: int
    vocab: int
    vocabulary: int
    heads: int | None
    kv_heads: int | None
    head_dim: int
    experts: int
    expert_width: int
    dense_layers: int
    drafts: int
    draft_vocabulary: bool
    tied: bool | None
    latent: tuple[int, int, int] | None  # kv rank with rope, q rank, heads x (nope + v) of the up-projection
    indexer: tuple[int, int] | None  # heads, width
    positions: int
    max_positions: int
    rotary_dims: tuple[int, ...]
    towers: int
    quantisation: str | None
    element_bytes: tuple[int, int]
    unlike: bool

    @property
    def mixtures(self) -> int:
        """Layers that hold experts."""
        return self.layers - self.dense_layers if self.experts else 0


def facts_of(raw: Mapping[str, Any]) -> Facts:
    """Read them from a config.json.

    Raises:
        ConfigError: no layer count or width, or one that makes no sense.
        UnknownArchitectureError: a model_type that kvsize does not know.
    """
    outer = open_config(raw)
    text = text_config(outer)
    heads, hidden = text.maybe("num_attention_heads"), _hidden(text)
    head_dim = _first(text, ("head_dim",)) or hidden // (heads or 1)
    vocab = _first(text, ("vocab_size",)) or _first(outer, ("vocab_size",)) or 0
    own = _first(text, _DRAFTS) or _first(outer, _DRAFTS) or 0
    return Facts(
        layers=_layers(text),
        hidden=hidden,
        vocab=vocab,
        vocabulary=vocab * _table_width(text, hidden),
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=head_dim,
        experts=_first(text, _EXPERTS) or 0,
        expert_width=_first(text, ("moe_intermediate_size", "intermediate_size", "ffn_dim")) or 0,
        dense_layers=_first(text, ("first_k_dense_replace",)) or 0,
        drafts=own or _first(text, _SHARING_DRAFTS) or _UNSAID_DRAFTS.get(text.model_type, 0),
        draft_vocabulary=own > 0,
        tied=_tied(outer, text),
        latent=_latent(text, heads),
        indexer=_pair(text, "index_n_heads", "index_head_dim"),
        positions=_positions(text),
        max_positions=_first(text, ("max_position_embeddings",)) or 0,
        rotary_dims=_rotary_dims(text, head_dim),
        towers=_towers(outer, hidden),
        quantisation=_quantisation(outer) or _quantisation(text),
        element_bytes=_element_bytes(outer, text),
        unlike=any(text.raw.get(key) not in _LIKE for key in _UNLIKE) or _mixed(text),
    )


def _table_width(text: ConfigView, hidden: int) -> int:
    """The width of the vocabulary's tables: narrower in ALBERT and OPT; Molmo's embedding_size is a count of rows."""
    width = _first(text, ("word_embed_proj_dim", "embedding_size")) or hidden
    return width if width <= hidden else hidden


def _layers(text: ConfigView) -> int:
    """The layer count, or the length of the list that gives each layer's kind (Nemotron-H)."""
    told = _first(text, ("num_hidden_layers", "num_layers"))
    kinds = next((k for key in ("layers_block_type", "hybrid_override_pattern") if (k := text.raw.get(key))), ())
    count = told or (len(kinds) if isinstance(kinds, list | str) else 0)
    return count if 0 < count <= MAX_LAYERS else text.layers()


def _first(view: ConfigView, keys: tuple[str, ...]) -> int | None:
    """The first of the keys that holds a positive whole number; other kinds of value decide nothing here."""
    for key in keys:
        value = view.get(key)
        if type(value) is int and value > 0:
            return value
    return None


def _pair(view: ConfigView, first: str, second: str) -> tuple[int, int] | None:
    one, two = _first(view, (first,)), _first(view, (second,))
    return None if one is None or two is None else (one, two)


def _kv_heads(text: ConfigView, heads: int | None) -> int | None:
    if text.get("multi_query") is True:
        return 1
    return _first(text, ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")) or heads


def _positions(text: ConfigView) -> int:
    """Rows of a learned table of positions, which no rank splits; 0 for rotary and the like."""
    learned = "n_positions" in text.raw or text.model_type in _LEARNED_POSITIONS
    return (_first(text, ("max_position_embeddings", "n_positions")) or 0) if learned else 0


def _hidden(text: ConfigView) -> int:
    """The width; old BLOOM files call it n_embed, which their class reads before its own name for it."""
    old = _first(text, ("n_embed",)) if "n_embed" in text.raw else None
    return old or text.need("hidden_size")


def _rotary_dims(text: ConfigView, head_dim: int) -> tuple[int, ...]:
    """Dimensions that are turned, at most: of a latent's rope or of a head; of both kinds of layer with windows."""
    kinds = text.get("layer_types")
    two = isinstance(kinds, list) and {"sliding_attention", "full_attention"} <= {
        k for k in kinds if isinstance(k, str)
    }
    rope = _first(text, ("qk_rope_head_dim",)) or head_dim
    return (rope, _first(text, ("global_head_dim",)) or rope) if two else (rope,)


def _tied(outer: ConfigView, text: ConfigView) -> bool | None:
    told = [view.raw.get("tie_word_embeddings") for view in (text, outer)]
    return next((value for value in told if isinstance(value, bool)), None)


_ANY_TOWER = 12 * 10**9  # InternViT-6B, the largest that is published, in 16 bits


def _towers(outer: ConfigView, hidden: int) -> int:
    """Encoders beside the text model: four attention and three MLP matrices a layer, half as much more, a projector."""
    configs = [outer.raw[key] for key in _TOWERS if outer.raw.get(key)]
    if not configs:
        return 0 if outer.facts.text is None else _ANY_TOWER
    total = 0
    for config in configs:
        sizes = [_of(config, keys) for keys in _TOWER_KEYS]
        if not sizes[0] or not sizes[1]:
            return _ANY_TOWER
        layers, width, mlp = sizes[0], sizes[1], sizes[2] or 4 * sizes[1]
        total += 3 * layers * width * (4 * width + 3 * mlp) + 2 * hidden * (8 * width + 2 * hidden)
    return total


def _of(config: Any, keys: tuple[str, ...]) -> int:
    found = (config.get(key) for key in keys) if isinstance(config, Mapping) else iter(())
    return next((value for value in found if type(value) is int and 0 < value < 2**20), 0)


def _latent(text: ConfigView, heads: int | None) -> tuple[int, int, int] | None:
    rank = _first(text, ("kv_lora_rank",))
    if rank is None or heads is None:
        return None
    rope, query = _first(text, ("qk_rope_head_dim",)) or 0, _first(text, ("q_lora_rank",)) or 0
    nope, value = _first(text, ("qk_nope_head_dim",)) or 0, _first(text, ("v_head_dim",)) or 0
    return rank + rope, query, rank * heads * (nope + value)


def _quantisation(view: ConfigView) -> str | None:
    """The method that the checkpoint is quantised with; "unnamed" where it only says that it is."""
    told = view.raw.get("quantization_config")
    if not isinstance(told, Mapping):
        return None
    method = told.get("quant_method")
    return method if isinstance(method, str) else "unnamed"


def _element_bytes(outer: ConfigView, text: ConfigView) -> tuple[int, int]:
    if _quantisation(outer) or _quantisation(text):
        return 1, 4
    names = (view.raw.get(key) for view in (outer, text) for key in ("dtype", "torch_dtype"))
    return next((_WIDTHS[name] for name in names if isinstance(name, str) and name in _WIDTHS), (1, 4))


def _mixed(text: ConfigView) -> bool:
    kinds = text.get("layer_types")
    names = {kind for kind in kinds if isinstance(kind, str)} if isinstance(kinds, list) else set()
    # Windows change the cache, not the weights.
    return len({"attention" if name.endswith("attention") and "linear" not in name else name for name in names}) > 1
