"""Weighs the cache that the installed transformers really builds, and reads a geometry off the tensors in it.

The model class runs on the meta device: real code, real shapes, no memory. Nothing here knows what kvsize predicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from kvsize.errors import UnsupportedError
from kvsize.formats import canonical
from kvsize.geometry import (
    Attention,
    Encoder,
    Full,
    Geometry,
    Heads,
    IndexKey,
    Layer,
    Recurrent,
    Sliding,
    State,
    StateRole,
    Store,
)
from kvsize.real.twin import Subject, libraries, read_config, subject, text_config

# Counters and flags that cache layers keep beside their content.
BOOKKEEPING = ("cumulative_length", "_sliding_window_tensor", "cumulative_length_int", "device_sliding_window")
# Token counts to weigh at: two neighbours for the slope, and one past every compressor's rate that is known.
COUNTS = (16, 17, 144)


@dataclass(frozen=True, slots=True)
class Held:
    """One cached tensor: its shape, the bytes it shows, and those of its storage (0 where already counted)."""

    name: str
    shape: tuple[int, ...]
    format: str
    logical: int
    storage: int


@dataclass(frozen=True, slots=True)
class HeldLayer:
    """What one layer's cache holds. `part` is "self", "cross", or "module" for states outside the cache object."""

    part: str
    index: int
    kind: str
    window: int | None
    tensors: tuple[Held, ...]

    @property
    def logical(self) -> int:
        """Bytes that the tensors show."""
        return sum(tensor.logical for tensor in self.tensors)

    @property
    def storage(self) -> int:
        """Bytes of the storages behind them."""
        return sum(tensor.storage for tensor in self.tensors)


# -- weighing ----------------------------------------------------------------------------------------------------------


def weigh(cache: Any, model: Any = None) -> tuple[HeldLayer, ...]:
    """Every tensor of a cache object, each view and each storage counted once."""
    seen: tuple[set[Any], set[Any]] = (set(), set())
    layers = []
    for part, index, kind, window, tensors in _groups(cache, model):
        held = tuple(_held(name, tensor, seen) for name, tensor in tensors if not _is_counter(name, tensor))
        layers.append(HeldLayer(part, index, kind, window, held))
    return tuple(layers)


def _held(name: str, tensor: Any, seen: tuple[set[Any], set[Any]]) -> Held:
    views, storages = seen
    storage = tensor.untyped_storage()
    address = storage._cdata
    view = (address, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
    logical = 0 if view in views else tensor.numel() * tensor.element_size()
    held = 0 if address in storages else storage.nbytes()
    views.add(view)
    storages.add(address)
    return Held(name, tuple(tensor.shape), canonical(str(tensor.dtype)), logical, held)


def _is_counter(name: str, tensor: Any) -> bool:
    return name.rpartition(".")[2] in BOOKKEEPING or (tensor.numel() <= 1 and not tensor.is_floating_point())


_Group = tuple[str, int, str, "int | None", list[tuple[str, Any]]]


def _groups(cache: Any, model: Any) -> Iterator[_Group]:
    for part in ("self", "cross"):
        inner = getattr(cache, f"{part}_attention_cache", cache if part == "self" else None)
        if inner is not None:
            yield from _layers_of(inner, part)
    if model is not None and model.config.model_type == "recurrent_gemma":
        yield from _states_outside(model)


def _layers_of(cache: Any, part: str) -> Iterator[_Group]:
    layers = getattr(cache, "layers", None)
    if isinstance(layers, list):
        for index, layer in enumerate(layers):
            window = getattr(layer, "sliding_window", None)
            found = [(".".join(path), tensor) for path, tensor in _tensors(layer, (), set())]
            yield part, index, type(layer).__name__, window if isinstance(window, int) else None, found
        rest: Any = {name: value for name, value in vars(cache).items() if name != "layers"}
    else:
        rest = vars(cache) if hasattr(cache, "__dict__") and not isinstance(cache, Mapping) else cache
    by_index: dict[int, list[tuple[str, Any]]] = {}
    for path, tensor in _tensors(rest, (), set()):
        index = next((int(step) for step in path if step.isdigit()), 0)
        by_index.setdefault(index, []).append((".".join(s for s in path if not s.isdigit()) or "item", tensor))
    for index, found in sorted(by_index.items()):
        yield part, index, type(cache).__name__, None, found


def _tensors(value: Any, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[tuple[str, ...], Any]]:
    torch, transformers = libraries()
    if isinstance(value, torch.Tensor):
        if not hasattr(value, "__tensor_flatten__"):
            yield path, value
            return
        for name in value.__tensor_flatten__()[0]:  # quantised: packed elements, scales, shifts
            yield from _tensors(getattr(value, name), (*path, name), seen)
        return
    if id(value) in seen or value is None or isinstance(value, transformers.PretrainedConfig):
        return
    seen.add(id(value))
    for name, inner in _children(value):
        yield from _tensors(inner, (*path, name), seen)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [(str(index), inner) for index, inner in enumerate(value)]
    if type(value).__module__.partition(".")[0] == "transformers" and hasattr(value, "__dict__"):
        return list(vars(value).items())
    return []


def _states_outside(model: Any) -> Iterator[_Group]:
    """RecurrentGemma keeps its states in its modules."""
    torch, _ = libraries()
    index = 0
    for module in model.modules():
        found = [(n, v) for n, v in vars(module).items() if "state" in n and isinstance(v, torch.Tensor)]
        if found:
            yield "module", index, type(module).__name__, None, found
            index += 1


# -- from tensors to a geometry ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weighed:
    """The cache right after a one-shot prefill of so many tokens, one sequence."""

    tokens: int
    layers: tuple[HeldLayer, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """What a real run showed. `encoder_tokens` is None for a model without an encoder."""

    geometry: Geometry
    transformers: str
    model_class: str
    dtype: str
    encoder_tokens: int | None
    weighed: tuple[Weighed, ...]


def probe(raw: Mapping[str, Any]) -> Probe:
    """Run the real model class of the installed transformers on the meta device and read its cache's geometry off.

    `raw` is a parsed config.json. The cache is weighed at 16, 17 and 144 tokens, and one past each window.

    Raises:
        MissingRequirementError: torch or transformers is not installed.
        UnknownArchitectureError: transformers has no class for this model_type.
        ConfigError: its class refuses the config.
        UnsupportedError: the model cannot be run from its config alone, or keeps its tokens in a way of its own.
    """
    _, transformers = libraries()
    config = read_config(raw)
    found = subject(config)
    first = Weighed(COUNTS[0], weigh_prefill(found, COUNTS[0]))
    windows = sorted({layer.window for layer in first.layers if layer.window is not None})
    longest = getattr(text_config(config), "max_position_embeddings", None) or max(COUNTS)
    counts = dict.fromkeys((*(min(count, longest) for count in COUNTS[1:]), *(window + 1 for window in windows)))
    weighed = (first, *(Weighed(tokens, weigh_prefill(found, tokens)) for tokens in counts))
    return Probe(
        geometry=Geometry(
            model_type=config.model_type,
            layers=measured_layers(weighed, found.dtype),
            max_tokens=_positive_or_none(getattr(found.model.config, "max_position_embeddings", None)),
            dtype=_dtype_name(config),
            architecture=type(found.model).__name__,
            notes=(
                f"measured on {type(found.model).__name__} of transformers {transformers.__version__}, without weights",
            ),
        ),
        transformers=transformers.__version__,
        model_class=type(found.model).__name__,
        dtype=found.dtype,
        encoder_tokens=found.encoder_tokens if found.reads_encoder else None,
        weighed=weighed,
    )


def weigh_prefill(found: Subject, tokens: int) -> tuple[HeldLayer, ...]:
    """The layers of a subject's dynamic cache after one prefill."""
    return weigh(found.feed((tokens,)), found.model)


def _positive_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _dtype_name(config: Any) -> str | None:
    dtype = getattr(config, "dtype", None)
    return canonical(str(dtype)) if dtype is not None else None


def measured_layers(weighed: Sequence[Weighed], dtype: str) -> tuple[Layer, ...]:
    """One Layer for each index that a cache object has, from what was weighed at several token counts.

    `dtype` is that of the activations; a store of another one keeps it.

    Raises:
        UnsupportedError: a layer keeps tokens in a way that neither a window nor a constant size explains.
    """
    stores: dict[int, list[Store]] = {}
    kinds: dict[int, str] = {}
    for position, layer in enumerate(weighed[0].layers):
        seen = tuple((one.tokens, one.layers[position]) for one in weighed)
        kinds.setdefault(layer.index, layer.kind)
        stores.setdefault(layer.index, []).extend(_stores(seen, dtype))
    return tuple(
        Layer(tuple(stores[i]), kind=kinds[i]) if i in stores else Layer() for i in range(max(stores, default=-1) + 1)
    )


_Seen: TypeAlias = tuple[tuple[int, HeldLayer], ...]


def _stores(seen: _Seen, dtype: str) -> list[Store]:
    first = seen[0][1]
    stores: list[Store] = []
    states = []
    names = [tensor.name for tensor in first.tensors]
    for position, tensor in enumerate(first.tensors):
        if tensor.name == "values" and "keys" in names:
            continue
        shapes = {layer.tensors[position].shape for _, layer in seen}
        if tensor.name == "keys" and "values" in names:
            stores.append(_heads(seen, position, names.index("values"), dtype))
        elif len(shapes) == 1 and all(tensor.shape):
            states.append(_state(tensor, dtype))
        else:
            stores.append(_growing(seen, position, dtype))
    return [*stores, Recurrent("measured", tuple(states))] if states else stores


def _state(tensor: Held, dtype: str) -> State:
    role: StateRole = "conv" if "conv" in tensor.name else "recurrent"
    return State(role, tensor.shape[1:], None if tensor.format == dtype else tensor.format)


def _heads(seen: _Seen, keys: int, values: int, dtype: str) -> Attention:
    first = seen[0][1]
    key, value = first.tensors[keys], first.tensors[values]
    kept = tuple((tokens, layer.tensors[keys].shape[2]) for tokens, layer in seen)
    same = value.shape == key.shape and value.logical == 0
    entry = Heads(key.shape[1], key.shape[3], 0 if same else value.shape[3])
    if key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        raise _unexplained(first, f"{key.shape[1:3]} keys and {value.shape[1:3]} values")
    own = None if key.format == dtype else key.format
    if first.part == "cross":
        return Attention(entry, Encoder(), own)
    if first.window is not None:
        if any(count != _windowed(tokens, first.window) for tokens, count in kept):
            raise _unexplained(first, f"{dict(kept)} tokens kept under a window of {first.window}")
        return Attention(entry, Sliding(first.window), own)
    return Attention(entry, Full(), own, extra_tokens=_extra(first, kept))


def _windowed(tokens: int, window: int) -> int:
    """transformers@5.23.0 cache_utils.py: a slice [-window + 1 :], which is everything for a window of one."""
    return tokens if window == 1 else min(tokens, window - 1)


def _extra(layer: HeldLayer, kept: Sequence[tuple[int, int]]) -> int:
    extra = {count - tokens for tokens, count in kept}
    if len(extra) != 1 or min(extra) < 0:
        raise _unexplained(layer, f"{dict(kept)} tokens kept")
    return extra.pop()


def _growing(seen: _Seen, position: int, dtype: str) -> Attention:
    """Anything else that grows by one entry a token: index keys, positions, hidden states."""
    first = seen[0][1]
    a = first.tensors[position]
    shapes = {tokens: list(layer.tensors[position].shape) for tokens, layer in seen}
    axes = [axis for axis in range(len(a.shape)) if len({shape[axis] for shape in shapes.values()}) > 1]
    if len(axes) != 1 or not all(a.shape):
        raise _unexplained(first, f"{a.name} of shapes {shapes}")
    extra = _extra(first, [(tokens, layer.tensors[position].shape[axes[0]]) for tokens, layer in seen])
    entry = IndexKey(prod(size for axis, size in enumerate(a.shape) if axis != axes[0]))
    return Attention(entry, Full(), None if a.format == dtype else a.format, extra, expanded_view=a.storage < a.logical)


def _unexplained(layer: HeldLayer, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"layer {layer.index} ({layer.kind}) keeps its tokens in a way that a probe cannot generalise", got=what
    )
