"""A config.json as its config class would see it: text config found, aliases followed, class defaults laid under it.

Nothing here knows what a cache is. `ConfigView` answers for one key at a time, checks its type and bounds, and writes
down where the value came from. Facts about config classes come from data/model_types.json (generated; see
validate/make_model_types.py); remote-code types, which no installed class describes, from TYPES below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvsize.errors import ConfigError, UnknownArchitectureError
from kvsize.geometry import Read

# Bounds on what a config may claim: far above any real model, low enough that nothing explodes.
MAX_LAYERS = 4096
MAX_DIMENSION = 2**31


@dataclass(frozen=True, slots=True)
class Nesting:
    """Where a type keeps its text model's config (`at`, or one of `also`) and of which type that is.

    `fixed`: the outer class takes no other type, whatever the nested config calls itself. `flat`: the text keys may lie
    in the outer config. `fields`: defaults the outer class lays under a partial one; `absent`: under none at all.
    """

    at: str
    type: str | None = None
    also: tuple[str, ...] = ()
    fixed: bool = False
    flat: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """What a config class knows: fields with defaults, its names for standard keys, the head keys its model reads."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    map: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    text: Nesting | None = None


@cache
def _generated() -> Mapping[str, Any]:
    path = Path(__file__).parent / "data" / "model_types.json"
    loaded: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def facts_version() -> str:
    """The transformers release that the class defaults were read from."""
    return str(_generated()["transformers"])


def known_types() -> tuple[str, ...]:
    """Every model_type whose config class is described here."""
    return (*_generated()["types"], *REMOTE_TYPES, *SAME_KEYS_AS)


@cache
def type_facts(model_type: str) -> TypeFacts | None:
    """Facts of the config class of that type; None if no class is known."""
    if model_type in REMOTE_TYPES:
        return REMOTE_TYPES[model_type]
    entry = _generated()["types"].get(SAME_KEYS_AS.get(model_type, model_type))
    if entry is None:
        return None
    text = entry.get("text")
    return TypeFacts(
        fields=entry["fields"],
        map=entry.get("map", {}),
        reads=tuple(entry.get("reads", ())),
        text=text and Nesting(**{**text, "also": tuple(text.get("also", ()))}),
    )


_ALIASES_OF_LLAMA = {"num_key_value_heads": None, "head_dim": None}
_GPT_NAMES = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}
_CHATGLM_NAMES = {"num_hidden_layers": "num_layers"}


def _nested(at: str, type_: str | None = None) -> TypeFacts:
    return TypeFacts(text=Nesting(at=at, type=type_))


# Types of repositories that bring their own code (never run here). Keys as their published config classes name them,
# defaults only where the class has that very default.
REMOTE_TYPES: dict[str, TypeFacts] = {
    **dict.fromkeys(
        (
            "aquila",
            "arctic",
            "bailing_moe",
            "grok-1",
            "internlm2",
            "minicpm",
            "mimo",
            "molmo",
            "phi3small",
            "minimax_text_01",
            "minimax_m1",
        ),
        TypeFacts(fields=_ALIASES_OF_LLAMA),
    ),
    **dict.fromkeys(
        ("baichuan", "gpt_neox_reward_model", "internlm", "orion", "qwen", "rugpt3xl", "xverse"), TypeFacts()
    ),
    "minicpmv": TypeFacts(fields={**_ALIASES_OF_LLAMA, "use_sliding_window": False}),
    "phi3_v": TypeFacts(fields={"num_key_value_heads": None, "sliding_window": None}),
    "hunyuan": TypeFacts(fields={"num_key_value_heads": None, "use_cla": False, "cla_share_factor": 1}),
    "exaone": TypeFacts(fields={"num_key_value_heads": None}, map={"num_hidden_layers": "num_layers"}),
    "falcon_perception": TypeFacts(
        fields={"n_kv_heads": None, "head_dim": None},
        map={
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads",
            "hidden_size": "dim",
        },
    ),
    "phi-msft": TypeFacts(fields={"n_head_kv": None}, map={**_GPT_NAMES, "num_key_value_heads": "n_head_kv"}),
    **dict.fromkeys(
        ("RefinedWebModel", "RefinedWeb"),
        TypeFacts(map={**_GPT_NAMES, "hidden_size": "hidden_size", "num_kv_heads": "n_head_kv"}),
    ),
    "chatglm": TypeFacts(map=_CHATGLM_NAMES),
    "nemotron-nas": TypeFacts(),
    "deci": TypeFacts(),
    "openelm": TypeFacts(map={"num_hidden_layers": "num_transformer_layers"}),
    "step3_text": TypeFacts(),
    **dict.fromkeys(("rwkv5", "rwkv6", "rwkv7"), TypeFacts()),
    "internvl_chat": _nested("llm_config"),
    "deepseek_vl_v2": _nested("language_config", "deepseek_v2"),
    "multi_modality": _nested("language_config", "llama"),
    "kimi_vl": _nested("text_config", "deepseek_v3"),
    "kimi_k3": _nested("text_config", "kimi_linear"),
    "step3_vl": _nested("text_config", "step3_text"),
    "qwen2_5_omni": _nested("text_config", "qwen2_5_omni_text"),
    "qwen3_omni_moe": _nested("text_config", "qwen3_omni_moe_text"),
}
# Types with code of their own, whose keys are those of a type that transformers knows.
SAME_KEYS_AS = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl_text"}


class ConfigView:
    """One config object, read key by key.

    Values are looked up in the file first (under the key, then under the class's own name for it), then in the class
    defaults. An explicit null counts as given: it overrides a default. Every answer is noted in `reads`, and what a
    user should be told in `notes`; nested views share both.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        path: str,
        model_type: str,
        facts: TypeFacts,
        reads: dict[str, Read],
        notes: list[str],
    ):
        self.raw = raw
        self.path = path
        self.model_type = model_type
        self.facts = facts
        self.reads = reads
        self.notes = notes

    # -- finding ---------------------------------------------------------------------------------------------------

    def where(self, key: str) -> str:
        """The key's path, as error messages name it."""
        return f"{self.path}.{key}"

    def _names(self, key: str) -> tuple[str, ...]:
        mapped = self.facts.map.get(key)
        return (key,) if mapped is None else (mapped, key)

    def declared(self, key: str) -> bool:
        """Whether the config class has this field (an extra key in the file does not make one)."""
        return any(name in self.facts.fields for name in self._names(key))

    def given(self, key: str) -> bool:
        """Whether the file itself holds the key (null included)."""
        return any(name in self.raw for name in self._names(key))

    def get(self, key: str) -> Any:
        """The raw value, or None where neither the file nor the class has one.

        Raises:
            ConfigError: the file gives the same fact twice, under two names, with different values.
        """
        names = [name for name in self._names(key) if name in self.raw]
        if names:
            said = [name for name in names if self.raw[name] is not None]  # a null beside a value says nothing
            for other in said[1:]:
                if self.raw[other] != self.raw[said[0]]:
                    raise ConfigError(
                        f"{said[0]} and {other} name the same thing and disagree",
                        where=self.path,
                        got=f"{_short(self.raw[said[0]])} and {_short(self.raw[other])}",
                        hint="Remove the one that is wrong.",
                    )
            name = (said or names)[0]
            self._note(name, self.raw[name], "config" if name == key else "alias")
            return self.raw[name]
        for name in self._names(key):
            if name in self.facts.fields:
                value = self.facts.fields[name]
                if value is not None:
                    self._note(name, value, "default")
                return value
        return None

    def _note(self, name: str, value: Any, origin: Any) -> None:
        path = self.where(name)
        self.reads[path] = Read(path, _short(value), origin)

    # -- typed -----------------------------------------------------------------------------------------------------

    def invalid(self, key: str, wanted: str, got: Any) -> ConfigError:
        """The error for a value of the wrong type or out of bounds."""
        return ConfigError(f"must be {wanted}", where=self.where(self._shown(key)), got=_short(got))

    def _shown(self, key: str) -> str:
        """The name that the file has for a key, else the class's own."""
        names = self._names(key)
        return next((name for name in names if self.raw.get(name) is not None), names[0])

    def missing(self, key: str) -> ConfigError:
        """The error for a key that neither the file nor the class has."""
        return ConfigError(
            f"missing, {self.model_type} needs it",
            where=self.where(self._shown(key)),
            hint="Is this a full config? The config.json of the original repository has it.",
        )

    def maybe(self, key: str, at_least: int = 1) -> int | None:
        """A whole number within bounds, or None where there is none."""
        return self._whole(key, self.get(key), at_least)

    def _whole(self, key: str, value: Any, at_least: int) -> int | None:
        return None if value is None else self._one(key, value, at_least)

    def _one(self, key: str, value: Any, at_least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(key, "a whole number", value)
        if not at_least <= value <= MAX_DIMENSION:
            raise self.invalid(key, f"between {at_least} and {MAX_DIMENSION}", value)
        return value

    def need(self, key: str, at_least: int = 1) -> int:
        """A whole number within bounds.

        Raises:
            ConfigError: it is missing, of another type, or out of bounds.
        """
        value = self.maybe(key, at_least)
        if value is None:
            raise self.missing(key)
        return value

    def need_any(self, *keys: str) -> int:
        """The first of several keys that has a value.

        Raises:
            ConfigError: none of them has one.
        """
        for key in keys:
            value = self.maybe(key)
            if value is not None:
                return value
        raise self.missing(keys[0])

    def flag(self, key: str) -> bool:
        """A boolean; null and absent are False."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false", value)
        return value

    def number(self, key: str) -> float | None:
        """A finite number, or None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_DIMENSION:
            raise self.invalid(key, "a number", value)
        return float(value)

    def text(self, key: str) -> str | None:
        """A string, or None where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.invalid(key, "a string", value)
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None where there is none."""
        return self._list(key, str, "a list of strings")

    def whole_numbers(self, key: str, at_least: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers, or None where there is none."""
        values = self._list(key, int | float, "a list of whole numbers")
        if values is None:
            return None
        return tuple(self._one(f"{key}[{index}]", value, at_least) for index, value in enumerate(values))

    def _list(self, key: str, kind: Any, wanted: str) -> tuple[Any, ...] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_LAYERS:
            raise self.invalid(key, f"{wanted} of at most {MAX_LAYERS}", value)
        for item in value:
            if not isinstance(item, kind):
                raise self.invalid(key, wanted, item)
        return tuple(value)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """A layer count: like need, with the bound of what a model can have."""
        value = self.need(key)
        if value > MAX_LAYERS:
            raise self.invalid(key, f"at most {MAX_LAYERS}", value)
        return value

    def per_layer(self, key: str, count: int) -> tuple[int, ...]:
        """One whole number for each of `count` layers, given as a list or as one number for all."""
        listed = isinstance(self.get(key), list)
        values = (self.whole_numbers(key, at_least=1) or ()) if listed else (self.need(key),) * count
        if len(values) != count:
            raise ConfigError(f"has {len(values)} entries for {count} layers", where=self.where(key))
        return values

    def overlaid(self, values: Mapping[str, Any]) -> ConfigView:
        """The same config with some keys set to other values, under their own or their mapped name."""
        replaced = {name for key in values for name in self._names(key)}
        kept = {name: value for name, value in self.raw.items() if name not in replaced}
        raw = {**kept, **{self._names(key)[0]: value for key, value in values.items()}}
        return ConfigView(raw, self.path, self.model_type, self.facts, self.reads, self.notes)

    def child(self, key: str) -> ConfigView | None:
        """A nested object under its own path, read without class defaults; None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(key, "an object", value)
        return ConfigView(value, self.where(key), self.model_type, TypeFacts(), self.reads, self.notes)


MAX_OVERRIDDEN = 2**17  # distinct overrides x layers, each of which is worked out


def layer_overrides(view: ConfigView) -> list[tuple[ConfigView, frozenset[int]]]:
    """Views of a config with the keys that `per_layer_config` sets, each with the layers it is meant for.

    Raises:
        ConfigError: an entry is no object of keys, or meant for no layer.
    """
    given = view.get("per_layer_config")
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise view.invalid("per_layer_config", "an object with one entry a layer", given)
    count = view.layers()
    groups: dict[str, tuple[Mapping[str, Any], set[int]]] = {}
    for key, values in given.items():
        where = f"per_layer_config.{key}"
        index = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 8 else count
        if index >= count or not isinstance(values, Mapping):
            raise view.invalid(where, f"an object, under the index of one of {count} layers", values)
        if values.get("skip"):
            raise ConfigError("skipped parts of layers are not modelled", where=view.where(where))
        groups.setdefault(json.dumps(values, sort_keys=True, default=str), (values, set()))[1].add(index)
    if len(groups) * count > MAX_OVERRIDDEN:
        raise view.invalid("per_layer_config", f"at most {MAX_OVERRIDDEN // count} different entries", given)
    return [(view.overlaid(values), frozenset(indices)) for values, indices in groups.values()]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{…}"
    text = (
        json.dumps(value)  # ASCII: a config may hold what a terminal would obey
        if not isinstance(value, list) or len(value) <= 4
        else f"[{len(value)} entries]"
    )
    return text if len(text) <= 48 else text[:45] + "…"


def open_config(raw: Mapping[str, Any]) -> ConfigView:
    """The outer config object.

    Raises:
        ConfigError: it has no model_type.
        UnknownArchitectureError: no class of that type is known.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            "missing or no string" if "model_type" in raw else "missing",
            where="$.model_type",
            got=_short(model_type) if "model_type" in raw else None,
            hint="Is this a model's config.json? An adapter's or a tokenizer's will not do.",
        )
    return ConfigView(raw, "$", model_type, _facts_or_raise(model_type, raw), {}, [])


def _facts_or_raise(model_type: str, raw: Mapping[str, Any]) -> TypeFacts:
    facts = type_facts(model_type)
    if facts is None:
        raise unknown_architecture(model_type, raw)
    return facts


SHOWN_KEYS = (
    "layer_types",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
)


def unknown_architecture(model_type: str, raw: Mapping[str, Any]) -> UnknownArchitectureError:
    """The refusal for a type without a rule: the fields that were seen, and the nearest known names."""
    import difflib

    name = model_type[:64]
    telling = [
        key for key in raw if any(word in key for word in ("state", "ssm", "mamba", "conv", "lora", "window", "linear"))
    ]
    seen = [
        f"{json.dumps(key[:48])[1:-1]} {_short(raw[key])}"
        for key in dict.fromkeys((*SHOWN_KEYS, *telling))
        if key in raw
    ][:8]
    nearest = difflib.get_close_matches(name, known_types(), n=3, cutoff=0.5)
    lines = []
    if seen:
        lines.append("It saw: " + ", ".join(seen))
    if nearest:
        lines.append("Nearest known: " + ", ".join(nearest))
    lines.append("If your transformers knows it, add --probe: that runs the real model code on the meta device.")
    return UnknownArchitectureError(
        f"kvsize does not know the architecture {json.dumps(name)} yet, and does not guess",
        hint="\n".join(lines),
    )


def text_config(outer: ConfigView) -> ConfigView:
    """The view that generate() sizes the cache by: the nested text model's config, or the outer one itself.

    Raises:
        ConfigError: the nested config that this type must have is missing or no object.
        UnknownArchitectureError: the nested config is of an unknown type.
    """
    nesting = outer.facts.text
    if nesting is None:
        if "text_config" not in outer.raw or outer.given("num_hidden_layers"):
            return outer
        nesting = Nesting("text_config")  # a text-only type around a text_config: Ministral-3 is published so
    places = (nesting.at, *nesting.also, *OTHER_PLACES)
    at = next((key for key in places if outer.raw.get(key) is not None), None)
    if at is None:
        return _without_nested(outer, nesting)
    raw = outer.raw[at]
    if not isinstance(raw, Mapping):
        raise outer.invalid(at, "an object", raw)
    if at == "thinker_config":  # an outer shell around the whole model (Qwen omni, Qwen3-ASR as published)
        return text_config(ConfigView(raw, outer.where(at), outer.model_type, outer.facts, outer.reads, outer.notes))
    model_type = raw.get("model_type", nesting.type)
    if nesting.type and (nesting.fixed or _own_name(model_type, outer.model_type)):
        model_type = nesting.type
    if not isinstance(model_type, str):
        raise ConfigError("must be a string", where=f"{outer.where(at)}.model_type", got=_short(model_type))
    facts = _facts_or_raise(model_type, raw)
    if nesting.fields:
        facts = replace(facts, fields={**facts.fields, **nesting.fields})
    return text_config(ConfigView(raw, outer.where(at), model_type, facts, outer.reads, outer.notes))


def _own_name(nested: Any, outer: str) -> bool:
    """Whether an unknown nested type is just the outer type's name with a suffix (exaone4_5_text in exaone4_5)."""
    return isinstance(nested, str) and nested.startswith(f"{outer}_") and type_facts(nested) is None


# Where files keep the text model's config, besides the place that its class names.
OTHER_PLACES = ("llm_config", "language_config", "decoder_config", "thinker_config")


def _without_nested(outer: ConfigView, nesting: Nesting) -> ConfigView:
    """The class reads the keys of the outer config, or takes its own defaults; the latter is worth a warning."""
    if nesting.type is None:
        raise outer.missing(nesting.at)
    own = _facts_or_raise(nesting.type, outer.raw)
    facts = replace(own, fields={**own.fields, **nesting.fields})
    if nesting.flat:
        return ConfigView(outer.raw, outer.path, nesting.type, facts, outer.reads, outer.notes)
    outer.notes.append(
        f"the config has no {nesting.at}: every size below is the class default of {outer.model_type}, "
        "as transformers takes it. Is this a full config?"
    )
    facts = replace(facts, fields={**facts.fields, **nesting.absent})
    return ConfigView({}, outer.where(nesting.at), nesting.type, facts, outer.reads, outer.notes)
