"""Bytes of weights on each rank: what tensor, pipeline and expert parallelism split, and what every rank repeats.

The rules are vllm@0.33.0's, whose layers SGLang's follow. Tensor parallelism splits linear layers, the vocabulary
(rows padded to 64: vocab_parallel_embedding.py), and experts inside, unless expert parallelism deals them out whole.
Repeated on every rank: norms, routers, the down-projections of MLA (deepseek_v2.py ReplicatedLinear), KV heads that are
fewer than the ranks (linear.py QKVParallelLinear num_kv_head_replicas). Stages: distributed/utils.py get_pp_indices.

Where headers were read, each tensor is placed by its name, and a name that no rule knows is a range: split, or
repeated. Where only the sum is known, the repeated parts are bounded by the config, and the result is a range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from math import ceil, lcm
from typing import Any, Literal

from kvsize.errors import UnsupportedError
from kvsize.ranges import Range, exactly
from kvsize.weights.facts import Facts, facts_of
from kvsize.weights.layout import Layout, expert_share, padded, partition, unpacked
from kvsize.weights.safetensors import Tensor
from kvsize.weights.totals import by_total
from kvsize.weights.values import Weights


def per_rank(
    weights: Weights, config: Mapping[str, Any], *, tp: int = 1, pp: int = 1, ep: int = 1, draft: bool = False
) -> Range:
    """Bytes on the fullest rank; see per_stage."""
    stages = per_stage(weights, config, tp=tp, pp=pp, ep=ep, draft=draft)
    return Range(max(stage.low for stage in stages), max(stage.high for stage in stages))


def per_stage(
    weights: Weights,
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    draft: bool = False,
    layers: tuple[int, ...] | None = None,
) -> tuple[Range, ...]:
    """Bytes on a rank of each pipeline stage. `draft` counts the draft (MTP) layers, which an engine loads on demand.

    Raises:
        UsageError: a layout of no ranks.
        UnsupportedError: heads that the ranks do not divide, more stages than layers: vLLM refuses it too.
        ConfigError: the config does not say how many layers there are, or how wide.
    """
    layout = Layout(tp, pp if layers is None else len(layers), ep, layers)
    if (tp, layout.pipeline, ep) == (1, 1, 1) and not weights.tensors and weights.evidence == "assumed":
        return (exactly(weights.total_bytes),)
    facts = facts_of(config)
    if layers is not None and sum(layers) != facts.layers:  # counted otherwise than the caller counts them
        facts = replace(facts, layers=sum(layers), unlike=True)
    _check(facts, layout)
    if weights.tensors:
        return _by_tensor(weights.tensors, facts, layout, draft=draft)
    return by_total(weights, facts, layout, draft=draft)


def _check(facts: Facts, layout: Layout) -> None:
    hint = "Choose a number of ranks that divides the heads, and no more stages than layers."
    if facts.heads is not None and facts.heads % layout.tensor:
        what = f"{facts.heads} attention heads cannot be split over {layout.tensor} ranks"
        raise UnsupportedError(what, hint=hint)
    kv_heads = facts.kv_heads
    if kv_heads and facts.latent is None and max(kv_heads, layout.tensor) % min(kv_heads, layout.tensor):
        what = f"{kv_heads} KV heads can be neither split over {layout.tensor} ranks nor repeated evenly"
        raise UnsupportedError(what, hint=hint)
    if layout.pipeline > facts.layers:
        raise UnsupportedError(f"{facts.layers} layers make no {layout.pipeline} stages", hint=hint)


# -- by name -----------------------------------------------------------------------------------------------------------

Placement = Literal["sharded", "replicated", "kv", "qkv", "experts", "vocabulary", "unsure"]

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_DRAFT = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")
_TOWER = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|vit|audio\w*|img\w*|image\w*|multi_modal_projector|mm_projector|mlp1|talker|code2wav|"
    r"patch_embed\w*|projector|connector|aligner|resampler|encoder)\."
)
_POSITIONS = re.compile(r"(?:^|\.)(?:wpe|embed_positions|position_embeddings?)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.|^(?:(?:model|transformer)\.)?(?:output|output_layer)\.weight$")
# The first rule that finds its pattern in a tensor's name places it.
_RULES: tuple[tuple[re.Pattern[str], Placement], ...] = (
    (re.compile(r"\.experts\."), "experts"),
    (
        re.compile(
            r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings?|shared)\.weight$|"
            + _HEAD.pattern
        ),
        "vocabulary",
    ),
    (
        re.compile(
            r"norm|(?:^|\.)ln_|router|\.gate\.|shared_expert_gate|_bias_correction|score_correction|kv_a_proj|q_a_proj|"
            r"fused_qkv_a|rotary|inv_freq|indexer|" + _POSITIONS.pattern
        ),
        "replicated",
    ),
    (re.compile(r"\.(?:qkv_proj|query_key_value|c_attn|Wqkv|wqkv|qkv)\."), "qkv"),
    (re.compile(r"\.(?:k_proj|v_proj|wk|wv|key_proj|value_proj)\."), "kv"),
    (
        re.compile(
            r"\.(?:q_proj|o_proj|q_b_proj|kv_b_proj|gate_proj|up_proj|down_proj|gate_up_proj|w[123]|wq|wo|c_fc|c_proj|"
            r"fc1|fc2|fc_in|fc_out|dense|dense_h_to_4h|dense_4h_to_h|out_proj|in_proj\w*|x_proj|conv1d|attention|mlp|"
            r"feed_forward|mixer|mamba|linear_attn|self_attn)\."
        ),
        "sharded",
    ),
)


def _place(tensor: Tensor) -> Placement:
    if _TOWER.search(tensor.name):
        return "unsure"
    # Biases and scales of one axis: split with the columns of one layer, whole beside the rows of another.
    flat = sum(size > 1 for size in tensor.shape) < 2
    for pattern, placement in _RULES:
        if pattern.search(tensor.name):
            return placement if placement == "replicated" or not flat else "unsure"
    return "unsure"


def _by_tensor(tensors: tuple[Tensor, ...], facts: Facts, layout: Layout, *, draft: bool) -> tuple[Range, ...]:
    ends = _ends(facts.layers, layout)
    if facts.tied is None:
        facts = replace(facts, tied=not any(_HEAD.search(tensor.name) for tensor in tensors))
    sums = [exactly(0)] * layout.pipeline
    for tensor in tensors:
        layer = _layer(tensor)
        drafted = bool(_DRAFT.search(tensor.name)) or (layer is not None and layer >= facts.layers)
        if (drafted and not draft) or (facts.tied and _HEAD.search(tensor.name)):
            continue
        for stage in _stages(tensor, layer, facts, ends):
            sums[stage] += _share(tensor, facts, layout)
    extra = unpacked(facts, layout) + padded(facts, layout)
    return tuple(total + extra for total in sums)


def _layer(tensor: Tensor) -> int | None:
    found = None if _TOWER.search(tensor.name) else _LAYER.search(tensor.name)
    return int(found[1]) if found else None


def _ends(layers: int, layout: Layout) -> tuple[int, ...]:
    """The first layer after each stage."""
    return tuple(accumulate(partition(layers, layout)))


def _stages(tensor: Tensor, layer: int | None, facts: Facts, ends: tuple[int, ...]) -> Iterator[int]:
    last = len(ends) - 1
    if layer is not None:
        yield next((stage for stage, end in enumerate(ends) if layer < end), last)
    elif _place(tensor) == "vocabulary":
        head = bool(_HEAD.search(tensor.name))
        yield last if head else 0
        if facts.tied and last:
            yield last
    else:
        first = _POSITIONS.search(tensor.name) or _place(tensor) != "replicated"
        yield last if _DRAFT.search(tensor.name) or not first else 0


def _share(tensor: Tensor, facts: Facts, layout: Layout) -> Range:
    """What one rank holds of a tensor."""
    size, ranks = tensor.bytes, layout.tensor
    match _place(tensor):
        case "replicated":
            return exactly(size)
        case "sharded":
            return exactly(-(-size // ranks))
        case "vocabulary":
            rows = tensor.shape[0] if tensor.shape else 1
            unit = lcm(64, ranks)
            return Range(-(-size // ranks), -(-rows // unit) * unit // ranks * (size // max(rows, 1)))
        case "experts":
            return exactly(ceil(size * expert_share(facts, layout)))
        case "kv":
            return _of_heads(size, 0, facts, ranks)
        case "qkv":
            return _of_heads(size, facts.heads or 0, facts, ranks)
        case "unsure":
            return Range(-(-size // ranks), size)


def _of_heads(size: int, queries: int, facts: Facts, ranks: int) -> Range:
    """K and V of whole heads, at least one to a rank; `queries` heads lie in the same tensor."""
    if facts.kv_heads is None:
        return Range(-(-size // ranks), size)
    if facts.latent is not None:
        return exactly(-(-size // ranks))
    pieces = queries + (2 if queries else 1) * facts.kv_heads
    held = -(-queries // ranks) + (2 if queries else 1) * max(-(-facts.kv_heads // ranks), 1)
    return exactly(-(-size * held // pieces))


def rotary_tables(config: Mapping[str, Any]) -> Range:
    """The tables of rotary positions that vLLM builds beside the weights, on each rank, and prints with them.

    16 bits for each position and rotated dimension (rotary_embedding/base.py), twice where windows turn otherwise.
    """
    facts = facts_of(config)
    return Range(0, 2 * facts.max_positions * sum(facts.rotary_dims))


PAGES = 200  # a share of the weights: allocations in whole pages and small buffers, at most half a percent in the logs
TOWERS = 600 << 20  # 0.32 GiB on Gemma 3 27B, 0.55 on 12B in vLLM 0.19's logs


def beside(config: Mapping[str, Any], share: int) -> Range:
    """What a server's figure for so many bytes of weights on a rank holds beyond the checkpoint, as its logs show.

    Rotary tables, whole pages, and the buffers of a vision or audio tower.
    """
    towers = any(key.endswith(("vision_config", "audio_config")) for key in config)
    return rotary_tables(config) + Range(0, share // PAGES + towers * TOWERS)
