"""Cache types and flash attention, as llama.cpp settles them before it allocates anything.

llama.cpp@b11434 src/llama-context.cpp llama_init_from_model
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines import Workload
from kvsize.engines.llamacpp.archs import NO_FLASH, NO_VALUE_LENGTH
from kvsize.engines.llamacpp.versions import MLA_SAME_TYPES, Build
from kvsize.errors import UnsupportedError, UsageError
from kvsize.formats import Format, format_of
from kvsize.geometry import Attention, Geometry, Heads, Latent

# common/arg.cpp kv_cache_types
ALLOWED = ("float32", "float16", "bfloat16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True, slots=True)
class Types:
    """The formats of K and V, why these, and whether flash attention is on (`forced`: not as was asked)."""

    k: Format
    v: Format
    source: str
    flash: bool
    forced: bool


def settle(
    workload: Workload, type_k: str | None, type_v: str | None, flash_attn: str | None, arch: str, rules: Build
) -> Types:
    """Formats and flash attention of a context.

    Raises:
        UsageError: a value that means nothing.
        UnsupportedError: a type llama.cpp has no cache of, or V quantised without flash attention.
    """
    k, k_given = _type("k", type_k, workload.k_format)
    v, v_given = _type("v", type_v, workload.v_format)
    asked = _asked(flash_attn, rules)
    flash = asked and arch not in NO_FLASH
    if is_quantised(v) and not flash:
        why = f"{arch} cannot use it" if asked else "it is off"
        hint = "Leave --flash-attn at auto, or --cache-type-v at f16."
        raise UnsupportedError(f"a quantised V cache needs flash attention, and {why}", got=v.name, hint=hint)
    return Types(k, v, "given" if k_given or v_given else "default", flash, forced=asked and not flash)


def _asked(flash_attn: str | None, rules: Build) -> bool:
    """`auto` counts as on: the caches are laid out before llama.cpp finds out that a device cannot."""
    if flash_attn not in (None, "on", "off", "auto"):
        raise UsageError("--flash-attn is on, off or auto", got=flash_attn[:40])
    return flash_attn == "on" if rules.old else flash_attn != "off"


def _type(letter: str, flag: str | None, wanted: str) -> tuple[Format, bool]:
    if flag is not None and wanted != "auto" and format_of(flag) != format_of(wanted):
        raise UsageError(f"--cache-type-{letter} and --kv-dtype contradict each other", got=f"{flag} and {wanted}")
    name = wanted if flag is None else flag
    if name == "auto":
        return format_of("float16"), False
    found = format_of(name)
    if found.name not in ALLOWED:
        hint = "It has f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl."
        raise UnsupportedError(f"llama.cpp has no cache of {found.name}", hint=hint)
    return found, True


def is_quantised(unit: Format) -> bool:
    """Whether several elements share a scale."""
    return unit.block_elements != 1


def check_latent(types: Types, rules: Build) -> None:
    """MLA and DeepSeek-V4 keep K only, and still want both types alike.

    Raises:
        UnsupportedError: they differ.
    """
    if types.k != types.v and rules.number >= MLA_SAME_TYPES:
        hint = f"Set both to {types.k.name}: V takes no bytes."
        got = f"{types.k.name} and {types.v.name}"
        raise UnsupportedError("llama.cpp wants one type for K and V of this model", got=got, hint=hint)


def check_widths(geometry: Geometry, types: Types, arch: str) -> None:
    """With flash attention a head must be whole blocks.

    Raises:
        UnsupportedError: it is not.
    """
    if not types.flash:
        return
    for letter, unit, widths in zip("kv", (types.k, types.v), _widths(geometry, arch), strict=True):
        odd = sorted(width for width in widths if width % unit.block_elements)
        if odd:
            what = f"{unit.name} has blocks of {unit.block_elements}, and a head's {letter.upper()} is no multiple"
            hint = f"Use --cache-type-{letter} f16."
            raise UnsupportedError(what, got=", ".join(map(str, odd)), hint=hint)


def _widths(geometry: Geometry, arch: str) -> tuple[set[int], set[int]]:
    """Widths of a head's K and V: as a GGUF states them, else as the layers have them."""
    stated = dict(geometry.stated)
    k, v = (
        {stated[name] for name in (f"attention.{key}_length", f"attention.{key}_length_swa") if name in stated}
        for key in ("key", "value")
    )
    of_k, of_v = _layer_widths(geometry, arch)
    return k or of_k, v or of_v


def _layer_widths(geometry: Geometry, arch: str) -> tuple[set[int], set[int]]:
    k: set[int] = set()
    v: set[int] = set()
    for layer in geometry.layers:
        for store in layer.stores:
            match store:
                case Attention(entry=Heads(k_dim=key, v_dim=value)):
                    k.add(key)
                    v.add(value)
                case Attention(entry=Latent(rank=rank, rope_dim=rope)):
                    k.add(rank + rope)
                    v.add(_value_length(geometry, arch) or rank)
    return k, v


def _value_length(geometry: Geometry, arch: str) -> int | None:
    """What stands in for a value_length that the converter does not write, although MLA keeps no V."""
    if arch not in NO_VALUE_LENGTH or not geometry.hidden_size or not geometry.num_attention_heads:
        return None
    return geometry.hidden_size // geometry.num_attention_heads
