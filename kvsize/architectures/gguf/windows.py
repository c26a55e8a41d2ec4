"""Which layers of a GGUF have a window, and how large: listed, or by the architecture's own pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsize.architectures.gguf.metadata import Metadata, Shape
from kvsize.geometry import Chunked, Full, Sliding, Span


@dataclass(frozen=True, slots=True)
class Windows:
    """Which layers have a window, and how large.

    Each `period`-th layer is full (the first of each period with `dense_first`), unless the file lists the layers; a
    period of 0 makes all of them windows, None means that the file must list them. `default` stands in for a missing
    size, `fixed` overrides a given one. `optional`: without a size there are no windows.
    """

    period: int | None
    dense_first: bool = False
    default: int | None = None
    fixed: int | None = None
    optional: bool = False
    chunked: bool = False

    def spans(self, cfg: Metadata, sizes: Shape) -> tuple[Span, ...]:
        """The span of each layer."""
        full: tuple[Span, ...] = (Full(),) * sizes.layers
        given = cfg.maybe("attention.sliding_window", at_least=0)
        if (given is None and self.optional) or (given == 0 and (self.optional or self.chunked)):
            return full
        size = self.fixed or (self.default if given is None else given)
        if size is None:
            raise cfg.missing("attention.sliding_window")
        if size == 0:
            raise cfg.invalid("attention.sliding_window", "a window in tokens", size)
        window: Span = Chunked(size) if self.chunked else Sliding(size)
        return tuple(window if marked else Full() for marked in self._marks(cfg, sizes))

    def _marks(self, cfg: Metadata, sizes: Shape) -> Sequence[bool]:
        """llama.cpp@b11434 src/llama-model.cpp load_swa_pattern, src/llama-hparams.cpp set_swa_pattern"""
        key = "attention.sliding_window_pattern"
        listed = cfg.marks(key, sizes.layers)
        if listed is not None:
            return listed
        if self.period is None:
            raise cfg.missing(key)
        given = cfg.maybe(key, at_least=0)
        period = self.period if given is None else given
        full = 0 if self.dense_first else period - 1
        last = sizes.layers - sizes.drafts
        return [i < last and (period == 0 or i % period != full) for i in range(sizes.layers)]


def is_window(span: Span) -> bool:
    """Whether a layer keeps less than everything."""
    return isinstance(span, Sliding | Chunked)
