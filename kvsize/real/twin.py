"""Real models of the installed transformers, built from a config alone and fed tokens: no weights, no remote code.

On the meta device nothing is allocated, so a trillion parameters take seconds. `thin` makes a twin that fits into a
small machine's memory: everything that decides a cache stays, everything else is cut.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from kvsize.errors import ConfigError, MissingRequirementError, UnknownArchitectureError, UnsupportedError

INSTALL = "pip install 'kvsize[probe]'"

ENCODER_TOKENS = 50
CACHE_NAMES = ("past_key_values", "cache_params", "past_buckets_states", "mems", "state", "cache")
CPU_PARAMETERS = 700_000_000

# Mappings of transformers' auto classes, in the order in which a model is looked for.
DECODERS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "TEXT_TO_WAVEFORM")
ENCODER_DECODERS = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT")

# What a cache does not depend on, by the end of the field's name, and what it is cut to.
THIN = {
    "vocab_size": 256,
    "vocab_size_per_layer_input": 256,
    "intermediate_size": 32,
    "intermediate_size_mlp": 32,
    "ffn_dim": 32,
    "d_ff": 32,
    "d_inner_ffn": 32,
    "n_inner": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "n_group": 1,
    "topk_group": 1,
}
# Widths of feed-forward layers that are four times the hidden size where a config leaves them out.
FOURFOLD = ("intermediate_size", "n_inner")
TEXT_MODELS = ("text_config", "decoder_config", "language_config", "llm_config")
# Towers that look or listen, and what counts their layers: one is enough, for a twin is fed text.
TOWER = re.compile(r"vision|audio|speech")
DEPTHS = ("depth", "num_hidden_layers", "num_layers", "n_layers", "encoder_layers", "encoder_num_layers")


def libraries() -> tuple[Any, Any]:
    """The modules torch and transformers, quiet and offline.

    Raises:
        MissingRequirementError: one of them is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("USE_HUB_KERNELS", "0")
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingRequirementError(f"real caches need torch and transformers: {error}", hint=INSTALL) from error
    transformers.logging.set_verbosity_error()
    return torch, transformers


def read_config(raw: Mapping[str, Any]) -> Any:
    """The config object that the installed transformers makes of a parsed config.json.

    Raises:
        UnknownArchitectureError: it has no class for this model_type; a repository's own code is never run.
        ConfigError: its class refuses these values.
    """
    if "general.architecture" in raw:
        raise UnknownArchitectureError(
            "no model is built from a GGUF's metadata alone", hint="Name the model's config.json, or its id on the Hub."
        )
    _, transformers = libraries()
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise UnknownArchitectureError(
            f"transformers {transformers.__version__} does not know the architecture {json.dumps(model_type)}",
            where="$.model_type",
            hint="A repository's own code is never run. A newer transformers may know it.",
        )
    values = _special_floats(transformers, copy.deepcopy(dict(raw)))
    try:
        config = transformers.CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:  # the classes validate by asserts, strict dataclasses and plain failures
        raise ConfigError(
            f"transformers {transformers.__version__} refuses this config: {first_line(error)}", where="$"
        ) from error
    for key in unread(raw, config):
        raise ConfigError(f"transformers {transformers.__version__} does not read {key} of a {model_type}", where="$")
    return config


def unread(raw: Mapping[str, Any], config: Any) -> Iterator[str]:
    """Text models inside a file that its class passes over, and builds its defaults instead (VibeVoice's)."""
    read = [(getattr(part, "hidden_size", None), getattr(part, "num_hidden_layers", None)) for part in configs(config)]
    for key in TEXT_MODELS:
        inner = raw.get(key)
        sizes = (inner.get("hidden_size"), inner.get("num_hidden_layers")) if isinstance(inner, Mapping) else (None,)
        if None not in sizes and sizes not in read:
            yield key


def _special_floats(transformers: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Infinity and NaN, which releases from 5.2 on write as {"__float__": "Infinity"}."""
    decode = getattr(transformers.PretrainedConfig, "_decode_special_floats", None)
    decoded: dict[str, Any] = decode(values) if decode else values
    return decoded


def first_line(error: BaseException) -> str:
    """An error of another library in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def thin(config: Any) -> Any:
    """A copy of a config with a tiny vocabulary, tiny feed-forward layers, four experts and one layer in each tower.

    Layer count and types, heads, head dims, windows, hidden sizes and state sizes stay as they are.
    """
    twin = copy.deepcopy(config)
    for part in configs(twin):
        for name, value in list(vars(part).items()):
            limit = _limit(part, name)
            if limit is not None:
                setattr(part, name, _cut(name, value, limit))
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "padding_idx"):
            if getattr(part, name, None) is not None:
                setattr(part, name, 0)
        for tower, name in product(towers(part), DEPTHS):
            if isinstance(getattr(tower, name, None), int):
                setattr(tower, name, 1)
    return twin


def _limit(part: Any, name: str) -> int | None:
    if name == "intermediate_size" and hasattr(part, "expand"):  # Mamba's: its states are as wide
        return None
    return THIN.get(name) or next((THIN[end] for end in THIN if name.endswith(f"_{end}")), None)


def _cut(name: str, value: Any, limit: int) -> Any:
    if isinstance(value, list):
        return [_cut(name, one, limit) for one in value]
    if value is None:
        return limit if name in FOURFOLD else None
    return min(value, limit) if isinstance(value, int) and not isinstance(value, bool) else value


def towers(config: Any) -> list[Any]:
    """The configs right inside this one that are of images or sound."""
    found = [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or () if TOWER.search(name)]
    return [tower for tower in found if hasattr(tower, "sub_configs")]


def configs(config: Any) -> Iterator[Any]:
    """A config and all configs nested in it."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        nested = getattr(config, name, None)
        if nested is not None and hasattr(nested, "sub_configs"):
            yield from configs(nested)


def text_config(config: Any) -> Any:
    """The config that `generate` sizes the cache by."""
    return config.get_text_config(decoder=True)


def model_classes(config: Any) -> list[Any]:
    """Classes that run this config: the published one, those of the auto classes, and those beside it in its module.

    Those that generate come first.
    """
    _, transformers = libraries()
    named = [getattr(transformers, str(name), None) for name in (getattr(config, "architectures", None) or ())]
    found = [cls for cls in named if getattr(cls, "config_class", None) is type(config)]
    orders = (ENCODER_DECODERS, DECODERS) if config.is_encoder_decoder else (DECODERS, ENCODER_DECODERS)
    auto = transformers.models.auto.modeling_auto
    for name in (*orders[0], *orders[1]):
        found += _mapped(getattr(auto, f"MODEL_FOR_{name}_MAPPING", {}), config)
    found = list(dict.fromkeys((*found, *_beside(config), *_mapped(auto.MODEL_MAPPING, config))))
    return sorted(found, key=lambda cls: not hasattr(cls, "generate"))


def _mapped(mapping: Any, config: Any) -> tuple[Any, ...]:
    try:
        entry = mapping[type(config)]
    except (KeyError, ValueError, ImportError):  # not there, or a name that nothing implements
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _beside(config: Any) -> list[Any]:
    """Generating classes of nested text models, which no auto class lists (BlipTextLMHeadModel)."""
    package = type(config).__module__.rpartition(".")[0]
    folder = Path(str(importlib.import_module(package).__file__)).parent
    found = []
    for path in sorted(folder.glob("modeling_*.py")):
        name = f"{package}.{path.stem}"
        own = [cls for cls in vars(importlib.import_module(name)).values() if inspect.isclass(cls)]
        found += [cls for cls in own if cls.__module__ == name and hasattr(cls, "generate")]
    return [cls for cls in found if getattr(cls, "config_class", None) is type(config)]


def build(cls: Any, config: Any, device: str, dtype: str) -> Any:
    """A model without weights of its own: nothing at all on "meta", random numbers elsewhere."""
    torch, _ = libraries()
    with torch.device(device):
        model = cls._from_config(copy.deepcopy(config), dtype=getattr(torch, dtype))
    model.eval()
    _keep_in_float32(torch, model, dtype)
    if device == "meta":
        _pass_experts(model)
    return model


def _keep_in_float32(torch: Any, model: Any, dtype: str) -> None:
    """from_pretrained loads these parameters in float32 whatever the dtype; from_config does not."""
    names = getattr(model, "_keep_in_fp32_modules_strict", None)
    if not names or dtype == "float32":
        return
    pattern = re.compile("|".join(rf"(^|\.){name}($|\.)" for name in names))
    for name, parameter in list(model.named_parameters()):
        if pattern.search(name):
            owner, _, leaf = name.rpartition(".")
            wide = torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
            setattr(model.get_submodule(owner), leaf, wide)


def _pass_experts(model: Any) -> None:
    """Routed experts depend on values, which the meta device has none of; they hold no cache, so tokens pass."""
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.forward = _unchanged


def _unchanged(hidden: Any, *_args: Any, **_kwargs: Any) -> Any:
    return hidden


# -- feeding -----------------------------------------------------------------------------------------------------------


def _answers(torch: Any) -> Any:
    """A mode in which a meta tensor asked for its value says one (true): model code asks whether a mask is all ones."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Answers(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
                return True if args[0].dtype == torch.bool else 1
            return func(*args, **(kwargs or {}))

    return Answers()


@dataclass(slots=True)
class Subject:
    """A model that can be fed. `own_cache`: it builds its cache itself and takes none of the library's. `bare_cache`:
    its config does not describe one, so it is given a pair of caches without a config (BLT).

    For audio codebooks: `shape` is that of the tokens at one position, `rows` the rows of tokens in one sequence.
    """

    model: Any
    device: str
    dtype: str
    encoder_tokens: int = ENCODER_TOKENS
    encoder_width: int | None = None
    shape: tuple[int, ...] = ()
    rows: int = 1
    own_cache: bool = False
    bare_cache: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    steps: bool | None = None

    def __post_init__(self) -> None:
        self.parameters = inspect.signature(self.model.forward).parameters

    @property
    def decodes(self) -> bool:
        """Whether a step after the prefill runs, too; tried once."""
        if self.steps is None:
            try:
                self.feed((2, 1))
                self.steps = True
            except Exception:  # model code fails in every way
                self.steps = False
        return self.steps

    @property
    def reads_encoder(self) -> bool:
        """Whether the model is fed an encoder's output."""
        return "encoder_outputs" in self.parameters and "decoder_input_ids" in self.parameters

    def cache(self, kind: str, length: int | None) -> Any:
        """The cache object that `generate` would prepare. transformers@5.23.0 generation/utils.py"""
        _, transformers = libraries()
        if self.bare_cache:
            return transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        text = text_config(self.model.config)
        if kind == "dynamic":
            own, cross = transformers.DynamicCache(config=text), {}
        else:
            own, cross = transformers.StaticCache(config=text, max_cache_len=length), {"config": text}
            cross["max_cache_len"] = self.encoder_tokens
        return transformers.EncoderDecoderCache(own, type(own)(**cross)) if self.reads_encoder else own

    def feed(self, plan: Sequence[int], sequences: int = 1, cache: str = "dynamic", length: int | None = None) -> Any:
        """The cache after a prefill of plan[0] tokens and a step for each other entry; `length` sizes a static one."""
        torch, _ = libraries()
        name = next((name for name in CACHE_NAMES if name in self.parameters), CACHE_NAMES[0])
        held: dict[str, Any] = {} if self.own_cache else {name: self.cache(cache, length)}
        seen = 0
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.device == "meta":
                stack.enter_context(_answers(torch))
                stack.enter_context(torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True))
            for tokens in plan:
                output = self.model(**self.inputs(sequences, tokens, seen), **held, use_cache=True)
                seen += tokens
                name = next((n for n in CACHE_NAMES if getattr(output, n, None) is not None), name)
                held = {name: getattr(output, name, None) or held.get(name)}
        return held[name] or ()

    def generate(self, **settings: Any) -> Any:
        """The model's own `generate`; of an encoder-decoder the library's, which is given the encoder's output.

        Its decoder starts with the token that it is fed, so none is put before them.
        """
        _, transformers = libraries()
        if not self.reads_encoder:
            return self.model.generate(**settings)
        return transformers.GenerationMixin.generate(self.model, **settings, decoder_start_token_id=1)

    def inputs(self, sequences: int, tokens: int, seen: int = 0) -> dict[str, Any]:
        """What the model is called with for so many tokens of each sequence, after those that it has seen."""
        torch, _ = libraries()
        ids = torch.ones((sequences * self.rows, tokens, *self.shape), dtype=torch.long, device=self.device)
        inputs = {"input_ids": ids}
        if self.reads_encoder:
            inputs = {"decoder_input_ids": ids, "encoder_outputs": self._encoded(torch, sequences)}
        if "cache_position" in self.parameters:
            inputs["cache_position"] = torch.arange(seen, seen + tokens, device=self.device)
        if "image_encoder_embeddings" in self.parameters:  # Idefics takes no text without an image
            width = self.model.config.vision_config.embed_dim
            inputs["image_encoder_embeddings"] = torch.zeros(sequences, 1, 4, width, device=self.device)
            inputs["image_attention_mask"] = torch.ones(sequences, tokens, 1, device=self.device)
        return inputs

    def _encoded(self, torch: Any, sequences: int) -> Any:
        _, transformers = libraries()
        shape = (sequences, self.encoder_tokens, self.encoder_width)
        hidden = torch.zeros(shape, dtype=getattr(torch, self.dtype), device=self.device)
        kind = transformers.modeling_outputs.BaseModelOutputWithPooling
        encoded = kind(last_hidden_state=hidden, pooler_output=hidden)
        for name in ("attention_mask", "router_logits"):  # some models look for these on their encoder's output
            object.__setattr__(encoded, name, None)
        return encoded


def subject(config: Any, dtype: str = "bfloat16", devices: Sequence[str] = ("meta", "cpu")) -> Subject:
    """The first class of this config that runs, on the first of these devices; a thin twin where there is memory.

    Raises:
        UnsupportedError: none does.
    """
    _, transformers = libraries()
    text = text_config(config)
    failures: list[str] = []
    for one in (config,) if type(text) is type(config) else (config, text):
        for cls in model_classes(one):
            for device in devices:
                try:
                    return _running(cls, one, device, dtype)
                except Exception as error:  # model code fails in every way; the next class may run
                    failures.append(f"{cls.__name__} on {device}: {first_line(error)}")
    raise UnsupportedError(
        f"transformers {transformers.__version__} cannot run a {config.model_type} from its config alone",
        got="; ".join(failures[:3]) or "no generating class",
        hint=None if "meta" in devices else "Use --device meta, where nothing is allocated.",
    )


def _running(cls: Any, config: Any, device: str, dtype: str) -> Subject:
    if device != "meta":
        config = thin(config)
    if device == "cpu":
        count = sum(parameter.numel() for parameter in build(cls, config, "meta", dtype).parameters())
        if count > CPU_PARAMETERS:
            raise UnsupportedError(f"{count:,} parameters are too many to run on this CPU")
    found = Subject(build(cls, config, device, dtype), device, dtype)
    failure: Exception | None = None
    for way in _ways(config, found.reads_encoder):
        one = replace(found, **way)
        try:
            one.feed((2,))
        except Exception as error:
            failure = failure or error
        else:
            return one
    raise failure or UnsupportedError(f"{cls.__name__} has no encoder width to try")


def _ways(config: Any, reads_encoder: bool) -> Iterator[dict[str, Any]]:
    """Ways to feed a model, as fields of a Subject, the usual one first."""
    books = {getattr(part, name, None) for part in configs(config) for name in ("num_codebooks", "num_channels")}
    counts = sorted(count for count in books if isinstance(count, int))
    shapes = [(), *((count + more,) for count in counts for more in (0, 1))]
    tokens: list[dict[str, Any]] = [*({"shape": shape} for shape in shapes), *({"rows": count} for count in counts)]
    widths = _encoder_widths(config) if reads_encoder else [None]
    for cache, fed, width in product(({}, {"own_cache": True}, {"bare_cache": True}), tokens, widths):
        yield {"encoder_width": width, **cache, **fed}


def _encoder_widths(config: Any) -> list[int | None]:
    """Hidden sizes that the encoder's output may have; the text model's own comes last."""
    names = ("encoder_hidden_size", "d_model", "hidden_size", "n_embd", "dim")
    parts = [*list(configs(config))[1:], config]
    values = [getattr(part, name, None) for part in parts for name in names]
    return [value for value in dict.fromkeys(values) if isinstance(value, int)]
