"""Bytes of weights on each rank where only their sum is known: the sum split, plus what is repeated, bounded.

Low ends take every part as split, draft layers as not loaded, and the heavy layers as lying elsewhere; high ends the
opposite. What is repeated is bounded by 16 bits an element, routers by 32.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, lcm

from kvsize.ranges import Range
from kvsize.weights.facts import Facts
from kvsize.weights.layout import Layout, expert_share, padded, partition, unpacked
from kvsize.weights.safetensors import DTYPE_BITS
from kvsize.weights.values import Weights


def by_total(weights: Weights, facts: Facts, layout: Layout, *, draft: bool) -> tuple[Range, ...]:
    """The range of each pipeline stage."""
    facts = replace(facts, element_bytes=_table_bytes(weights, facts))
    total = Range(
        weights.total_bytes if draft else max(weights.total_bytes - drafts(weights, facts), 0), weights.total_bytes
    )
    share, most = Fraction(1, layout.tensor), expert_share(facts, layout)
    # Experts dealt unevenly: all of the stage might be experts. Dealt over more ranks: what surely is.
    high = max(share, most) if facts.experts and layout.expert > 1 else share
    dealt = floor(_experts_at_least(weights, facts, layout) * max(share - most, Fraction(0)))
    beside = _repeated(weights, facts, layout) + unpacked(facts, layout).high + padded(facts, layout).high - dealt
    low = min(share, most) if facts.experts and layout.expert > 1 else share
    return tuple(
        Range(ceil(stage.low * low), max(ceil(stage.low * low), ceil(stage.high * high) + beside))
        for stage in _staged(total, facts, layout)
    )


def _table_bytes(weights: Weights, facts: Facts) -> tuple[int, int]:
    """Bytes of an element of the vocabulary: those of a plain checkpoint as it is loaded, else what the config says.

    A sum that somebody stated may be of any format, four bits as well.
    """
    if weights.evidence == "assumed":
        return 0, facts.element_bytes[1]
    main = weights.parts[0].dtype if weights.parts else None
    plain = {"F32": 4, "BF16": 2, "F16": 2}.get(main or "")
    return (plain, plain) if plain and facts.quantisation is None else facts.element_bytes


def drafts(weights: Weights, facts: Facts) -> int:
    """The most that draft layers can take: the heaviest layer that fits the sum, embeddings of their own, a mixer."""
    if not facts.drafts:
        return 0
    heavy = weights.total_bytes // ((facts.mixtures or facts.layers) + facts.drafts)
    vocabulary = 2 * 2 * facts.vocabulary if facts.draft_vocabulary else 0
    return facts.drafts * (heavy + vocabulary + 2 * 2 * facts.hidden * facts.hidden)


def _staged(total: Range, facts: Facts, layout: Layout) -> list[Range]:
    """Layers dealt to stages; the vocabulary lies on the first and on the last."""
    if layout.pipeline == 1:
        return [total]
    tables = {True: (1, 1), False: (2, 2), None: (1, 2)}[facts.tied]
    least, most = (min(facts.vocabulary * width, total.high // tables[0]) for width in facts.element_bytes)
    vocabulary = Range(least, most)
    first_only = min(facts.towers, total.high // 2) + 4 * facts.positions * facts.hidden
    norms = 16 * facts.hidden  # beside the last layer
    low = max(total.low - tables[1] * vocabulary.high - first_only - norms, 0)
    body = Range(low, max(total.high - tables[0] * vocabulary.low, low))
    stages, first = [], 0
    for index, count in enumerate(partition(facts.layers, layout)):
        ends = (index == 0) + (index == layout.pipeline - 1)
        part = _layers(body, first, count, facts)
        beside = (vocabulary.high + norms if ends else 0) + (first_only if index == 0 else 0)
        held = Range(vocabulary.low if ends else 0, beside)
        stage = part + held
        stages.append(Range(min(stage.low, total.high), min(stage.high, total.high)))
        first += count
    return stages


def _layers(body: Range, first: int, count: int, facts: Facts) -> Range:
    """`count` layers from `first` on: equal ones an equal share; mixtures at least the average, at most all of it."""
    if facts.unlike:
        # One kind of layer may hold nearly everything, and this stage all or none of that kind.
        return Range(0, body.high)
    if not facts.experts or not facts.dense_layers:
        return Range(body.low * count // facts.layers, -(-body.high * count // facts.layers))
    heavy = max(first + count - max(first, facts.dense_layers), 0)
    most = -(-body.high * heavy // facts.mixtures) + -(-body.high * (count - heavy) // facts.layers)
    return Range(body.low * heavy // facts.layers, most)


def _repeated(weights: Weights, facts: Facts, layout: Layout) -> int:
    """The most that a rank holds beyond its share."""
    layers = -(-facts.layers // layout.pipeline)
    hidden = facts.hidden
    per_layer = 32 * hidden + 4 * facts.experts * hidden  # norms and biases of 16 bits, eight of each; the router
    if facts.latent is not None:
        per_layer += 2 * hidden * (facts.latent[0] + facts.latent[1])
    elif facts.kv_heads and layout.tensor > facts.kv_heads:
        per_layer += 2 * 2 * facts.head_dim * hidden
    if facts.indexer is not None:
        heads, width = facts.indexer
        query = facts.latent[1] if facts.latent and facts.latent[1] else hidden
        per_layer += 2 * (query * heads * width + hidden * (width + heads))
    towers = min(facts.towers, weights.total_bytes // 2)  # split by default, repeated where asked for or awkward
    shared = layers * per_layer + 2 * facts.positions * hidden + towers
    unit = lcm(64, layout.tensor)
    rows = (1 if facts.tied else 2) * (-(-facts.vocab // unit) * unit - facts.vocab)
    padding = -(-rows * hidden * facts.element_bytes[1] // layout.tensor)
    return shared * (layout.tensor - 1) // layout.tensor + padding


def _experts_at_least(weights: Weights, facts: Facts, layout: Layout) -> int:
    """Bytes of a stage's experts, at least: three matrices each. 0 where layers are too unlike to say."""
    if facts.unlike:
        return 0
    layers = max(facts.layers // layout.pipeline - facts.dense_layers, 0)
    return layers * facts.experts * 3 * facts.hidden * facts.expert_width * _width(weights) // 8


def _width(weights: Weights) -> int:
    """Bits of an element of the experts, at least: those of the dtype that makes up most of the checkpoint, else 4."""
    most = weights.parts[0] if weights.parts else None
    plain = most is not None and most.dtype in {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"}
    return DTYPE_BITS[most.dtype] if most is not None and plain and 2 * most.bytes > weights.total_bytes else 4
