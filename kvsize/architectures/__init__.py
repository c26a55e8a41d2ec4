"""model_type -> adapter: how each architecture's config says what its layers keep.

One row an architecture. An adapter is a small function of a ConfigView; most rows share one. Adding one takes a row
here, and a truth case (CONTRIBUTING.md shows it on a real model).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsize.architectures.attention import ATTENTION, CACHELESS
from kvsize.architectures.common import Adapter
from kvsize.architectures.latent import LATENT
from kvsize.architectures.recurrent import RECURRENT
from kvsize.architectures.remote import REMOTE
from kvsize.architectures.seq2seq import CROSS_ATTENDING, SEQ2SEQ, with_cross
from kvsize.architectures.singular import SINGULAR
from kvsize.config import (
    MAX_DIMENSION,
    MAX_LAYERS,
    ConfigView,
    layer_overrides,
    open_config,
    text_config,
    unknown_architecture,
)
from kvsize.errors import ConfigError
from kvsize.formats import FORMATS, canonical
from kvsize.geometry import Geometry, Layer

ARCHITECTURES: Mapping[str, Adapter] = {**ATTENTION, **LATENT, **RECURRENT, **SEQ2SEQ, **SINGULAR, **REMOTE}

# Keys under which configs name the longest context, most telling first.
CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "context_length",
    "n_ctx",
    "max_target_positions",
)
# Weights packed this way are computed with in one dtype, which the config need not name. integrations/mxfp4.py
COMPUTE_DTYPES = {"mxfp4": "bfloat16"}
STATE_DTYPE_KEYS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
# Sizes that engines may take from the file although the model's own class does not.
STATED_KEYS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "sliding_window_size",
    "encoder_layers",
    "num_layers",
)


def geometry(raw: Mapping[str, Any]) -> Geometry:
    """What a model stores, layer by layer, from its parsed config.json, or from a GGUF's metadata.

    Raises:
        ConfigError: a field is missing, invalid or conflicting.
        UnknownArchitectureError: no rule for this model_type; nothing is guessed.
    """
    if "general.architecture" in raw:
        from kvsize.architectures.gguf import geometry as gguf_geometry

        return gguf_geometry(raw)
    outer = open_config(raw)
    text = outer if outer.model_type in CACHELESS else text_config(outer)
    adapter = ARCHITECTURES.get(text.model_type)
    if adapter is None:
        raise unknown_architecture(text.model_type, text.raw)
    layers = _build(adapter, text)
    if outer.model_type in CROSS_ATTENDING:
        layers = with_cross(layers, CROSS_ATTENDING[outer.model_type])
    return Geometry(
        model_type=text.model_type,
        layers=layers,
        num_attention_heads=_first_number(text, "num_attention_heads", "decoder_attention_heads"),
        hidden_size=_first_number(text, "n_embed", "hidden_size"),  # BLOOM calls it n_embed
        vocab_size=_first_number(text, "vocab_size") or _first_number(outer, "vocab_size"),
        max_tokens=_first_number(text, *CONTEXT_KEYS),
        dtype=compute_dtype(outer, text),
        state_dtype=next((canonical(v) for key in STATE_DTYPE_KEYS if isinstance(v := text.raw.get(key), str)), None),
        architecture=_architecture(outer),
        stated=_stated(text),
        context_factor=_context_factor(text),
        kv_scheme=_kv_scheme(outer),
        reads=tuple(text.reads.values()),
        notes=tuple(text.notes),
    )


def _build(adapter: Adapter, text: ConfigView) -> tuple[Layer, ...]:
    try:
        layers = list(adapter(text))
        for view, indices in layer_overrides(text):
            changed = adapter(view)
            layers = [changed[index] if index in indices else layer for index, layer in enumerate(layers)]
        return tuple(layers)
    except ValueError as error:  # a value type refused what the config adds up to
        raise ConfigError(f"{text.model_type}: {error}", where=text.path) from error


def _first_number(text: ConfigView, *keys: str) -> int | None:
    for key in keys:
        value = text.raw.get(text.facts.map.get(key, key), text.raw.get(key, text.facts.fields.get(key)))
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION:
            return value  # beyond the bound it says "no limit" (tokenizers write 10**30)
    return None


def _stated(text: ConfigView) -> tuple[tuple[str, int], ...]:
    values = ((key, text.raw.get(key)) for key in STATED_KEYS)
    found = tuple((key, v) for key, v in values if type(v) is int and 0 < v <= MAX_DIMENSION)
    for key, value in found:
        if key.endswith("layers") and value > MAX_LAYERS:  # an engine may build as many
            raise text.invalid(key, f"at most {MAX_LAYERS}", value)
    return found


# Kinds of rope scaling whose factor is already in max_position_embeddings. vllm@0.33.0 config/model.py
SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")


def _context_factor(text: ConfigView) -> float:
    """The factor of linear or dynamic rope scaling, which the stated context does not hold yet; 1 without one."""
    given = text.raw.get("rope_parameters") or text.raw.get("rope_scaling")
    if not isinstance(given, Mapping):
        return 1.0
    kinds = [given, *(value for value in given.values() if isinstance(value, Mapping))]
    for rope in kinds:
        factor = rope.get("factor")
        if rope.get("rope_type", rope.get("type", "default")) in SCALED_ALREADY:
            continue
        if isinstance(factor, (int, float)) and 1 <= factor <= 1024:
            return float(factor)
    return 1.0


def _kv_scheme(outer: ConfigView) -> str | None:
    """The KV format that a quantised checkpoint brings scales for, as compressed-tensors and ModelOpt write it."""
    given = outer.raw.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    fp8 = "fp8_e4m3" if str(given.get("quant_method")).startswith("modelopt") else "fp8"
    inner = given.get("quantization")
    places = (inner, given) if isinstance(inner, Mapping) else (given,)
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        scheme = next((value for place in places if (value := place.get(key))), None)
        if isinstance(scheme, Mapping) and scheme.get("type") == "float":
            bits = scheme.get("num_bits")
            return fp8 if bits == 8 else "nvfp4" if bits == 4 else None
        if isinstance(scheme, str) and scheme.lower() in ("fp8", "nvfp4"):
            return fp8 if scheme.lower() == "fp8" else "nvfp4"
    return None


def _architecture(outer: ConfigView) -> str | None:
    names = outer.raw.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return first if isinstance(first, str) and first.isidentifier() and len(first) <= 128 else None  # a class's name


def compute_dtype(outer: ConfigView, text: ConfigView) -> str | None:
    """The dtype the config names for computing: text config first, `dtype` before `torch_dtype`; None if it names none.

    A weight format (fp8, int8 …) under that key is not a compute dtype and counts as none; some packings imply one.
    """
    for view in (text, outer):
        for key in ("dtype", "torch_dtype"):
            value = view.raw.get(key)
            if (
                isinstance(value, str)
                and canonical(value) in ("float32", "float16", "bfloat16")
                and canonical(value) in FORMATS
            ):
                return canonical(value)
    packed = outer.raw.get("quantization_config")
    return COMPUTE_DTYPES.get(str(packed.get("quant_method"))) if isinstance(packed, Mapping) else None


def evidence(model_type: str) -> str:
    """What an architecture's rule stands on: `exact` was run, `derived` was read from its published code."""
    return "derived" if model_type in REMOTE else "exact"
