"""TensorRT-LLM's start-up lines: the paged cache from the tokens that it was made for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsize.engines import Workload, trtllm
from kvsize.geometry import Geometry
from kvsize.logs.lines import Figure
from kvsize.logs.server import Server
from kvsize.logs.settings import number
from kvsize.logs.verdict import Findings, Verdict, Waste, judge, unpredicted
from kvsize.logs.waste import copies


def hypotheses(server: Server, geometry: Geometry) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - as the others
    """Nothing that decides a figure is left open."""
    yield {}


def reconcile(server: Server, geometry: Geometry, assumed: dict[str, Any]) -> Findings:  # noqa: ARG001 - as the others
    """Hold the pool's bytes against its tokens.

    Raises:
        UnsupportedError: no rule covers this model or these settings.
    """
    block = number(server.settings.get("tokens_per_block", "")) or 32
    ranks = number(server.settings.get("tensor_parallel_size", "")) or 1
    options = trtllm.Options(tensor_parallel_size=ranks, tokens_per_block=block)
    kv = server.settings.get("kv_cache_dtype", "auto")
    size = trtllm.size(geometry, Workload(block, 1, kv, kv), options)
    found = Findings(options=options, size=size, notes=list(size.notes))
    for figure in server.of("paged"):
        found.add(_paged(figure, size.total_bytes, block))
    for figure in server.of("primary"):
        found.add(_blocks(figure, server, block))
    same = copies(geometry, ranks)
    if same is not None:
        found.waste.append(Waste(same[0], 1 - 1 / same[1], None, ""))
    return found


def _paged(figure: Figure, block_bytes: int, block: int) -> Verdict:
    tokens = int(figure.facts["slots"].replace(",", ""))
    size = tokens // block * block_bytes
    return judge(figure, size, size, f"{tokens:,} tokens in blocks of {block}")


def _blocks(figure: Figure, server: Server, block: int) -> Verdict:
    tokens = [int(paged.facts["slots"].replace(",", "")) for paged in server.of("paged")]
    if not tokens:
        return unpredicted(figure)
    near = min((count // block for count in tokens), key=lambda blocks: abs(blocks - figure.least))
    return judge(figure, near, near, f"the pool's tokens in blocks of {block}")
