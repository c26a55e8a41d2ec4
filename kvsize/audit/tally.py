"""Published formulas held against the cache that transformers really keeps while decoding, at 16 bits an element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from kvsize.architectures import geometry as geometry_of
from kvsize.audit.formulas import TOLERANCE, Case, InapplicableError
from kvsize.audit.published import PUBLISHED, Published
from kvsize.build import engine_settings, model_doc
from kvsize.engines import CacheSize, Workload, load_engine
from kvsize.errors import KvsizeError
from kvsize.geometry import Geometry
from kvsize.jsonfile import parse, read_file
from kvsize.report import (
    AuditDoc,
    AuditedDoc,
    EngineDoc,
    FormatDoc,
    PublishedDoc,
    SaysDoc,
    TallyDoc,
    WorkloadDoc,
)
from kvsize.source import ModelFiles, catalogue, catalogue_dir

ENGINE = "transformers"
FORMAT = "bfloat16"
DIGITS = 4  # decimals of a ratio


def audit_doc(files: Sequence[ModelFiles], tokens: int, sequences: int) -> AuditDoc:
    """The document of `kvsize audit` over these models, or over the whole catalogue where none is named.

    Raises:
        KvsizeError: a named model has no geometry, or transformers no cache for it.
    """
    request = Workload(tokens, sequences, FORMAT, FORMAT)
    models, notes = (
        ([_audited(each, parameters(each), request) for each in files], []) if files else _whole_catalogue(request)
    )
    engine = load_engine(ENGINE)
    options = engine.Options()
    return AuditDoc(
        schema="kvsize.audit/1",
        engine=EngineDoc(ENGINE, engine.VERSION, options.cache, "exact", engine_settings(options)),
        workload=WorkloadDoc(tokens, sequences, None, 1),
        kv_dtype=FormatDoc(FORMAT, FORMAT, "assumed: published formulas count 2 bytes an element"),
        formulas=[published_doc(formula) for formula in PUBLISHED],
        models=models,
        tallies=[tally(formula, models) for formula in PUBLISHED],
        notes=notes,
    )


def published_doc(formula: Published) -> PublishedDoc:
    """A formula without its arithmetic in code."""
    return PublishedDoc(**{name: getattr(formula, name) for name in PublishedDoc.__dataclass_fields__})


def _whole_catalogue(request: Workload) -> tuple[list[AuditedDoc], list[str]]:
    models, refused, empty = [], 0, 0
    for files, count in _bundled():
        try:
            audited = _audited(files, count, request)
        except KvsizeError:
            refused += 1
            continue
        if audited.true_bytes:
            models.append(audited)
        else:
            empty += 1
    told = ((empty, "that cache nothing are left out"), (refused, "that transformers cannot build are left out"))
    return models, [f"{count} models of the catalogue {words}" for count, words in told if count]


def _bundled() -> Iterator[tuple[ModelFiles, int | None]]:
    """Every model of the catalogue and its parameter count, each file read once."""
    for name in catalogue():
        path = catalogue_dir() / f"{name.replace('/', '--', 1)}.json"
        entry = parse(read_file(path), str(path))
        revision = entry["revision"] or entry["date"]
        files = ModelFiles(name, entry["config"], "catalogue", revision, str(path), entry["weight_bytes"])
        yield files, entry.get("parameters")


def parameters(files: ModelFiles) -> int | None:
    """The parameter count that the catalogue records; None where it has none, or the model is from elsewhere."""
    if files.origin != "catalogue":
        return None
    count: int | None = parse(read_file(Path(files.location)), files.location).get("parameters")
    return count


def _audited(files: ModelFiles, count: int | None, request: Workload) -> AuditedDoc:
    geometry = geometry_of(files.config)
    true = truth(geometry, request).total_bytes
    case = Case(files.id, geometry, request.tokens, request.sequences, files.config, count, files.weight_bytes)
    return AuditedDoc(model_doc(files, geometry), true, [says(formula, case, true) for formula in PUBLISHED])


def truth(geometry: Geometry, request: Workload) -> CacheSize:
    """What transformers' own default cache holds."""
    engine = load_engine(ENGINE)
    return engine.size(geometry, request, engine.Options())


def says(formula: Published, case: Case, true: int) -> SaysDoc:
    """What one formula says, and how that compares."""
    try:
        said = formula.compute(case)
    except InapplicableError as error:
        return SaysDoc(formula.id, None, None, "none", str(error))
    if not true:
        return SaysDoc(formula.id, said, None, "high" if said else "right", None)
    if abs(said - true) * TOLERANCE < true:
        return SaysDoc(formula.id, said, _ratio(said, true), "right", None)
    return SaysDoc(formula.id, said, _ratio(said, true), "high" if said > true else "low", None)


def _ratio(said: int, true: int) -> float:
    return round(said / true, DIGITS)


def tally(formula: Published, models: Sequence[AuditedDoc]) -> TallyDoc:
    """How one formula does over all models."""
    found = [(each.model.id, said) for each in models for said in each.says if said.formula == formula.id]
    verdicts = [said.verdict for _, said in found]
    ratios = sorted((said.ratio, model) for model, said in found if said.ratio is not None)
    least, most = (ratios[0], ratios[-1]) if ratios else ((None, None), (None, None))
    return TallyDoc(
        formula=formula.id,
        right=verdicts.count("right"),
        high=verdicts.count("high"),
        low=verdicts.count("low"),
        none=verdicts.count("none"),
        least=least[0],
        median=round(median(ratio for ratio, _ in ratios), DIGITS) if ratios else None,
        most=most[0],
        least_model=least[1],
        most_model=most[1],
    )
