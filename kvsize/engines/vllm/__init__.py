"""vLLM: pages, groups and the pool, as its planner lays them out on each rank.

Checked against plans of the real 0.33.0 planner (validate/truth/vllm-0.33.0*.jsonl). setup resolves settings, specs
turns layers into pages, blocks and groups arrange them, plan counts what requests take and a budget holds, versions
says what earlier releases did differently.
"""

from __future__ import annotations

from kvsize.engines import CacheSize, Evidence, Workload
from kvsize.engines.vllm import models, notes, versions
from kvsize.engines.vllm.charge import charged
from kvsize.engines.vllm.checks import check
from kvsize.engines.vllm.plan import make, pool
from kvsize.engines.vllm.setup import Options, Setup, resolve
from kvsize.engines.vllm.versions import VERSION
from kvsize.geometry import Geometry

__all__ = ["VERSION", "Options", "size"]


def size(geometry: Geometry, workload: Workload, options: Options) -> CacheSize:
    """Bytes that vLLM sets aside for `workload.sequences` requests, on one tensor-parallel rank of each stage.

    With `options.kv_memory`, also what that many bytes on each rank hold.

    Raises:
        UnsupportedError: vLLM refuses this model, format or split, or does not start with so little memory.
    """
    setup = resolve(geometry, workload, options)
    check(geometry, setup, workload.tokens)
    plan = make(geometry, setup)
    layers, overheads = charged(len(geometry.layers), workload, plan, setup)
    return CacheSize(
        engine="vllm",
        version=setup.rules.name,
        cache="paged",
        k_format=setup.kv.name,
        v_format=setup.kv.name,
        layers=layers,
        overheads=overheads,
        step_tokens=plan.step_tokens * setup.dcp,
        format_source=setup.kv_source,
        evidence=_evidence(geometry, setup),
        pool=None if options.kv_memory is None else pool(plan, setup, options.kv_memory),
        notes=(*versions.note(setup.rules), *notes.notes(geometry, plan, setup, workload.tokens)),
    )


def _evidence(geometry: Geometry, setup: Setup) -> Evidence:
    """Exact only for releases and model types whose plans were compared with the real planner's."""
    checked = setup.rules.number == versions.parse(VERSION) and geometry.model_type in models.CHECKED
    return "exact" if checked else "derived"
