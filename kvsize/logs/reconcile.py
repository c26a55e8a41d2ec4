"""A log against the engines: for each server its model, its settings, and a verdict on every figure that it printed.

What a log leaves open (a release, a GPU's kernels, the tokens of a step) is tried in a fixed order, and said; what it
states is never changed to make a figure fit.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
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
# What logs of vLLM often leave open, one value for each range of rules
VERSIONS = ("0.33.0", "0.26.0", "0.20.1", "0.19.0", "0.15.0", "0.11.0", "0.9.2", "0.8.5")
CAPABILITIES = ("9.0", "10.0", "8.0", "12.0")
STEPS = (8192, 2048, 16384)


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
        """contradicts: one figure does; agrees: none does, and at least one was predicted; else not_predicted."""
        statuses = {verdict.status for verdict in self.findings.verdicts}
        if "contradicts" in statuses:
            return "contradicts"
        return "agrees" if statuses & {"agrees", "taken"} else "not_predicted"


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
    for assumed in hypotheses(server):
        try:
            findings: Findings = module.reconcile(server, geometry, assumed)
        except (UnsupportedError, UsageError, ConfigError) as error:
            refusal = refusal or error
            continue
        if not findings.contradictions:
            if assumed and plainest is not None:
                findings.notes.append(f"the log does not say, but its figures do: {_words(assumed)}")
            return findings
        plainest = plainest or findings
    return plainest or _refused(server, refusal)


def _words(assumed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in assumed.items())


def _refused(server: Server, refusal: Exception | None) -> Findings:
    """No figure can be predicted; each is shown, with the reason."""
    findings = Findings(notes=[getattr(refusal, "what", "")])
    for figure in server.figures:
        if figure.quantity not in memory.QUANTITIES:
            findings.add(unpredicted(figure, "refused, see the note"))
    return findings


def hypotheses(server: Server) -> Iterator[dict[str, Any]]:
    """What may be filled in where the log is silent, plainest first."""
    match server.engine:
        case "vllm":
            yield from _vllm(server)
        case "llama.cpp" | "ollama":
            yield from llamacpp.hypotheses(server)
        case _:
            yield {}


def _vllm(server: Server) -> Iterator[dict[str, Any]]:
    known = server.settings
    versions: list[dict[str, Any]] = [{}] if server.version else [{"version": version} for version in VERSIONS]
    others: list[dict[str, Any]] = []
    if "max_num_batched_tokens" not in known:
        others += [{"max_num_batched_tokens": step} for step in STEPS]
    if "device_capability" not in known:
        others += [{"device_capability": one} for one in CAPABILITIES]
    yield from versions
    for version in versions:
        yield from (version | other for other in others)
