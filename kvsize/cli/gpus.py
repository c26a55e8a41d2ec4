"""`kvsize gpus`: the table of GPUs, and with --live those of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsize.cli.options import AsJson, Format, OutputFormat
from kvsize.cli.parsing import Command
from kvsize.gpus import Gpu
from kvsize.gpus.live import Device
from kvsize.ranges import Range
from kvsize.report import GpuDoc, GpusDoc, LiveDoc, ProcessDoc, RangeDoc

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=Command)
def gpus(
    search: Annotated[str, typer.Option("--search", metavar="WORD", help="Only those whose names contain this.")] = "",
    live: Annotated[bool, typer.Option("--live", help="This machine's GPUs, asked now.")] = False,
    as_json: AsJson = False,
    output: OutputFormat = Format.table,
) -> None:
    """GPUs as their drivers and torch report them, or this machine's."""
    from kvsize.cli.output import emit
    from kvsize.gpus import find

    document = live_doc(search) if live else table_doc(search)
    named = find(search)
    emit(document, Format.json if as_json else output, extra=named.key if named else None)


def table_doc(search: str) -> GpusDoc:
    """The table's devices whose name, alias, vendor or kind contains the word."""
    from kvsize.gpus import squeeze, table

    word = squeeze(search)
    found = [gpu for gpu in table() if any(word in squeeze(name) for name in _names(gpu))]
    return GpusDoc("kvsize.gpus/1", [_gpu(gpu) for gpu in found], [])


def live_doc(search: str) -> GpusDoc:
    """This machine's devices whose name contains the word.

    Raises:
        MissingRequirementError: none can be asked here.
    """
    from kvsize.gpus.live import devices

    return GpusDoc("kvsize.gpus/1", [], [_device(each) for each in devices() if search.lower() in each.name.lower()])


def _names(gpu: Gpu) -> tuple[str, ...]:
    return (gpu.key, gpu.name, gpu.vendor, gpu.kind, *gpu.aliases)


def _gpu(gpu: Gpu) -> GpuDoc:
    return GpuDoc(
        key=gpu.key,
        name=gpu.name,
        vendor=gpu.vendor,
        kind=gpu.kind,
        memory=gpu.memory,
        driver_bytes=gpu.driver_bytes,
        usable_bytes=_range(gpu.usable),
        bandwidth_bytes_per_second=gpu.bandwidth,
        bandwidth_source=gpu.bandwidth_source,
        capability=gpu.capability,
        evidence=gpu.evidence,
        source=gpu.source,
        aliases=list(gpu.aliases),
        notes=list(gpu.notes),
    )


def _device(device: Device) -> LiveDoc:
    return LiveDoc(
        index=device.index,
        name=device.name,
        vendor=device.vendor,
        uuid=device.uuid,
        mig=device.mig,
        visible=device.visible,
        driver_bytes=device.driver_bytes,
        usable_bytes=_range(device.usable),
        free_bytes=device.free_bytes,
        capability=device.capability,
        source=device.source,
        processes=[ProcessDoc(each.pid, each.name, each.bytes) for each in device.processes],
        notes=list(device.notes),
    )


def _range(figure: Range) -> RangeDoc:
    return RangeDoc(figure.low, figure.high)
