"""The GPUs of configs/gpus.toml, and what `--gpu` means: a name, a size, and how many.

A driver reports less than what is sold, and torch sees less than the driver: `usable` is the total that torch prints,
from public logs where it was found, else a range by a rule that the table names. The live probe is live.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvsize.engines import Evidence
from kvsize.errors import UsageError
from kvsize.ranges import Range, exactly

MIB = 2**20
MAX_COUNT = 65_536
_FORMS = (
    "--gpu takes a name (h100), a size (24GiB), a number of either (8xh100) or auto; `kvsize gpus` lists the names."
)
# Words of makers and product lines, which people and drivers write or leave out. Squeezed, so without separators.
_MAKERS = re.compile(r"^(nvidia|amd|intel|apple|google|geforce|tesla|instinct|radeon|jetson)+(?=[a-z0-9])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|mib|gb|mb|tib|tb)", re.IGNORECASE)
_ODD_SIZE = re.compile(r"-.*|\d{1,3}(?:[.,]\d+)?\s*[a-z]{0,3}", re.IGNORECASE)
_UNITS = {"mib": 2**20, "gib": 2**30, "tib": 2**40, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_COUNTED = (re.compile(r"(\d+)\s*[x*×]\s*(\S.*)", re.IGNORECASE), re.compile(r"(?P<name>.*\S)\s*:\s*(?P<count>\d+)"))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. `usable` is the total that torch sees; `driver_bytes` what the driver reports, None if never seen.

    `evidence`: exact (torch printed it), derived (a rule on the driver's total), assumed (a rule on the size as sold,
    or a size that was given), measured (this machine, now: `free_bytes` is what is free). `source` says it in words.
    `bandwidth` is in bytes a second, as published; `capability` CUDA's number or AMD's gfx name.
    """

    key: str
    name: str
    vendor: str
    kind: str
    usable: Range
    evidence: Evidence
    source: str
    memory: str = ""
    driver_bytes: int | None = None
    free_bytes: int | None = None
    bandwidth: int | None = None
    bandwidth_source: str | None = None
    capability: str | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSet:
    """What `--gpu` named: `count` equal devices."""

    gpu: Gpu
    count: int = 1


# -- what was named ----------------------------------------------------------------------------------------------------


def select(text: str) -> GpuSet:
    """The devices that `--gpu` names: `h100`, `8xh100`, `h100:8`, `24GiB`, `4x24GiB`, or `auto` for this machine's.

    Raises:
        UsageError: an unknown name (with the nearest ones), a size or number that means nothing.
        MissingRequirementError: `auto`, and no device can be asked here.
    """
    count, name = _counted(text.strip())
    if name.lower() == "auto":
        from kvsize.gpus.live import automatic

        return automatic(count)
    return GpuSet(_sized(name) or gpu(name), count or 1)


def gpu(name: str) -> Gpu:
    """The device of that name or alias; case and separators are free.

    Raises:
        UsageError: no such device, with the nearest names.
    """
    found = find(name)
    if found is None:
        raise UsageError(f"unknown GPU {name[:60]!r}", hint=f"{_near(name)}{_FORMS}")
    return found


def find(name: str) -> Gpu | None:
    """The device of that name or alias, None if the table has none. Driver names work too: "NVIDIA H100 80GB HBM3"."""
    return _names().get(squeeze(name))


def _counted(text: str) -> tuple[int | None, str]:
    for pattern in _COUNTED:
        match = pattern.fullmatch(text)
        if match:
            named = match.groupdict()
            number, name = (named["count"], named["name"]) if named else match.groups()
            if not 1 <= int(number[:9]) <= MAX_COUNT or len(number) > 9:
                raise UsageError(f"--gpu takes 1 to {MAX_COUNT:,} devices", got=text[:60])
            return int(number), name
    return None, text


def _sized(text: str) -> Gpu | None:
    match = _SIZE.fullmatch(text)
    if match is None:
        if _ODD_SIZE.fullmatch(text) and find(text) is None:
            raise UsageError("--gpu takes a size with its unit, such as 24GiB or 24GB", got=text[:60])
        return None
    whole, _, part = match[1].partition(".")
    # Integers throughout: 23.65GiB is 2365 x 2^30 / 100.
    size = int((whole + part)[:30]) * _UNITS[match[2].lower()] // 10 ** len(part[:30])
    if not MIB <= size < 2**50:
        raise UsageError("--gpu takes a size from 1MiB to 1,000,000GiB", got=text[:60])
    return Gpu(text, text, "any", "size", exactly(size), "assumed", "as given: all of it can be used")


def squeeze(name: str) -> str:
    """A name without case, separators and maker: "NVIDIA RTX-4090" and "rtx4090" are one."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return _MAKERS.sub("", letters)


def _near(name: str) -> str:
    from difflib import get_close_matches

    names = _names()
    close = get_close_matches(squeeze(name), names, n=6, cutoff=0.6)
    keys = list(dict.fromkeys(names[match].key for match in close))[:3]
    return f"Did you mean {' or '.join(keys)}? " if keys else ""


# -- the table ---------------------------------------------------------------------------------------------------------


@cache
def _names() -> Mapping[str, Gpu]:
    return {squeeze(name): gpu for gpu in table() for name in (gpu.name, *gpu.aliases, gpu.key)}


@cache
def table() -> tuple[Gpu, ...]:
    """Every device of configs/gpus.toml, in its order."""
    rules = _rules()
    return tuple(
        _gpu(vendor, kind, key, row, rules)
        for vendor, kinds in _data().items()
        if vendor != "rule"
        for kind, tables in kinds.items()
        for name, fields in tables.items()
        for key, row in _rows(kind, name, fields)
    )


@cache
def _data() -> Mapping[str, Any]:
    with _path().open("rb") as file:
        return tomllib.load(file)


@cache
def _rules() -> Mapping[str, _Rule]:
    return {name: _rule(fields) for name, fields in _data()["rule"].items()}


def by_rule(rule: str, total_bytes: int) -> tuple[Range, str]:
    """What a rule of the table leaves of a total, and the rule in words; for devices that were asked themselves."""
    found = _rules()[rule]
    return found.usable(total_bytes), found.words


def metal(memory_bytes: int) -> tuple[Range, str]:
    """The default working set of Metal on a Mac with that much memory, and the rule in words."""
    return by_rule(_apple_rule(memory_bytes // 2**30), memory_bytes)


def _path() -> Path:
    """The table: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs" / "gpus.toml"
    return installed if installed.is_file() else package.parent / "configs" / "gpus.toml"


@dataclass(frozen=True, slots=True)
class _Rule:
    """usable = total x permille / 1000 - less, low end to high end; the total is the driver's or the size as sold."""

    of: str
    words: str
    permille: tuple[int, int]
    less_mib: tuple[int, int]

    def usable(self, total_bytes: int) -> Range:
        """The range that a total leaves."""
        low, high = (total_bytes * share // 1000 for share in self.permille)
        return Range(low - self.less_mib[1] * MIB, high - self.less_mib[0] * MIB)


def _rule(fields: Mapping[str, Any]) -> _Rule:
    low, high = fields.get("permille", (1000, 1000))
    least, most = fields.get("less_mib", (0, 0))
    return _Rule(fields["of"], fields["words"], (low, high), (least, most))


def _rows(kind: str, key: str, row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The devices of one table of the file: itself, a chip in its memory sizes, or a card in its MIG profiles."""
    if kind == "mig":
        yield from _profiles(key, row)
    elif "sizes_gb" in row:
        yield from _sizes(key, row)
    else:
        yield key, row


def _sizes(key: str, row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    speed = row["bandwidth_gb_s"]
    speeds = speed if isinstance(speed, list) else [speed] * len(row["sizes_gb"])
    for size, bandwidth in zip(row["sizes_gb"], speeds, strict=True):
        fields = {"name": f"{row['name']} {size}GB", "memory_gb": size, "driver_mib": size * 1024}
        fields["rule"] = _apple_rule(size)
        yield f"{key}-{size}", {**row, **fields, "bandwidth_gb_s": bandwidth}


def _apple_rule(size_gb: int) -> str:
    """Where the default working set steps, as macOS prints it: 2/3 up to 32 GB, 3/4 from 36 GB."""
    return "apple-16" if size_gb <= 16 else "apple-32" if size_gb <= 32 else "apple-large"


def _profiles(key: str, row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    listed = row.get("listed_mib", {})
    cards = (key, *row.get("aliases", "").split())
    for profile in (*listed, *row.get("named", "").split()):
        fields = {
            "name": f"{row['name']} MIG {profile}",
            "aliases": " ".join(f"{card}-mig-{profile}" for card in cards),
            "memory_gb": int(profile.partition(".")[2].removesuffix("gb")),
            "driver_mib": listed.get(profile),
            "rule": "mig-listed" if profile in listed else "mig-named",
            "capability": row["capability"],
        }
        yield f"{key}-{profile}", fields


def _gpu(vendor: str, kind: str, key: str, row: Mapping[str, Any], rules: Mapping[str, _Rule]) -> Gpu:
    usable, evidence, source = _usable(row, rules)
    driver, speed = row.get("driver_mib"), row.get("bandwidth_gb_s")
    return Gpu(
        key=key,
        name=row["name"],
        vendor=vendor,
        kind=kind,
        usable=usable,
        evidence=evidence,
        source=source,
        memory=" ".join(part for part in (_sold(row), row.get("memory")) if part),
        driver_bytes=None if driver is None else driver * MIB,
        bandwidth=None if speed is None else round(speed * 10**9),
        bandwidth_source=_place(row.get("bandwidth_from")),
        capability=row.get("capability"),
        aliases=tuple(row.get("aliases", "").split()),
        notes=(row["note"],) if "note" in row else (),
    )


def _sold(row: Mapping[str, Any]) -> str | None:
    return f"{row['memory_gb']} GB" if "memory_gb" in row else None


def _usable(row: Mapping[str, Any], rules: Mapping[str, _Rule]) -> tuple[Range, Evidence, str]:
    if "usable_mib" in row:
        low, high = row["usable_mib"]
        return Range(low * MIB, high * MIB), "exact", "the total that torch or vLLM printed, from public logs"
    rule = rules[row["rule"]]
    if rule.of == "driver":
        return rule.usable(row["driver_mib"] * MIB), "derived", rule.words
    told = rule.usable(row["memory_gb"] * 2**30)
    driver = row.get("driver_mib")
    return Range(told.low, min(told.high, driver * MIB) if driver else told.high), "assumed", rule.words


def _place(source: str | None) -> str | None:
    if source is None or not source.startswith("tpu:"):
        return source
    return source.replace("tpu:", "https://www.techpowerup.com/gpu-specs/", 1)
