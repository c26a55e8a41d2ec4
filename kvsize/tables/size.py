"""The page of `kvsize MODEL`: the answer, what it is made of, what other engines and formulas would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsize.documents import CacheDoc, LayerDoc, PoolDoc, RowDoc, SizeDoc
from kvsize.elsewhere import SAME, Elsewhere
from kvsize.tables import sweep
from kvsize.tables.page import INDENT, Grid, Line, View, bar, beside, columns, flow, headline, labelled, wrap
from kvsize.tables.terms import terms
from kvsize.tables.units import Unit, amount, times, unit_for
from kvsize.words import ENGINE_NAMES

ORIGINS = {
    "catalogue": "catalogue {}",
    "cache": "Hugging Face cache @ {}",
    "hub": "Hub @ {}",
    "file": "file",
    "stdin": "standard input",
    "gguf": "GGUF file",
}
MOST_ROWS = 8  # kinds of layers shown one by one


@dataclass(frozen=True, slots=True)
class Beside:
    """What `kvsize MODEL` shows beside its document: the same for one sequence, and other engines' answers."""

    single: CacheDoc | None = None
    elsewhere: Sequence[Elsewhere] = ()


def page(document: SizeDoc, view: View, extra: Beside | None) -> list[Line]:
    """The whole page; its first three lines hold the model, the answer, and whose answer it is."""
    extra = extra or Beside()
    lines = [*headline(document.model.id, document.model.attention, view), *_answer(document, view)]
    lines += [[(INDENT, ""), (text, "dim")] for text in flow(_facts(document), view.columns - len(INDENT))]
    lines += [[], *(sweep.lines(document, view) if len(document.rows) > 1 else _figures(document, view, extra))]
    if len(document.rows) == 1:
        lines += [[], *_parts(document, view)]
    if document.pool is not None:
        lines += [[], *_pool(document.pool, document, view)]
    lines += _margin(document, view, extra)
    return lines


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(document: SizeDoc, view: View) -> list[Line]:
    asked = document.workload
    who = f"{asked.batch:,} sequences" if asked.batch > 1 else "1 sequence"
    if asked.num_beams > 1:
        who += f" x {asked.num_beams} beams"
    if len(document.rows) > 1:
        return [[(INDENT, ""), (f"{len(document.rows)} context lengths, {who} each", "answer")]]
    total = document.cache.total_bytes
    figure = amount(total, exact=view.exact)
    exact = "" if view.exact or total < 1024 else f" ({total:,} bytes)"
    tokens = f"{asked.ctx:,} token{'' if asked.ctx == 1 else 's'}"
    ranks = document.engine.settings.get("tensor_parallel_size") or 1
    where = f" on each of {ranks} ranks" if ranks > 1 else ""
    first, *more = wrap(f"{figure}{exact} for {who} of {tokens}{where}", view.columns - len(INDENT))
    rest: list[Line] = [[(INDENT + text, "")] for text in more]
    return [[(INDENT, ""), (figure, "answer"), (first.removeprefix(figure), "")], *rest]


def _facts(document: SizeDoc) -> list[str]:
    engine, asked = document.engine, document.workload
    name = " ".join((ENGINE_NAMES.get(engine.name, engine.name), engine.version, engine.cache)).strip()
    encoder = f"{asked.encoder_ctx:,} encoder tokens" if asked.encoder_ctx is not None else ""
    origin = ORIGINS[document.model.origin].format((document.model.revision or "?")[:12])
    return [fact for fact in (f"{name}, {engine.evidence}", _format(document), encoder, origin) if fact]


def _format(document: SizeDoc) -> str:
    kinds = document.kv_dtype
    name = kinds.k if kinds.k == kinds.v else f"K {kinds.k}, V {kinds.v}"
    why = kinds.source.partition(":")[0]
    return f"{name} ({why})" if why else name


# -- the figures -------------------------------------------------------------------------------------------------------


def _figures(document: SizeDoc, view: View, extra: Beside) -> list[Line]:
    caches = [document.cache] if extra.single is None else [extra.single, document.cache]
    rows = [row for row in _figure_rows(document, caches, view) if row[1]]
    heads = ["1 sequence", f"{document.workload.batch:,} sequences"] if extra.single is not None else []
    table = [[label, *cells] for label, cells, _ in rows]
    texts = columns([["", *heads], *table] if heads else table, left=(0,))
    lines: list[Line] = [[(INDENT + texts[0], "dim")]] if heads else []
    for text, (_, _, why) in zip(texts[1:] if heads else texts, rows, strict=True):
        lines += beside([(INDENT + text, "")], why, view)
    return lines


def _figure_rows(document: SizeDoc, caches: Sequence[CacheDoc], view: View) -> list[tuple[str, list[str], str]]:
    """(label, a cell for each column, why); no cells where a line would say nothing new."""
    total = [cache.total_bytes for cache in caches]
    unit = unit_for(total, exact=view.exact)
    shown = [unit.text(value) for value in total]

    def memory(label: str, values: list[int], why: str) -> tuple[str, list[str], str]:
        cells = [unit.text(value) for value in values]
        return label, [] if cells == shown else cells, why

    def own_unit(label: str, values: list[int], why: str) -> tuple[str, list[str], str]:
        unit = unit_for(values, exact=view.exact)
        return label, [unit.text(value) for value in values] if any(values) else [], why

    hosts = [cache.host_bytes for cache in caches]
    return [
        ("while decoding", shown, ""),
        memory("elements alone", _logical(caches), "the rest is padding or reserve"),
        memory("right after prefill", [cache.after_prefill_bytes for cache in caches], _why_prefill(document)),
        memory("peak", [cache.peak_bytes for cache in caches], "a growing tensor is copied"),
        own_unit("of it on the host", hosts, "offloaded"),
        own_unit("per further token", [cache.marginal_bytes_per_token for cache in caches], _why_slope(document)),
        own_unit("fixed", [cache.fixed_bytes for cache in caches], _why_fixed(document)),
    ]


def _logical(caches: Sequence[CacheDoc]) -> list[int]:
    """The elements' own bytes, where they are at least a 100th less than what is held."""
    return [c.total_bytes if c.logical_bytes * 100 > c.total_bytes * 99 else c.logical_bytes for c in caches]


def _windowed(run: LayerDoc) -> bool:
    return any(store.span in ("sliding", "chunked") for store in run.stores)


def _grows(run: LayerDoc, ctx: int) -> bool:
    return run.shares is None and any(
        store.span in ("full", "reference", "compressed")
        or (store.span in ("sliding", "chunked") and ctx < (store.span_tokens or 0))
        for store in run.stores
    )


def _why_prefill(document: SizeDoc) -> str:
    return "windows still hold the prompt" if any(map(_windowed, document.layers)) else "of the whole prompt at once"


def _why_slope(document: SizeDoc) -> str:
    growing = [run for run in document.layers if _grows(run, document.workload.ctx)]
    full = any(_windowed(run) and not _grows(run, document.workload.ctx) for run in document.layers)
    return _counted(growing) + ("; the windows are full" if full else "")


def _why_fixed(document: SizeDoc) -> str:
    spans = {store.span for run in document.layers for store in run.stores}
    if not document.cache.marginal_bytes_per_token and any(
        _grows(run, document.workload.ctx) for run in document.layers
    ):
        return "the next token still fits what is allocated"
    fixed = [run for run in document.layers if run.bytes and not _grows(run, document.workload.ctx)]
    beside = {"constant": "the states of each layer", "encoder": "the encoder's tokens"}
    return _counted(fixed) or next((words for span, words in beside.items() if span in spans), "")


def _counted(runs: Sequence[LayerDoc]) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.label] = counts.get(run.label, 0) + len(run.indices)
    named = " + ".join(f"{count} {label}" for label, count in counts.items())
    return f"{named} layer{'' if sum(counts.values()) == 1 else 's'}" if counts else ""


# -- the parts ---------------------------------------------------------------------------------------------------------


def _parts(document: SizeDoc, view: View) -> list[Line]:
    """One line for each kind of layer that holds something: name, bar, figure, and the product that it is."""
    parts = part_rows(document)
    unit = unit_for((document.cache.total_bytes,), exact=view.exact)
    names = columns([[name] for name, _, _ in parts], left=(0,))
    figures = columns([[unit.text(value)] for _, value, _ in parts])
    used = len(INDENT) + len(names[0]) + 2 + len(figures[0]) + 2 + max(len(sum_) for _, _, sum_ in parts)
    room = min(view.columns - used - 2, 40)
    lines: list[Line] = []
    for name, figure, (_, value, product) in zip(names, figures, parts, strict=True):
        line: Line = [(f"{INDENT}{name}  ", "")]
        if room >= 8 and len(parts) > 1:
            line.append((bar(value, document.cache.total_bytes, room).ljust(room + 2), "bar"))
        line.append((figure, ""))
        lines += beside(line, product, view, gap=2)
    return lines


def part_rows(document: SizeDoc) -> list[tuple[str, int, str]]:
    """(kind, bytes, product) of everything that the total is made of."""
    runs = sorted((run for run in document.layers if run.bytes), key=lambda run: -run.bytes)
    if len(runs) > MOST_ROWS:
        return [*_merged(runs), *_overheads(document)]
    found = [terms(run, document) for run in runs]
    counts = {len(each.cells) for each in found}
    texts: dict[int, list[str]] = {}
    for count in counts:
        texts[count] = _aligned([each.cells for each in found if len(each.cells) == count])
    products = [texts[len(each.cells)].pop(0) for each in found]
    names = _names(runs)
    rows = [(name, run.bytes, text) for name, run, text in zip(names, runs, products, strict=True)]
    return [*rows, *_overheads(document)] or [("nothing", 0, "no layer caches anything")]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [" x ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _names(runs: Sequence[LayerDoc]) -> list[str]:
    """Labels, with what an entry holds where two kinds would read the same."""
    labels = [run.label for run in runs]
    return [
        run.label if labels.count(run.label) == 1 else f"{run.label}, {run.stores[0].holds.partition(':')[0]}"
        for run in runs
    ]


def _merged(runs: Sequence[LayerDoc]) -> list[tuple[str, int, str]]:
    rows: dict[str, tuple[int, int, int]] = {}
    for run in runs:
        total, layers, shapes = rows.get(run.label, (0, 0, 0))
        rows[run.label] = (total + run.bytes, layers + len(run.indices), shapes + 1)
    return [(name, total, f"{layers} layers of {shapes} shapes") for name, (total, layers, shapes) in rows.items()]


def _overheads(document: SizeDoc) -> list[tuple[str, int, str]]:
    return [(part.name, part.bytes, f"{part.bytes:,} B") for part in document.overheads if part.bytes]


# -- the margin --------------------------------------------------------------------------------------------------------


def _pool(pool: PoolDoc, document: SizeDoc, view: View) -> list[Line]:
    requests = f"{pool.max_concurrency:.2f}".rstrip("0").rstrip(".")
    blocks = f"{pool.num_blocks:,} blocks of {pool.block_size:,} tokens, {pool.bytes_per_block:,} B each"
    lines = labelled("pool", f"{pool.tokens:,} tokens: {blocks}", view)
    each = f"{pool.request_blocks:,} blocks, {amount(pool.request_bytes, exact=view.exact)} each"
    lines += labelled("holds", f"{requests} requests of {document.workload.ctx:,} tokens at once ({each})", view)
    for index, group in enumerate(pool.groups):
        count = pool.groups.count(group)
        text = (
            f"{group.name}: {group.layers} layers, {group.block_tokens:,} tokens and {group.page_bytes:,} B a page, "
            f"{group.request_blocks:,} pages a request"
        )
        if pool.groups.index(group) == index:
            lines += labelled("group" if count == 1 else f"{count} groups", text, view)
    return lines


def _margin(document: SizeDoc, view: View, extra: Beside) -> list[Line]:
    lines: list[Line] = []
    if extra.elsewhere:
        unit = unit_for((document.cache.total_bytes,), exact=view.exact)
        lines += [[], *_elsewhere(extra.elsewhere, unit, view)]
    if document.formulas or document.notes:
        lines.append([])
    lines += _caution(document, view)
    reason = document.kv_dtype.source.partition(": ")[2]
    for note in [reason, *document.notes]:
        lines += labelled("note", note, view) if note else []
    return lines


def _caution(document: SizeDoc, view: View) -> list[Line]:
    if not document.formulas:
        return []
    true = {row.ctx: row.cache.total_bytes for row in document.rows}
    where = f"at {document.formulas[0].ctx:,} tokens " if len(document.rows) > 1 else ""
    says = [
        f"{formula.formula} says {amount(formula.bytes, exact=view.exact)}, {_off(formula.bytes, true[formula.ctx])}"
        for formula in document.formulas
    ]
    misses = dict.fromkeys(part for formula in document.formulas for part in formula.misses.split("; "))
    return labelled("caution", f"{where}{'; '.join(says)} (blind to {', '.join(misses)})", view, style="warn")


def _off(said: int, true: int) -> str:
    return f"{times(said, true)}x too high" if said > true else f"{times(true, said)}x too low"


def _elsewhere(others: Sequence[Elsewhere], unit: Unit, view: View) -> list[Line]:
    """Engines that hold the same on one line, a line for each that differs, and who refuses and why."""
    named = [(f"{ENGINE_NAMES.get(other.engine, other.engine)} {other.version}", other) for other in others]
    same = [name for name, other in named if other.why == SAME]
    lines = labelled("elsewhere", f"the same in {', '.join(same)}", view) if same else []
    differing = [(name, other) for name, other in named if other.total_bytes is not None and other.why != SAME]
    lines += _differing(differing, "" if same else "elsewhere", unit, view)
    refusals = [(name, other.why) for name, other in named if other.total_bytes is None]
    for index, (name, why) in enumerate(refusals):
        lines += labelled("" if index else "refused", f"{name}: {why}", view)
    return lines


def _differing(others: Sequence[tuple[str, Elsewhere]], label: str, unit: Unit, view: View) -> list[Line]:
    if not others:
        return []
    rows = [(name, unit.text(other.total_bytes or 0)) for name, other in others]
    lines: list[Line] = []
    for index, (text, (_, other)) in enumerate(zip(columns(rows, gap=2, left=(0,)), others, strict=True)):
        head: Line = [(INDENT + ("" if index else label).ljust(11), "dim"), (text, "")]
        lines += beside(head, other.why, view, gap=2)
    return lines


# -- spreadsheets ------------------------------------------------------------------------------------------------------

SHARED = ("model", "model_type", "engine", "version", "cache", "k_format", "v_format", "encoder_ctx", "num_beams")


def grid(document: SizeDoc) -> Grid:
    """One row for each context length."""
    figures = tuple(CacheDoc.__dataclass_fields__)
    header = (*SHARED, "ctx", "batch", *figures)
    rows = tuple(_grid_row(document, row, figures) for row in document.rows)
    facts = " · ".join(_facts(document))
    return Grid(header, rows, shared=len(SHARED), title=f"{document.model.id}: {document.model.attention} · {facts}")


def _grid_row(document: SizeDoc, row: RowDoc, figures: Sequence[str]) -> tuple[object, ...]:
    model, engine, kinds, asked = document.model, document.engine, document.kv_dtype, document.workload
    shared = (model.id, model.model_type, engine.name, engine.version, engine.cache, kinds.k, kinds.v)
    values = (getattr(row.cache, name) for name in figures)
    return (*shared, asked.encoder_ctx, asked.num_beams, row.ctx, row.batch, *values)
