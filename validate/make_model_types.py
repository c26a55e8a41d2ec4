"""Regenerates kvsize/data/model_types.json from the installed transformers.

    python validate/make_model_types.py            # writes the file
    python validate/make_model_types.py --check    # exit 1 if the file differs

Per model_type it records facts of the config class, never of a checkpoint: where the text model's config is nested and
what type it has there, which key of config.json stands for which standard name (attribute_map), the defaults of the
fields that decide a cache's geometry, and which of the head keys the modelling file reads at all (an extra key in a
config.json counts only if the code looks at it). A new release of transformers is taken in by a rerun; read the diff.
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
import warnings
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TARGET = Path(__file__).parent.parent / "kvsize" / "data" / "model_types.json"

STANDARD_NAMES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "sliding_window",
    "layer_types",
    "attention_chunk_size",
    "max_position_embeddings",
)
# Fields that may decide what a cache holds.
WANTED = re.compile(
    r"(^|_)(layers?|heads?|head_dim|headdim|hidden_size|d_model|embed_dim|emb_dim|n_embd|d_kv|d_head|window|chunk_size|kv|rank"
    r"|qk|index|compress|conv|d_conv|ssm|d_state|state_size|d_ssm|expand|n_groups|ngroups|linear|pattern|period|interval"
    r"|types?|multi_query|new_decoder_architecture|shared|sharing|mtp|is_encoder_decoder|max_position_embeddings"
    r"|n_positions|n_ctx|global_head_dim|rates?|swa|local|ple|lru_width|block_types|channels|cycles|stack|num_blocks"
    r"|qk_dim_factor|v_dim_factor|d_inner|kernel|kernel_size|prompt_length|groups|query_groups|ids|mem_len|bidirectional"
    r"|k_eq_v|alibi)(_|$)"
)
UNWANTED = re.compile(
    r"^model_type$|token|dropout|bias|vision|audio|image|video|layerdrop|position_embedding_type|_theta|hidden_act|loss|coef|label"
    r"|problem_type|patch|feature|speaker|codebook|feed_forward|layer_norm|vocab|ffn|input_channels|mtp_loss"
)
# Where a type keeps the config of the model that it caches for, if get_text_config does not say.
PLACES = {"pi0": "vlm_config"}
HEAD_KEYS = ("num_key_value_heads", "head_dim", "v_head_dim", "kv_channels")


def telling(name):
    """Whether a field may decide what a cache holds."""
    return WANTED.search(name) and not UNWANTED.search(name)


def plain(value):
    """JSON scalars, and short lists or dicts of them; None for anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if (
        isinstance(value, list | tuple)
        and len(value) <= 128
        and all(isinstance(v, bool | int | float | str) for v in value)
    ):
        return list(value)
    return None


def field_defaults(cls):
    found = {}
    for item in dataclasses.fields(cls):
        if not telling(item.name):
            continue
        default = item.default
        if default is dataclasses.MISSING and item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if default is dataclasses.MISSING:
            continue
        if plain(default) is None and default is not None:
            continue
        found[item.name] = plain(default)
    return found


def modelling_source(cls):
    config_file = Path(inspect.getfile(cls))
    return "".join(path.read_text() for path in sorted(config_file.parent.glob("modeling_*.py")))


def text_config(cls, **given):
    """(attribute, config) of the nested config that generate() sizes the cache by; None if it is the config itself."""
    try:
        config = cls(**given)
        text = config.get_text_config(decoder=True)
    except Exception:
        return None
    if cls.model_type in PLACES:
        text = getattr(config, PLACES[cls.model_type])
    places = ("decoder", "generator", "text_config", "decoder_config", *PLACES.values())
    at = next((name for name in places if getattr(config, name, None) is text), None)
    return at and (at, text)


def nesting(cls):
    """Where the text config is, of which type, what its parent lays under it, and whether it may lie flat there."""
    found = text_config(cls)
    if not found:
        return None
    at, text = found
    entry = {"at": at, "type": text.model_type}
    laid = getattr(cls, "sub_configs_defaults", {}).get(at)
    kept = {k: plain(v) for k, v in laid.init_kwargs.items() if telling(k)} if laid else {}
    partial = text_config(cls, **{at: {}})
    # Most parents use these only where the whole sub-config is absent; some lay them under a partial one too.
    if kept and partial and vars(partial[1]).get("hidden_size") != vars(type(partial[1])()).get("hidden_size"):
        entry["fields"] = kept
    elif kept:
        entry["absent"] = kept
    flat = text_config(cls, num_hidden_layers=7)
    if flat and getattr(flat[1], "num_hidden_layers", None) == 7:
        entry["flat"] = True
    if isinstance(getattr(cls, "sub_configs", {}).get(at), type) and dataclasses.is_dataclass(cls.sub_configs[at]):
        entry["fixed"] = True
    also = [k for k, v in (getattr(cls, "attribute_map", None) or {}).items() if v == at]
    if also:
        entry["also"] = also
    return entry


def facts(cls):
    source = modelling_source(cls)
    entry = {"fields": field_defaults(cls)}
    names = getattr(cls, "attribute_map", None) or {}
    mapped = {v: k for k, v in names.items() if v in STANDARD_NAMES}  # the class's own is the standard one
    mapped |= {k: v for k, v in names.items() if k in STANDARD_NAMES}
    if mapped:
        entry["map"] = mapped
    reads = [key for key in HEAD_KEYS if re.search(rf'config\.{key}\b|getattr\(\w*config, "{key}"', source)]
    if reads:
        entry["reads"] = reads
    nested = nesting(cls)
    if nested:
        entry["text"] = nested
    return entry


def generate():
    names = (
        set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        | set(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        | set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
        | set(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
        | set(modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)
    )
    types, nested = {}, {}
    todo = sorted(names)
    while todo:
        name = todo.pop()
        if name in types:
            continue
        cls = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else nested.get(name)
        if cls is None:
            continue
        types[name] = facts(cls)
        nested |= {
            s.model_type: s for s in (getattr(cls, "sub_configs", None) or {}).values() if dataclasses.is_dataclass(s)
        }
        if "text" in types[name]:
            todo.append(types[name]["text"]["type"])
    return {"transformers": transformers.__version__, "types": dict(sorted(types.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = generate()
    lines = [
        f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in entries["types"].items()
    ]
    text = f'{{"transformers": "{entries["transformers"]}", "types": {{\n' + ",\n".join(lines) + "\n}}\n"
    if arguments.check:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET} differs from transformers {transformers.__version__}")
    TARGET.write_text(text)
    print(f"{len(lines)} model types of transformers {transformers.__version__} -> {TARGET}")


if __name__ == "__main__":
    main()
