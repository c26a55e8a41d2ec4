"""`kvsize validate MODEL`: builds real caches on this machine and holds the prediction against their bytes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvsize.architectures import geometry as geometry_of
from kvsize.cli.options import AsJson, Format, Offline, OutputFormat, parse_token_list
from kvsize.cli.parsing import Command
from kvsize.errors import ConfigError, KvsizeError, SourceError, UnsupportedError, UsageError
from kvsize.report import EnvironmentDoc, MeasuredDoc, ValidateDoc

if TYPE_CHECKING:
    from kvsize.real.measure import Bench
    from kvsize.source import ModelFiles
    from kvsize.validation import Result

T = TypeVar("T")

CACHES = ("dynamic", "static", "quantized", "offloaded", "offloaded_static", "paged")
DTYPES = ("bfloat16", "float16", "float32")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def validate(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]", help="Models; or --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole catalogue.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, meta, cpu or cuda.")] = "auto",
    cache: Annotated[
        str, typer.Option("--cache", metavar="NAMES", help="With commas between: " + ", ".join(CACHES))
    ] = "dynamic,static",
    ctx: Annotated[str, typer.Option("--ctx", metavar="TOKENS", help="Lengths; else 64 and one past a window.")] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Sequences.")] = 1,
    num_beams: Annotated[int, typer.Option("--num-beams", metavar="N", help="Beams of a real generate.")] = 1,
    generate: Annotated[bool, typer.Option("--generate", help="Also what a real generate leaves.")] = False,
    dtype: Annotated[str, typer.Option("--dtype", metavar="FORMAT", help=", ".join(DTYPES))] = "bfloat16",
    results: Annotated[
        Path | None, typer.Option("--results", metavar="FILE", help="Append each model's figures; skip those in it.")
    ] = None,
    offline: Offline = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """Build real caches of random twins and compare. Exit 0: all equal. Exit 1: one differs, or none could be run."""
    from kvsize.cli.output import emit

    caches = tuple(dict.fromkeys(name for name in cache.split(",") if name))
    check("--cache", caches, CACHES)
    check("--dtype", (dtype,), DTYPES)
    if batch < 1 or num_beams < 1:
        raise UsageError("sequences and beams are counted from 1", got=str(min(batch, num_beams)))
    lengths = tuple(parse_token_list(ctx)) if ctx else ()
    names = named(models or [], everything=everything)
    settings = Settings(device, dtype, caches, lengths, batch, num_beams, generate)
    with CtrlC() as ctrl_c:
        sweep = ctrl_c.during(lambda: Sweep(settings, offline, results, ctrl_c))
        document, complete = sweep.over(names)
    emit(document, Format.json if as_json else output)
    statuses = {row.status for row in document.rows}
    if not complete:
        raise typer.Exit(130)
    if "different" in statuses:
        raise typer.Exit(1)
    if sweep.unread is not None:
        raise typer.Exit(sweep.unread.exit_code)
    if "equal" not in statuses:
        raise typer.Exit(1)


def check(flag: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a word that is none of the choices, and an empty list."""
    for word in given or ("",):
        if word not in known:
            raise UsageError(f"{flag} takes {', '.join(known)}", got=word or "nothing")


def named(models: Sequence[str], *, everything: bool) -> list[str]:
    """The models asked for.

    Raises:
        UsageError: none, or both some and all.
    """
    if everything == bool(models):
        raise UsageError("name one or more models, or say --all for the catalogue")
    if not everything:
        return list(dict.fromkeys(models))
    from kvsize.source import catalogue

    return list(catalogue())


@dataclass(frozen=True, slots=True)
class Settings:
    """What is built of each model."""

    device: str
    dtype: str
    caches: tuple[str, ...]
    lengths: tuple[int, ...]
    sequences: int
    num_beams: int
    generate: bool

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


class CtrlC:
    """Remembers Ctrl-C: while they are imported, torch and transformers turn its exception into errors of their own."""

    def __init__(self) -> None:
        self.pressed = False
        self.before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> CtrlC:
        if self.before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def _press(self, *_: object) -> None:
        self.pressed = True
        raise KeyboardInterrupt

    def during(self, work: Callable[[], T]) -> T:
        """What `work` returns, unless Ctrl-C was pressed meanwhile.

        Raises:
            KeyboardInterrupt: it was, whatever became of its exception.
        """
        try:
            done = work()
        except Exception:
            if self.pressed:
                raise KeyboardInterrupt from None
            raise
        if self.pressed:
            raise KeyboardInterrupt
        return done


class Sweep:
    """Models one after the other; what is done is kept, whatever happens to the next."""

    def __init__(self, settings: Settings, offline: bool, results: Path | None, ctrl_c: CtrlC) -> None:
        from kvsize import __version__
        from kvsize.real.measure import DEVICES, environment

        check("--device", (settings.device,), DEVICES)
        self.settings = settings
        self.offline = offline
        self.results = results
        self.ctrl_c = ctrl_c
        self.where = EnvironmentDoc(kvsize=__version__, **asdict(environment()))
        self.known = {} if results is None else recorded(results, asdict(self.where), settings.plain())
        self.unread: SourceError | None = None

    def over(self, names: Sequence[str]) -> tuple[ValidateDoc, bool]:
        """The document of all models, and whether it was not interrupted."""
        rows: list[MeasuredDoc] = []
        for number, name in enumerate(names, 1):
            sys.stderr.write(f"[{number}/{len(names)}] {name}\n")
            try:
                rows += self.known.get(name) or self._read(name, alone=len(names) == 1)
            except KeyboardInterrupt:
                note = f"interrupted: {number - 1} of {len(names)} models were done"
                return self._document(rows, [note]), False
        return self._document(rows, []), True

    def _read(self, name: str, *, alone: bool) -> list[MeasuredDoc]:
        from kvsize.source import load

        try:
            files = load(name, offline=self.offline)
        except (ConfigError, SourceError) as error:
            if alone:
                raise
            self.unread = error if isinstance(error, SourceError) else self.unread
            return [left_out(name, error)]
        return self.known.get(files.id) or self._new(files, alone=alone)

    def _new(self, files: ModelFiles, *, alone: bool) -> list[MeasuredDoc]:
        try:
            rows = self.ctrl_c.during(lambda: measured(files, self.settings, self.where.transformers))
        except (ConfigError, UnsupportedError) as error:
            if alone:
                raise
            rows = [left_out(files.id, error)]
        if self.results is not None:
            keep(self.results, self._document(rows, []))
        return rows

    def _document(self, rows: list[MeasuredDoc], notes: list[str]) -> ValidateDoc:
        return ValidateDoc("kvsize.validate/1", self.where, self.settings.plain(), rows, notes)


def measured(files: ModelFiles, settings: Settings, transformers: str) -> list[MeasuredDoc]:
    """Every run of one model; its memory is given back at the end, also after Ctrl-C."""
    from kvsize.real.measure import bench
    from kvsize.validation import judge, runs

    geometry = geometry_of(files.config)
    twin = bench(files.config, settings.device, settings.dtype)
    try:
        asked = runs(
            geometry,
            twin.device,
            caches=settings.caches,
            lengths=settings.lengths,
            sequences=settings.sequences,
            num_beams=settings.num_beams,
            generate=settings.generate,
        )
        return [row(files, geometry.model_type, twin, judge(geometry, twin, run, transformers)) for run in asked]
    finally:
        twin.close()


def row(files: ModelFiles, model_type: str, twin: Bench, result: Result) -> MeasuredDoc:
    """One result as it is printed."""
    run, found = result.run, result.measured
    device = found.device if found else None
    return MeasuredDoc(
        model=files.id,
        model_type=model_type,
        model_class=twin.model_class,
        device=twin.device,
        cache=run.cache,
        ctx=run.tokens,
        batch=run.sequences,
        num_beams=run.num_beams,
        moment=run.moment,
        status=result.status,
        predicted_bytes=result.predicted,
        measured_bytes=found.storage if found else None,
        allocated_bytes=device.allocated if device else None,
        reserved_bytes=device.reserved if device else None,
        peak_bytes=device.peak if device else None,
        process_bytes=device.process if device else None,
        reason=result.reason,
    )


def left_out(name: str, error: KvsizeError) -> MeasuredDoc:
    """A model of a sweep that cannot be read, that kvsize has no rule for, or that transformers cannot run."""
    return MeasuredDoc(
        model=name,
        model_type="",
        model_class="",
        device="",
        cache="",
        ctx=0,
        batch=0,
        num_beams=0,
        moment="prefill",
        status="not_run",
        predicted_bytes=None,
        measured_bytes=None,
        allocated_bytes=None,
        reserved_bytes=None,
        peak_bytes=None,
        process_bytes=None,
        reason=error.what if error.got is None else f"{error.what}: {error.got}",
    )


def keep(path: Path, document: ValidateDoc) -> None:
    """Append one model's figures as a line of JSON.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
    except OSError as error:
        raise UsageError(f"--results cannot be written: {error.strerror}", got=str(path)) from None


def recorded(path: Path, where: dict[str, Any], settings: dict[str, Any]) -> dict[str, list[MeasuredDoc]]:
    """Models that a results file holds already, measured in this environment with these settings.

    Raises:
        UsageError: it is no such file, or none can be written there.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise UsageError("--results names a file in a folder that does not exist", got=str(path))
        return {}
    found: dict[str, list[MeasuredDoc]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            document = json.loads(line)
            rows = [MeasuredDoc(**values) for values in document["rows"]]
            if rows and document["environment"] == where and document["settings"] == settings:
                found[rows[0].model] = rows
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError("--results names a file that holds no figures of kvsize validate", got=str(path)) from None
    return found
