"""A log against the engines: for each server its model, its settings, and a verdict on every figure that it printed.

What a log leaves open (a release, a GPU's kernels, the tokens of a step) is tried in a fixed order, and said; what it
states is never changed to make a figure fit.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from kvsize.architectures import geometry as geometry_of
from kvsize.errors import ConfigError, SourceError, UnsupportedError, UsageError
from kvsize.geometry import Geometry
from kvsize.logs import llamacpp, memory
from kvsize.logs.server import Server
from kvsize.logs.verdict import Findings, unpredicted
from kvsize.source import ModelFiles, load

MODULES: Mapping[str, str] = {
    "vllm": "kvsize.logs.vllm",
    "sglang": "kvsize.logs.sglang",
    "llama.cpp": "kvsize.logs.llamacpp",
    "ollama": "kvsize.logs.llamacpp",
    "trtllm": "kvsize.logs.trtllm",
}

Overall: TypeAlias = Literal["agrees", "contradicts", "not_predicted"]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One server: its model, where that is known from, and what came of its figures."""

    server: Server
    files: ModelFiles
    geometry: Geometry
    model_source: str
    findings: Findings

    @property
    def verdict(self) -> Overall:
        """contradicts: one figure does; agrees: one was predicted, and none contradicts; else not_predicted."""
        statuses = {verdict.status for verdict in self.findings.verdicts}
        if "contradicts" in statuses:
            return "contradicts"
        of_the_cache = {v.status for v in self.findings.verdicts if v.figure.quantity not in memory.QUANTITIES}
        return "agrees" if of_the_cache & {"agrees", "inside"} else "not_predicted"


def reconcile(
    servers: Iterable[Server], model: str | None, given: Mapping[str, Any], *, offline: bool = False
) -> list[Reconciled]:
    """Each server of a log; `model` and `given` settings (under their flags' names) stand for what the log says.

    Raises:
        UsageError: the log names no model, and none is given.
        SourceError, ConfigError: the model cannot be read.
    """
    return [_one(server, model, given, offline=offline) for server in servers]


def _one(server: Server, model: str | None, given: Mapping[str, Any], *, offline: bool) -> Reconciled:
    server.settings |= {name: str(value) for name, value in given.items()}
    files, source = _model(server, model, offline=offline)
    geometry = geometry_of(files.config)
    findings = _findings(server, geometry)
    for verdict in memory.verdicts(server, files, geometry):
        findings.add(verdict)
    order = {id(figure): index for index, figure in enumerate(server.figures)}
    findings.verdicts.sort(key=lambda verdict: order[id(verdict.figure)])
    return Reconciled(server, files, geometry, source, findings)


# -- the model ---------------------------------------------------------------------------------------------------------


def _model(server: Server, model: str | None, *, offline: bool) -> tuple[ModelFiles, str]:
    if model is not None:
        return load(model, offline=offline), "--model"
    if server.engine in ("llama.cpp", "ollama"):
        config = llamacpp.config(server)
        if config is not None:
            name = str(config.get("general.name") or PurePath(server.file or "model.gguf").name)
            return ModelFiles(name, config, "gguf", location=server.file or ""), "metadata in the log"
    if server.model is None:
        raise UsageError("the log does not say which model it is of", hint="Name it: kvsize reconcile LOG --model M")
    try:
        return load(server.model, offline=offline), "log"
    except (SourceError, UsageError) as error:
        hint = f"The log calls the model {server.model[:120]}. Name it: kvsize reconcile LOG --model M"
        reason = error.reason if isinstance(error, SourceError) else "not_found"
        raise SourceError(error.what, reason=reason, where=error.where, hint=hint) from None


# -- figures -----------------------------------------------------------------------------------------------------------


def _findings(server: Server, geometry: Geometry) -> Findings:
    """The first reading of what the log leaves open under which all figures agree; else the plainest one."""
    module = importlib.import_module(MODULES[server.engine])
    plainest: Findings | None = None
    refusal: Exception | None = None
    for assumed in module.hypotheses(server, geometry):
        try:
            findings: Findings = module.reconcile(server, geometry, assumed)
        except (UnsupportedError, UsageError, ConfigError) as error:
            refusal = refusal or error
            continue
        if not findings.contradictions:
            if assumed and plainest is not None:
                findings.notes.append(f"not in the log, and assumed since its figures then fit: {_words(assumed)}")
            return findings
        plainest = plainest or findings
    return plainest or _refused(server, refusal)


def _words(assumed: Mapping[str, Any]) -> str:
    """Assumptions as people say them; a switch by its name alone."""
    return ", ".join(name.replace("_", " ") + ("" if value is True else f" {value}") for name, value in assumed.items())


def _refused(server: Server, refusal: Exception | None) -> Findings:
    """No figure can be predicted; each is shown, with the reason."""
    findings = Findings(notes=[getattr(refusal, "what", "")])
    for figure in server.figures:
        if figure.quantity not in memory.QUANTITIES:
            findings.add(unpredicted(figure, "refused, see the note"))
    return findings
