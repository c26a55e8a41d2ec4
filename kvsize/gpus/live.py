"""This machine's GPUs, asked now: NVML through nvidia-ml-py, amdsmi, sysctl on a Mac. Each is imported when asked.

NVML: what CUDA sees as the total (and torch, and vLLM) is NVML's total less what the driver reserves
(nvmlDeviceGetMemoryInfo_v2): 81,559 - 551 = 81,008 MiB on an H100. With MIG on, CUDA sees instances only, never the
whole card.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from typing import Any

from kvsize.errors import MissingRequirementError
from kvsize.gpus import Gpu, GpuSet, by_rule, find, metal
from kvsize.ranges import Range, exactly

_INSTALL = 'Install the probe: `pip install "kvsize[gpu]"` (nvidia-ml-py), or amdsmi from ROCm for AMD.'
_ELSEWHERE = "Or name the GPU: --gpu h100, --gpu 24GiB; `kvsize gpus` lists the names."


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a device; `bytes` is None where the driver does not say."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """One device, or one MIG instance, as its driver reports it now.

    `usable` is the total that torch would see; `free_bytes` is None where nobody says. `visible` is whether CUDA would
    show it, by CUDA_VISIBLE_DEVICES.
    """

    index: str
    name: str
    vendor: str
    usable: Range
    driver_bytes: int | None
    free_bytes: int | None
    uuid: str | None = None
    capability: str | None = None
    mig: bool = False
    visible: bool = True
    processes: tuple[Process, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()


def devices() -> tuple[Device, ...]:
    """Every device of this machine.

    Raises:
        MissingRequirementError: there is none, no driver, no permission, or no library to ask with; it says which.
    """
    if sys.platform == "darwin":
        return (_apple(),)
    reasons: list[str] = []
    for ask in (_nvidia, _amd):
        found = ask(reasons)
        if found:
            return found
    raise MissingRequirementError("no GPU can be asked here: " + "; ".join(reasons), hint=f"{_INSTALL}\n{_ELSEWHERE}")


def automatic(count: int | None = None) -> GpuSet:
    """The devices that CUDA shows here, as one set: `count` of them, else all, each planned for as the smallest.

    Raises:
        MissingRequirementError: none is visible, or fewer than `count`.
    """
    visible = [device for device in devices() if device.visible]
    if not visible or len(visible) < (count or 1):
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if setting is None else f" (CUDA_VISIBLE_DEVICES={setting!r})"
        what = f"{count or 1} GPUs are asked for, and this machine shows {len(visible)}{shown}"
        raise MissingRequirementError(what, hint=_ELSEWHERE)
    alone = any(device.mig for device in visible)  # CUDA shows one MIG instance to a process, however many there are
    return GpuSet(_as_gpu(visible), count or (1 if alone else len(visible)))


def _as_gpu(visible: list[Device]) -> Gpu:
    """The smallest device, with the least free memory of all."""
    least = min(visible, key=lambda device: (device.usable.low, device.index))
    free = [device.free_bytes for device in visible if device.free_bytes is not None]
    known = find(least.name)
    notes = [note for device in visible for note in device.notes]
    if any(device.mig for device in visible):
        notes.append("a process sees one MIG instance at a time")
    if len({(device.name, device.usable) for device in visible}) > 1:
        notes.append(f"the devices differ; each is planned for as the smallest, {least.name}")
    return Gpu(
        key="auto",
        name=least.name,
        vendor=least.vendor,
        kind=known.kind if known else "unified" if least.vendor == "apple" else "live",
        usable=least.usable,
        evidence="measured",
        source=least.source,
        driver_bytes=least.driver_bytes,
        free_bytes=min(free) if free else None,
        bandwidth=known.bandwidth if known else None,
        bandwidth_source=known.bandwidth_source if known else None,
        capability=least.capability,
        notes=tuple(dict.fromkeys(notes)),
    )


# -- NVIDIA ------------------------------------------------------------------------------------------------------------


def _nvidia(reasons: list[str]) -> tuple[Device, ...]:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        reasons.append("nvidia-ml-py is not installed")
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        reasons.append(f"NVIDIA: {_said(error)}")
        return ()
    try:
        found = [device for index in range(nvml.nvmlDeviceGetCount()) for device in _card(nvml, index)]
    except nvml.NVMLError as error:
        reasons.append(f"NVIDIA: {_said(error)}")
        return ()
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    if not found:
        reasons.append("NVIDIA: the driver shows no device")
    return tuple(_mark_visible(found))


def _said(error: Exception) -> str:
    return str(error).strip().rstrip(".").lower() or type(error).__name__


class _Questions:
    """Calls of NVML that a device may refuse: what was refused for another reason than "not supported" is noted."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.notes: list[str] = []

    def ask(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None."""
        try:
            return call(*arguments)
        except self.nvml.NVMLError as error:
            unsupported = (self.nvml.NVML_ERROR_NOT_SUPPORTED, self.nvml.NVML_ERROR_NOT_FOUND)
            if getattr(error, "value", None) not in unsupported:
                self.notes.append(f"{what}: {_said(error)}")
            return None


def _card(nvml: Any, index: int) -> Iterator[Device]:
    """A whole card, or its MIG instances where MIG is on."""
    handle, questions = nvml.nvmlDeviceGetHandleByIndex(index), _Questions(nvml)
    mode = questions.ask("MIG mode", nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        yield _device(nvml, handle, str(index), questions)
        return
    for place in range(questions.ask("MIG instances", nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = questions.ask("MIG instance", nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if instance is not None:
            yield _device(nvml, instance, f"{index}:{place}", questions, card=handle)


def _device(nvml: Any, handle: Any, index: str, questions: _Questions, card: Any = None) -> Device:
    name = _text(nvml.nvmlDeviceGetName(handle))
    memory, reserved = _memory(nvml, handle, questions)
    usable, source = _usable(name, memory, reserved)
    capability = questions.ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability, card or handle)
    uuid = questions.ask("UUID", nvml.nvmlDeviceGetUUID, handle)
    processes = tuple(_processes(nvml, handle, questions))
    return Device(
        index=index,
        name=name,
        vendor="nvidia",
        usable=usable,
        driver_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        uuid=None if uuid is None else _text(uuid),
        capability=None if capability is None else ".".join(map(str, capability)),
        mig=card is not None,
        processes=processes,
        source=source,
        notes=tuple(dict.fromkeys(questions.notes)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 12


def _memory(nvml: Any, handle: Any, questions: _Questions) -> tuple[Any, int | None]:
    """Total and free of NVML, and what the driver reserves of it; drivers before 510 do not say the latter."""
    with suppress(nvml.NVMLError, AttributeError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        return memory, int(memory.reserved)
    return questions.ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle), None


def _usable(name: str, memory: Any, reserved: int | None) -> tuple[Range, str]:
    if memory is not None and reserved is not None:
        return exactly(int(memory.total) - reserved), "NVML's total less what the driver reserves"
    if memory is not None:
        size = "small" if memory.total < 15 * 2**30 else "middle" if memory.total < 50 * 2**30 else "large"
        return by_rule(f"nvidia-{size}", int(memory.total))
    known = find(name)
    if known is None:
        what = f"NVML gives no memory size for {name}"
        raise MissingRequirementError(what, hint="It may share memory with the CPU. Name a size: --gpu 24GiB.")
    return known.usable, f"NVML gives no size for it; {known.source}"


def _processes(nvml: Any, handle: Any, questions: _Questions) -> Iterator[Process]:
    for process in questions.ask("processes", nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
        if process.pid == os.getpid():
            continue
        try:
            name = _text(nvml.nvmlSystemGetProcessName(process.pid))
        except nvml.NVMLError:
            name = "a process of another user or container"
        yield Process(int(process.pid), name, None if process.usedGpuMemory is None else int(process.usedGpuMemory))


def _mark_visible(found: list[Device]) -> Iterator[Device]:
    """CUDA_VISIBLE_DEVICES names devices by number or by a UUID's beginning; what follows a bad entry is hidden too."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        yield from found
        return
    shown: list[Device] = []
    for entry in setting.split(","):
        named = [device for device in found if _names(entry.strip(), device)]
        if not named:
            break
        shown += named
    by_number = any(entry.strip().isdigit() for entry in setting.split(","))
    mixed = len({device.name for device in found}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    note = ("CUDA numbers unlike devices by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID",) if by_number and mixed else ()
    for device in found:
        yield replace(device, visible=device in shown, notes=device.notes + note)


def _names(entry: str, device: Device) -> bool:
    by_uuid = entry.startswith(("GPU-", "MIG-")) and (device.uuid or "").startswith(entry)
    return by_uuid or entry == device.index.partition(":")[0]


# -- AMD ---------------------------------------------------------------------------------------------------------------


def _amd(reasons: list[str]) -> tuple[Device, ...]:
    try:
        with redirect_stdout(StringIO()):  # where it finds no library, it prints so before it raises
            smi = import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:  # its import looks for ROCm's library at once
        reasons.append("amdsmi is not installed" if isinstance(error, ImportError) else "amdsmi finds no ROCm library")
        return ()
    try:
        smi.amdsmi_init()
        found = tuple(
            _amd_device(smi, handle, index) for index, handle in enumerate(smi.amdsmi_get_processor_handles())
        )
        smi.amdsmi_shut_down()
    except smi.AmdSmiException as error:
        reasons.append(f"AMD: {_said(error)}")
        return ()
    if not found:
        reasons.append("AMD: the driver shows no device")
    return found


def _amd_device(smi: Any, handle: Any, index: int) -> Device:
    asic = smi.amdsmi_get_gpu_asic_info(handle)
    total = int(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM))
    used = int(smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM))
    name = str(asic["market_name"])
    known, notes, processes = find(name), [], []
    try:
        processes = [
            Process(int(p["pid"]), str(p["name"]), int(p["mem"])) for p in smi.amdsmi_get_gpu_process_list(handle)
        ]
    except smi.AmdSmiException as error:
        notes.append(f"processes: {_said(error)}")
    # On an MI300X torch prints the driver's 196,592 MiB, vLLM 191.69 GiB: up to 307 MiB less.
    low = total - 310 * 2**20
    return Device(
        index=str(index),
        name=name,
        vendor="amd",
        usable=Range(max(low, 0), total),
        driver_bytes=total,
        free_bytes=total - used,
        uuid=str(smi.amdsmi_get_gpu_device_uuid(handle)),
        capability=known.capability if known else None,
        processes=tuple(p for p in processes if p.pid != os.getpid()),
        source="the driver's total, less at most 310 MiB as seen on an MI300X",
        notes=tuple(notes),
    )


# -- Apple -------------------------------------------------------------------------------------------------------------


def _apple() -> Device:
    chip, memory = _sysctl("machdep.cpu.brand_string"), _sysctl("hw.memsize")
    if chip is None or memory is None or not chip.startswith("Apple") or not memory.isdigit():
        what = f"no Apple GPU that shares the memory: {chip or 'sysctl gives no chip'}"
        raise MissingRequirementError(what, hint=_ELSEWHERE)
    total = int(memory)
    limit = _sysctl("iogpu.wired_limit_mb") or "0"  # 0: the default
    usable, source = metal(total)
    if limit.isdigit() and int(limit) > 0:
        usable, source = exactly(min(int(limit) * 2**20, total)), "sysctl iogpu.wired_limit_mb"
    name = f"{chip} {total // 2**30}GB"
    note = "the memory is shared with everything else that runs: what is free is not known"
    return Device("0", name, "apple", usable, total, None, source=source, notes=(note,))


def _sysctl(name: str) -> str | None:
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603  constant
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
