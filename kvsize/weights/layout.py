"""How weights are laid out: ranks and stages, and what of a part falls to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from kvsize.errors import UsageError
from kvsize.ranges import Range, exactly
from kvsize.weights.facts import Facts


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of tensor, pipeline and expert parallelism; expert_parallel 1 splits experts by tensor parallelism.

    `layers`: of each stage, where they are not dealt as vLLM does.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} parallelism of at least 1 rank", got=str(getattr(self, name)))


def partition(layers: int, layout: Layout) -> tuple[int, ...]:
    """Layers of each pipeline stage: what is left over goes to the last stages but one, backwards."""
    if layout.layers is not None:
        return layout.layers
    stages = layout.pipeline
    parts = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        parts[-index] += 1
    return tuple(parts)


def expert_share(facts: Facts, layout: Layout) -> Fraction:
    """How much of the experts a rank holds: some of them whole, split over the ranks that have the same ones."""
    experts = max(facts.experts, 1)
    dealt = Fraction(-(-experts // layout.expert), experts)
    return dealt * Fraction(min(layout.expert, layout.tensor), layout.tensor)


def unpacked(facts: Facts, layout: Layout) -> Range:
    """MLA: vLLM keeps the up-projection of quantised weights once more, unpacked to 16 bits (W_UK_T and W_UV)."""
    if facts.latent is None or facts.quantisation is None:
        return exactly(0)
    return Range(0, -(-facts.layers // layout.pipeline) * facts.latent[2] * 2 // layout.tensor)


def padded(facts: Facts, layout: Layout) -> Range:
    """MXFP4: vLLM pads experts for its kernels, as much as to 256 of the hidden and 128 of their own width.

    fused_moe/oracle/mxfp4.py: Marlin on an A100 makes 13.72 GiB of gpt-oss-20b's 12.82. Nothing for unpadded kernels.
    """
    if facts.quantisation != "mxfp4" or not facts.experts:
        return exactly(0)
    width = -(-facts.expert_width * min(layout.expert, layout.tensor) // layout.tensor)
    area = facts.hidden * width
    more = -(-facts.hidden // 256) * 256 * (-(-width // 128) * 128) - area
    layers = -(-facts.mixtures // layout.pipeline)
    # Four bits an element and eight for the scale of 32.
    stored = Fraction(17, 32) * layers * facts.experts * 3 * facts.hidden * facts.expert_width
    return Range(0, ceil(stored * expert_share(facts, layout) * Fraction(more, area)))
