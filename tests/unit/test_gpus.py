"""The GPU table, what --gpu means, and the live probe against modules that stand in for the drivers' own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize import gpus
from kvsize.cli import run
from kvsize.errors import MissingRequirementError, UsageError
from kvsize.gpus import Gpu, find, gpu, live, select, squeeze, table
from kvsize.ranges import Range, exactly
from kvsize.report import GpusDoc

GIB, MIB = 2**30, 2**20

# -- the table ---------------------------------------------------------------------------------------------------------


def test_there_are_enough_rows_and_each_can_be_named() -> None:
    assert len(table()) > 200
    assert len({row.key for row in table()}) == len(table())
    names = [(squeeze(name), row.key) for row in table() for name in {row.key, row.name, *row.aliases}]
    owners: dict[str, set[str]] = {}
    for name, key in names:
        owners.setdefault(name, set()).add(key)
    assert {name: keys for name, keys in owners.items() if len(keys) > 1} == {}
    assert all(find(row.key) is row for row in table())


@pytest.mark.parametrize("row", table(), ids=lambda row: row.key)
def test_a_row_makes_sense(row: Gpu) -> None:
    assert 0 < row.usable.low <= row.usable.high
    assert row.evidence in {"exact", "derived", "assumed"}
    assert row.source
    if row.driver_bytes is not None:
        slack = 6 * MIB if row.kind == "mig" else 0  # the list of profiles rounds to 0.01 GiB
        assert row.usable.high <= row.driver_bytes + slack
        assert row.driver_bytes < 1.001 * GIB * int(row.memory.split()[0])
    assert (row.bandwidth is None) == (row.bandwidth_source is None)
    assert row.bandwidth is None or 10**10 < row.bandwidth < 10**13
    assert row.vendor not in {"nvidia", "amd"} or row.capability or row.key == "l20x"


def test_rules_cover_the_rows_of_their_kind_for_which_torch_was_seen() -> None:
    checked = 0
    for vendor, kinds in gpus._data().items():
        for row in () if vendor == "rule" else (row for tables in kinds.values() for row in tables.values()):
            if "usable_mib" in row and "rule" in row:
                rule = gpus._rules()[row["rule"]]
                total = row["driver_mib"] if rule.of == "driver" else row["memory_gb"] * 1024
                low, high = row["usable_mib"]
                told = rule.usable(total * MIB)
                assert told.low <= low * MIB <= high * MIB <= told.high, row["name"]
                checked += 1
    assert checked > 45


@pytest.mark.parametrize(
    ("name", "driver_mib", "low_gib", "high_gib"),
    [
        ("h100", 81559, 79.10, 79.19),  # an "80 GB" card
        ("a100-40", 40960, 39.38, 39.51),
        ("a100-80gb-sxm", 81920, 79.13, 79.26),
        ("h200", 143771, 139.79, 139.82),
        ("l40s", 46068, 44.30, 44.53),
        ("4090", 24564, 23.64, 23.66),
        ("t4", 15360, 14.55, 14.75),
        ("b200", 183359, 178.34, 178.37),
        ("mi300x", None, 191.68, 191.99),
        ("gb10", None, 119.62, 121.70),
        ("gaudi3", 131072, 126.07, 128.0),
        ("m4-max-64", 65536, 48.0, 51.85),
        ("h100-1g.10gb", 9984, 9.62, 9.76),
    ],
)
def test_totals_are_the_drivers_not_the_brochures(
    name: str, driver_mib: int | None, low_gib: float, high_gib: float
) -> None:
    found = gpu(name)
    assert found.driver_bytes == (None if driver_mib is None else driver_mib * MIB)
    assert low_gib * GIB <= found.usable.low <= found.usable.high <= high_gib * GIB


def test_where_no_total_was_published_a_rule_is_named() -> None:
    unseen = gpu("a30")
    assert (unseen.driver_bytes, unseen.evidence) == (None, "assumed")
    assert "as sold" in unseen.source
    assert unseen.usable.low < unseen.usable.high < 24 * GIB
    assert gpu("titan-v").evidence == "derived"
    assert "12" not in gpu("titan-v").notes
    assert gpu("h100").evidence == "exact"


def test_bandwidth_follows_the_chip_where_sizes_differ() -> None:
    assert gpu("m4-max-36").bandwidth == 410 * 10**9
    assert gpu("m4-max-48").bandwidth == 546 * 10**9
    assert gpu("h100").bandwidth == 3350 * 10**9
    assert gpu("p4").bandwidth_source == "https://www.techpowerup.com/gpu-specs/tesla-p4.c2879"


def test_where_the_table_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert gpus._path() == Path(gpus.__file__).parents[2] / "configs" / "gpus.toml"
    (tmp_path / "kvsize" / "configs").mkdir(parents=True)
    (tmp_path / "kvsize" / "configs" / "gpus.toml").touch()
    monkeypatch.setattr(gpus, "__file__", str(tmp_path / "kvsize" / "gpus" / "__init__.py"))
    assert gpus._path() == tmp_path / "kvsize" / "configs" / "gpus.toml"


def test_ranges() -> None:
    assert Range(1, 2) + exactly(3) == Range(4, 5)
    assert Range(1, 4).width == 3
    with pytest.raises(ValueError, match="from 2 to 1"):
        Range(2, 1)


# -- what --gpu means --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "count"),
    [
        ("h100", "h100", 1),
        ("H100", "h100", 1),
        ("h100-80gb-sxm", "h100", 1),
        ("H100_80GB_SXM5", "h100", 1),
        ("NVIDIA H100 80GB HBM3", "h100", 1),
        ("NVIDIA A100-SXM4-40GB", "a100-40", 1),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-80-3g.40gb", 1),
        ("Tesla T4", "t4", 1),
        ("NVIDIA GeForce RTX 4090", "4090", 1),
        ("rtx4090", "4090", 1),
        ("AMD Instinct MI300X", "mi300x", 1),
        ("Apple M4 Max 64GB", "m4-max-64", 1),
        ("8xh100", "h100", 8),
        ("8 x H100", "h100", 8),
        ("8×h100", "h100", 8),
        ("8*h100", "h100", 8),
        ("h100:8", "h100", 8),
        (" 2x1080-ti ", "1080-ti", 2),
        ("2x4090", "4090", 2),
        ("16x7900-xtx", "7900-xtx", 16),
    ],
)
def test_names(text: str, key: str, count: int) -> None:
    chosen = select(text)
    assert (chosen.gpu.key, chosen.count) == (key, count)


@pytest.mark.parametrize(
    ("text", "size", "count"),
    [
        ("24GiB", 24 * GIB, 1),
        ("24gb", 24 * 10**9, 1),
        ("24.5 GiB", 49 * GIB // 2, 1),
        ("23.65GiB", 2365 * GIB // 100, 1),
        ("512MiB", GIB // 2, 1),
        ("4x80GiB", 80 * GIB, 4),
        ("80GiB:4", 80 * GIB, 4),
        ("1.5TiB", 3 * 2**39, 1),
    ],
)
def test_sizes(text: str, size: int, count: int) -> None:
    chosen = select(text)
    assert (chosen.gpu.usable, chosen.count, chosen.gpu.evidence) == (exactly(size), count, "assumed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h101", "Did you mean h100"),
        ("rtx 4091", "Did you mean 4090"),
        ("mi300", None),
        ("a100-90", "a100-80"),
        ("", "--gpu takes a name"),
        ("nothing like it at all", "kvsize gpus"),
        ("0xh100", "1 to 65,536"),
        ("h100:0", "1 to 65,536"),
        ("99999999999999999999xh100", "1 to 65,536"),
        ("-1xh100", "with its unit"),
        ("-24GiB", "with its unit"),
        ("24", "with its unit"),
        ("24g", "with its unit"),
        ("0GiB", "from 1MiB"),
        ("0.0000001GiB", "from 1MiB"),
        ("9999999999TiB", "from 1MiB"),
    ],
)
def test_what_names_no_gpu(text: str, words: str | None) -> None:
    if words is None:
        assert select(text).gpu.key == "mi300x"
        return
    with pytest.raises(UsageError) as caught:
        select(text)
    assert words in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=20) | st.from_regex(r"\d{0,3}[x:]?[a-z]{0,3}-?\d{0,5}(GiB|gb)?(:\d)?", fullmatch=True))
def test_any_text_is_a_gpu_or_an_error_of_ours(text: str) -> None:
    if text.strip().lower().endswith("auto"):
        return
    with suppress(UsageError):
        assert select(text).count >= 1


def test_the_table_loads_only_when_asked() -> None:
    code = "import sys, kvsize.gpus; print([m for m in ('pynvml', 'amdsmi', 'kvsize.gpus.live') if m in sys.modules])"
    code += "; print(kvsize.gpus._data.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n0\n"


# -- NVML --------------------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    def __init__(self, value: int, words: str) -> None:
        super().__init__(words)
        self.value = value


NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = (
    NVMLError(3, "Not Supported"),
    NVMLError(4, "Insufficient Permissions"),
    NVMLError(6, "Not Found"),
)


def memory(total: int, reserved: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total=total * MIB, reserved=reserved * MIB, free=free * MIB)


H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-11111111-aaaa",
    "memory": memory(81559, 551, 70000),
    "capability": (9, 0),
    "mig": (0, 0),
    "processes": [SimpleNamespace(pid=4242, usedGpuMemory=11008 * MIB)],
}
RTX: dict[str, Any] = {
    "name": "NVIDIA GeForce RTX 4090",
    "uuid": "GPU-22222222-bbbb",
    "memory": memory(24564, 347, 24217),
    "capability": (8, 9),
    "mig": NOT_SUPPORTED,
    "processes": [],
}
MIG = [
    {
        "name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "uuid": "MIG-3",
        "memory": memory(40192, 0, 40000),
        "processes": [],
        "capability": NOT_SUPPORTED,
    },
    {
        "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "uuid": "MIG-1",
        "memory": memory(9728, 0, 9000),
        "processes": [],
        "capability": NOT_SUPPORTED,
    },
]
A100 = {**H100, "name": "NVIDIA A100-SXM4-80GB", "uuid": "GPU-3", "mig": (1, 1), "capability": (8, 0), "instances": MIG}


def answer(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pynvml whose cards are dicts; `cards` may be changed by the test."""
    module: Any = ModuleType("pynvml")
    module.cards, module.started, module.v2 = [H100], 0, True

    def start() -> None:
        module.started += 1

    def stop() -> None:
        module.started -= 1

    def instance(card: dict[str, Any], place: int) -> Any:
        found = card.get("instances", [])
        return found[place] if place < len(found) else answer(NOT_FOUND)

    def memory_info(card: dict[str, Any], version: int | None = None) -> Any:
        info = answer(card["memory"])
        if version is None:
            return SimpleNamespace(total=info.total, free=info.free)
        return info if module.v2 else answer(NVMLError(13, "Function Not Found"))

    module.NVMLError = NVMLError
    module.NVML_ERROR_NOT_SUPPORTED, module.NVML_ERROR_NOT_FOUND = 3, 6
    module.NVML_DEVICE_MIG_ENABLE, module.nvmlMemory_v2 = 1, 0x02000028
    module.nvmlInit, module.nvmlShutdown = start, stop
    module.nvmlDeviceGetCount = lambda: len(module.cards)
    module.nvmlDeviceGetHandleByIndex = lambda index: module.cards[index]
    module.nvmlDeviceGetName = lambda card: answer(card["name"])
    module.nvmlDeviceGetUUID = lambda card: answer(card["uuid"])
    module.nvmlDeviceGetMemoryInfo = memory_info
    module.nvmlDeviceGetCudaComputeCapability = lambda card: answer(card["capability"])
    module.nvmlDeviceGetMigMode = lambda card: answer(card["mig"])
    module.nvmlDeviceGetMaxMigDeviceCount = lambda card: answer(card.get("max", 7))
    module.nvmlDeviceGetMigDeviceHandleByIndex = instance
    module.nvmlDeviceGetComputeRunningProcesses = lambda card: answer(card["processes"])
    module.nvmlSystemGetProcessName = lambda pid: answer(
        {4242: "/usr/bin/python3"}.get(pid, NVMLError(4, "Insufficient Permissions"))
    )
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(live.sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    yield module
    assert module.started == 0, "NVML is shut down again"


def test_a_card_with_another_process(nvml: Any) -> None:
    (device,) = live.devices()
    assert (device.name, device.vendor, device.index, device.capability) == (H100["name"], "nvidia", "0", "9.0")
    assert device.driver_bytes == 81559 * MIB
    assert device.usable == exactly(81008 * MIB), "what torch prints on this card: the total less what is reserved"
    assert device.free_bytes == 70000 * MIB
    assert device.processes == (live.Process(4242, "/usr/bin/python3", 11008 * MIB),)
    assert device.notes == ()


def test_auto_is_the_smallest_device_with_the_least_free_memory(nvml: Any) -> None:
    nvml.cards = [H100, {**H100, "uuid": "GPU-9", "memory": memory(81559, 551, 60000)}]
    chosen = select("auto")
    assert (chosen.count, chosen.gpu.free_bytes, chosen.gpu.evidence) == (2, 60000 * MIB, "measured")
    assert (chosen.gpu.bandwidth, chosen.gpu.capability) == (3350 * 10**9, "9.0")
    assert chosen.gpu.notes == ()
    nvml.cards = [H100, RTX]
    chosen = select("auto")
    assert (chosen.gpu.name, chosen.gpu.usable) == (RTX["name"], exactly(24217 * MIB))
    assert chosen.gpu.free_bytes == 24217 * MIB
    assert "the devices differ" in " ".join(chosen.gpu.notes)
    assert select("1xauto").count == 1


def test_auto_wants_as_many_as_asked(nvml: Any) -> None:
    with pytest.raises(MissingRequirementError, match="4 GPUs are asked for, and this machine shows 1"):
        select("4xauto")


def test_old_drivers_do_not_say_what_they_reserve(nvml: Any) -> None:
    nvml.v2 = False
    (device,) = live.devices()
    assert device.usable == Range((81559 - 935) * MIB, (81559 - 460) * MIB)
    assert "siblings" in device.source


def test_names_in_bytes(nvml: Any) -> None:
    nvml.cards = [{**RTX, "name": b"NVIDIA GeForce RTX 4090", "uuid": b"GPU-2"}]
    (device,) = live.devices()
    assert (device.name, device.uuid) == ("NVIDIA GeForce RTX 4090", "GPU-2")


def test_mig_shows_the_instances_only(nvml: Any) -> None:
    nvml.cards = [A100]
    big, small = live.devices()
    assert [(d.index, d.name, d.mig, d.capability) for d in (big, small)] == [
        ("0:0", MIG[0]["name"], True, "8.0"),
        ("0:1", MIG[1]["name"], True, "8.0"),
    ]
    chosen = select("auto")
    assert (chosen.gpu.usable, chosen.count) == (exactly(9728 * MIB), 1)
    assert "one MIG instance" in " ".join(chosen.gpu.notes)


def test_mig_on_and_no_instance_made(nvml: Any) -> None:
    nvml.cards = [{**A100, "instances": []}]
    with pytest.raises(MissingRequirementError, match="shows no device"):
        live.devices()


def test_questions_that_are_not_permitted_are_noted(nvml: Any) -> None:
    nvml.cards = [{**H100, "processes": NO_PERMISSION, "mig": NO_PERMISSION, "uuid": NOT_SUPPORTED}]
    (device,) = live.devices()
    assert device.notes == ("MIG mode: insufficient permissions", "processes: insufficient permissions")
    assert (device.processes, device.uuid) == ((), None)


def test_processes_that_cannot_be_named(nvml: Any) -> None:
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=1)
    other = SimpleNamespace(pid=7, usedGpuMemory=None)
    nvml.cards = [{**H100, "processes": [mine, other]}]
    (device,) = live.devices()
    assert device.processes == (live.Process(7, "a process of another user or container", None),)


def test_memory_that_is_shared_with_the_cpu(nvml: Any) -> None:
    nvml.cards = [{**H100, "name": "NVIDIA GB10", "memory": NOT_SUPPORTED}]
    (device,) = live.devices()
    assert (device.usable, device.driver_bytes, device.free_bytes) == (gpu("gb10").usable, None, None)
    nvml.cards = [{**H100, "name": "NVIDIA Whatever", "memory": NOT_SUPPORTED}]
    with pytest.raises(MissingRequirementError, match="no memory size for NVIDIA Whatever"):
        live.devices()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NVMLError(9, "Driver Not Loaded"), "driver not loaded"),
        (NVMLError(12, "NVML Shared Library Not Found"), "nvml shared library not found"),
        (NVMLError(18, "RM has detected an NVML/RM version mismatch."), "version mismatch"),
        (NVMLError(4, "Insufficient Permissions"), "insufficient permissions"),
    ],
)
def test_no_driver_is_exit_6_with_the_reason(nvml: Any, error: NVMLError, words: str) -> None:
    nvml.nvmlInit = lambda: answer(error)
    with pytest.raises(MissingRequirementError) as caught:
        select("auto")
    assert caught.value.exit_code == 6
    assert words in caught.value.what
    assert 'pip install "kvsize[gpu]"' in str(caught.value.hint)
    assert "--gpu h100" in str(caught.value.hint)


def test_a_driver_that_fails_while_it_is_asked(nvml: Any) -> None:
    nvml.cards = [{**H100, "name": NVMLError(15, "GPU is lost")}]
    with pytest.raises(MissingRequirementError, match="gpu is lost"):
        live.devices()


def test_no_library_at_all(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingRequirementError, match="nvidia-ml-py is not installed; amdsmi is not installed"):
        live.devices()


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, [True, True]),
        ("0", [True, False]),
        ("1", [False, True]),
        ("1,0", [True, True]),
        ("", [False, False]),
        ("-1", [False, False]),
        ("5,0", [False, False]),  # CUDA stops at the first bad entry
        ("GPU-22222222", [False, True]),
        ("GPU-9", [False, False]),
    ],
)
def test_cuda_visible_devices(
    nvml: Any, monkeypatch: pytest.MonkeyPatch, setting: str | None, shown: list[bool]
) -> None:
    nvml.cards = [H100, {**RTX}]
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    found = live.devices()
    assert [device.visible for device in found] == shown
    if not any(shown):
        with pytest.raises(MissingRequirementError, match="CUDA_VISIBLE_DEVICES"):
            select("auto")


def test_numbers_of_unlike_devices_are_said_to_be_uncertain(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.cards = [H100, RTX]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "by speed" in " ".join(live.devices()[0].notes)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert live.devices()[0].notes == ()


# -- AMD ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def amd(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = type("AmdSmiException", (Exception,), {})
    module.AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    module.used, module.list = 3 * GIB, [{"pid": 77, "name": "vllm", "mem": 2 * GIB}]
    module.amdsmi_init = module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: ["one"]
    module.amdsmi_get_gpu_asic_info = lambda _: {"market_name": "AMD Instinct MI300X"}
    module.amdsmi_get_gpu_memory_total = lambda _, kind: 196592 * MIB
    module.amdsmi_get_gpu_memory_usage = lambda _, kind: module.used
    module.amdsmi_get_gpu_process_list = lambda _: answer(module.list)
    module.amdsmi_get_gpu_device_uuid = lambda _: "abc"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_an_amd_card(amd: Any) -> None:
    (device,) = live.devices()
    assert (device.name, device.vendor, device.capability) == ("AMD Instinct MI300X", "amd", "gfx942")
    assert device.free_bytes == 196592 * MIB - 3 * GIB
    assert device.usable.low <= gpu("mi300x").usable.low
    assert device.usable.high == gpu("mi300x").usable.high
    assert device.processes == (live.Process(77, "vllm", 2 * GIB),)
    amd.list = amd.AmdSmiException("No permission")
    assert live.devices()[0].notes == ("processes: no permission",)


def test_amd_without_a_driver(amd: Any) -> None:
    amd.amdsmi_init = lambda: answer(amd.AmdSmiException("Driver not loaded"))
    with pytest.raises(MissingRequirementError, match="AMD: driver not loaded"):
        live.devices()
    amd.amdsmi_init, amd.amdsmi_get_processor_handles = lambda: None, list
    with pytest.raises(MissingRequirementError, match="AMD: the driver shows no device"):
        live.devices()


def test_amdsmi_without_rocm(amd: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = live.import_module

    def load(name: str) -> Any:
        if name == "amdsmi":
            print("Unable to find libamd_smi.so library")  # noqa: T201  as amdsmi 7 does
            raise OSError("libamd_smi.so: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(live, "import_module", load)
    with pytest.raises(MissingRequirementError, match="finds no ROCm library"):
        live.devices()
    assert capsys.readouterr().out == ""


# -- Apple -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    told = {"machdep.cpu.brand_string": "Apple M4 Max", "hw.memsize": str(64 * GIB), "iogpu.wired_limit_mb": "0"}

    def run(command: list[str], **_: Any) -> Any:
        assert command[:2] == ["/usr/sbin/sysctl", "-n"]
        if command[2] not in told:
            raise subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout=f"{told[command[2]]}\n")

    monkeypatch.setattr(live.sys, "platform", "darwin")
    monkeypatch.setattr(live.subprocess, "run", run)
    return told


def test_a_mac_with_the_default_limit(mac: dict[str, str]) -> None:
    (device,) = live.devices()
    assert (device.name, device.driver_bytes, device.free_bytes) == ("Apple M4 Max 64GB", 64 * GIB, None)
    assert device.usable == gpu("m4-max-64").usable
    chosen = select("auto")
    assert (chosen.gpu.bandwidth, chosen.gpu.free_bytes, chosen.count) == (546 * 10**9, None, 1)
    del mac["iogpu.wired_limit_mb"]
    assert live.devices()[0].usable == device.usable


def test_a_mac_with_a_limit_of_its_own(mac: dict[str, str]) -> None:
    mac["iogpu.wired_limit_mb"] = "57344"
    assert live.devices()[0].usable == exactly(57344 * MIB)
    mac["iogpu.wired_limit_mb"] = "999999999"
    assert live.devices()[0].usable == exactly(64 * GIB)


@pytest.mark.parametrize(("name", "value"), [("machdep.cpu.brand_string", "Intel(R) Core(TM) i9"), ("hw.memsize", "")])
def test_a_mac_without_a_gpu_of_its_own_kind(mac: dict[str, str], name: str, value: str) -> None:
    mac[name] = value
    with pytest.raises(MissingRequirementError, match="no Apple GPU"):
        live.devices()


# -- kvsize gpus -------------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "gpus.md"


def shown(command: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert run(command.split()) == code
    return capsys.readouterr().out


def test_the_page_fits_and_its_rows_are_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("gpus", capsys).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1 : len(table()) + 1]] == [row.key for row in table()]
    assert f"{len(table())} devices" in lines[len(table()) + 2]


def test_the_one_that_is_named_is_shown_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown("gpus --search H100-80GB-SXM", capsys)
    assert "h100 " in page
    assert "the total that torch or vLLM printed" in page
    assert "bandwidth" in page
    assert "h100-pcie" in shown("gpus --search h100", capsys)
    assert "no gpu has such a name" in shown("gpus --search quux", capsys).lower()


@pytest.mark.parametrize("command", ["gpus --json", "gpus --search b200 --json", "gpus --search quux --json"])
def test_json_is_valid_and_complete(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from pydantic import TypeAdapter

    text = shown(command, capsys)
    adapter = TypeAdapter(GpusDoc)
    assert adapter.dump_python(adapter.validate_json(text, strict=True), mode="json") == json.loads(text)
    assert text.startswith('{"schema": "kvsize.gpus/1"')
    assert all(row["usable_bytes"]["low"] <= row["usable_bytes"]["high"] for row in json.loads(text)["gpus"])


def test_csv_gives_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    header, row = shown("gpus --search gaudi2 --format csv", capsys).splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["driver_bytes"] == str(98304 * MIB)
    assert "| gaudi2 |" in shown("gpus --search gaudi2 --format markdown", capsys)


def test_live_shows_this_machine(
    nvml: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.cards = [{**H100, "mig": NO_PERMISSION}, RTX]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    page = shown("gpus --live", capsys)
    assert "68.36 GiB free of 79.11 GiB that torch sees" in page
    assert "79.65 GiB in all; NVML's total less what the driver reserves" in page
    assert "4242 /usr/bin/python3, 10.75 GiB" in page
    assert "MIG mode: insufficient permissions" in page
    assert "hidden by CUDA_VISIBLE_DEVICES" in page
    document = json.loads(shown("gpus --live --json", capsys))
    assert (document["gpus"], [each["visible"] for each in document["devices"]]) == ([], [True, False])
    assert document["devices"][0]["free_bytes"] == 70000 * MIB
    rows = shown("gpus --live --format csv --search 4090", capsys).splitlines()
    assert rows[1].startswith("1,NVIDIA GeForce RTX 4090,GPU-22222222-bbbb,no,")


def test_live_without_a_driver_is_exit_6(nvml: Any, capsys: pytest.CaptureFixture[str]) -> None:
    nvml.nvmlInit = lambda: answer(NVMLError(9, "Driver Not Loaded"))
    assert run(["gpus", "--live", "--json"]) == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    error = json.loads(captured.err)
    assert (error["code"], error["exit"]) == ("missing_requirement", 6)
    assert "driver not loaded" in error["message"]


def test_the_manual_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```console\n\$ kvsize (.*?)\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 2
    for command, expected in blocks:
        assert shown(command, capsys) == expected
