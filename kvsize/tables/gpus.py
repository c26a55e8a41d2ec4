"""The pages of `kvsize gpus`: the table, and this machine's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kvsize.report import GpuDoc, GpusDoc, LiveDoc, RangeDoc
from kvsize.tables.page import INDENT, Grid, Line, View, columns, headline, labelled, paragraph
from kvsize.tables.units import UNITS

GIB = UNITS[1]
IN_WORDS = 3  # so few devices are described in full
HEADER = ("--gpu", "torch sees, GiB", "driver, GiB", "GB/s", "arch", "evidence")


def page(document: GpusDoc, view: View, extra: object) -> list[Line]:
    """One line a device of the table, and in words the one that `extra` names, or few; or this machine's devices."""
    if document.devices:
        return [line for device in document.devices for line in _live(device, view)]
    if not document.gpus:
        return paragraph("No GPU has such a name; --gpu 24GiB takes any size.", view)
    texts = columns([HEADER, *(_row(gpu) for gpu in document.gpus)], gap=2, left=(0, 4, 5))
    lines: list[Line] = [[(INDENT + text, "" if index else "dim")] for index, text in enumerate(texts)]
    few = document.gpus if len(document.gpus) <= IN_WORDS else [gpu for gpu in document.gpus if gpu.key == extra]
    lines += [line for gpu in few for line in _words(gpu, view)]
    return lines if few else [*lines, [], *paragraph(_told(document.gpus), view, "dim")]


def _row(gpu: GpuDoc) -> tuple[str, ...]:
    speed = gpu.bandwidth_bytes_per_second
    return (
        gpu.key,
        _between(gpu.usable_bytes),
        "" if gpu.driver_bytes is None else GIB.number(gpu.driver_bytes),
        "" if speed is None else f"{round(speed / 10**9):,}",
        gpu.capability or "",
        gpu.evidence,
    )


def _between(figure: RangeDoc) -> str:
    low, high = GIB.number(figure.low), GIB.number(figure.high)
    return low if low == high else f"{low} … {high}"


def _words(gpu: GpuDoc, view: View) -> Iterator[Line]:
    yield []
    yield from headline(gpu.name, gpu.memory, view)
    yield from labelled("torch", f"{gpu.evidence}: {gpu.source}", view)
    if gpu.bandwidth_source is not None:
        yield from labelled("bandwidth", gpu.bandwidth_source, view)
    if gpu.aliases:
        yield from labelled("also", ", ".join(gpu.aliases), view)
    for note in gpu.notes:
        yield from labelled("note", note, view)


def _told(gpus: Sequence[GpuDoc]) -> str:
    counts = Counter(gpu.evidence for gpu in gpus)
    return (
        f"{len(gpus)} devices: {counts['exact']} as torch printed them (exact), {counts['derived']} by a rule on the "
        f"driver's total (derived), {counts['assumed']} by a rule on the size as sold (assumed). "
        "--search shows one in words; --gpu takes other spellings too, and 24GiB or 8xh100."
    )


def _live(device: LiveDoc, view: View) -> Iterator[Line]:
    hidden = "" if device.visible else " · hidden by CUDA_VISIBLE_DEVICES"
    yield from headline(f"{device.index}  {device.name}", f"{device.capability or device.vendor}{hidden}", view)
    free = "free not known" if device.free_bytes is None else f"{GIB.text(device.free_bytes)} free"
    yield from labelled("memory", f"{free} of {_between(device.usable_bytes)} GiB that torch sees", view)
    if device.driver_bytes is not None:
        yield from labelled("driver", f"{GIB.text(device.driver_bytes)} in all; {device.source}", view)
    for process in device.processes:
        size = "" if process.bytes is None else f", {GIB.text(process.bytes)}"
        yield from labelled("process", f"{process.pid} {process.name}{size}", view)
    for note in device.notes:
        yield from labelled("note", note, view, style="warn")
    yield []


def grid(document: GpusDoc) -> Grid:
    """One row a device."""
    if document.devices:
        return _live_grid(document.devices)
    header = (
        *("gpu", "name", "vendor", "kind", "memory", "driver_bytes", "usable_low_bytes", "usable_high_bytes"),
        *("bandwidth_per_second", "capability", "evidence", "aliases"),
    )
    rows = tuple(
        (
            *(gpu.key, gpu.name, gpu.vendor, gpu.kind, gpu.memory, gpu.driver_bytes),
            *(gpu.usable_bytes.low, gpu.usable_bytes.high, gpu.bandwidth_bytes_per_second, gpu.capability),
            *(gpu.evidence, " ".join(gpu.aliases)),
        )
        for gpu in document.gpus
    )
    return Grid(header, rows)


def _live_grid(devices: Sequence[LiveDoc]) -> Grid:
    header = ("index", "name", "uuid", "visible", "driver_bytes", "usable_low_bytes", "usable_high_bytes", "free_bytes")
    rows = tuple(
        (
            *(each.index, each.name, each.uuid, "yes" if each.visible else "no", each.driver_bytes),
            *(each.usable_bytes.low, each.usable_bytes.high, each.free_bytes),
        )
        for each in devices
    )
    return Grid(header, rows)
