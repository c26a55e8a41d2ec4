"""How elements become bytes: a table of formats, integers only."""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.errors import UsageError


@dataclass(frozen=True, slots=True)
class Format:
    """`block_bytes` hold `block_elements` elements; 1 for plain types, 32 for most of llama.cpp's."""

    name: str
    block_elements: int
    block_bytes: int

    def bytes(self, elements: int) -> int:
        """Bytes of a run of elements.

        Raises:
            ValueError: the run is no whole number of blocks.
        """
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise ValueError(f"{elements} elements are no whole number of {self.name} blocks of {self.block_elements}")
        return blocks * self.block_bytes


def _plain(name: str, size: int) -> Format:
    return Format(name, 1, size)


# Plain element types. Block formats: ggml's, ggml-common.h (each block carries its scale, some a minimum too).
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        _plain("float32", 4),
        _plain("float16", 2),
        _plain("bfloat16", 2),
        _plain("fp8_e4m3", 1),
        _plain("fp8_e5m2", 1),
        _plain("int8", 1),
        _plain("int64", 8),
        Format("q8_0", 32, 34),
        Format("q5_1", 32, 24),
        Format("q5_0", 32, 22),
        Format("q4_1", 32, 20),
        Format("q4_0", 32, 18),
        Format("iq4_nl", 32, 18),
    )
}

ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def canonical(name: str) -> str:
    """The table's name of a format: `torch.bfloat16`, `BF16` and `bf16` are all `bfloat16`."""
    lowered = name.lower().removeprefix("torch.")
    return ALIASES.get(lowered, lowered)


def format_of(name: str) -> Format:
    """The format of that name or alias.

    Raises:
        UsageError: no such format.
    """
    found = FORMATS.get(canonical(name))
    if found is None:
        raise UsageError(f"unknown format {name!r}", hint="Known: " + ", ".join(FORMATS))
    return found
