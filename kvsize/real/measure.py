"""Builds real caches of the installed transformers and weighs them: the judge, which knows nothing of the predictions.

The model is a thin twin (twin.py): the real class, layers, heads and windows, random weights, on the meta
device, the CPU or a CUDA device.
"""

from __future__ import annotations

import gc
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvsize.errors import MissingRequirementError, UnsupportedError
from kvsize.real import paging
from kvsize.real.probe import HeldLayer, weigh
from kvsize.real.twin import Subject, first_line, libraries, read_config, subject

Moment: TypeAlias = Literal["prefill", "decode", "generate", "pool"]
DEVICES = ("auto", "meta", "cpu", "cuda")
# Caches that a model's forward call can be handed; generate builds any of them.
FED = ("dynamic", "static")
PAGED = "paged"
PAGE, SPARE_BLOCKS = 256, 64  # a page's tokens by default; room for the sectors that requests fill in part
NEW_TOKENS = 4
CUDA_BLOCK = 512  # torch's caching allocator rounds each tensor up to this


@dataclass(frozen=True, slots=True)
class Run:
    """One cache to build: `tokens` in it (or the length of a static one), for so many sequences.

    `moment`: right after a one-shot prefill, one decode step later, or after a real `generate` of four tokens; of a
    paged cache that is what requests take, and "pool" the whole of it.
    """

    cache: str
    tokens: int
    sequences: int = 1
    moment: Moment = "decode"
    num_beams: int = 1

    @property
    def prompt(self) -> int:
        """Tokens of the prompt that generate is given; it never feeds its last token back."""
        return self.tokens - NEW_TOKENS + 1

    @property
    def num_blocks(self) -> int:
        """Whole-model blocks of a paged cache's pool."""
        return self.sequences * -(-self.tokens // PAGE) + SPARE_BLOCKS


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What CUDA says of it: torch's allocated and reserved bytes and their peak, NVML's figure for this process."""

    allocated: int
    reserved: int
    peak: int
    process: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes that the cache's tensors show, those of their storages, how many tensors, and what the device says."""

    logical: int
    storage: int
    tensors: int
    device: OnDevice | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """Where it was measured."""

    python: str
    torch: str
    transformers: str
    device: str
    driver: str | None = None


class OutOfMemoryError(UnsupportedError):
    """The device could not hold the twin or its cache."""


@dataclass(slots=True)
class Bench:
    """One model, ready to be run. Close it to give the device's memory back."""

    subject: Subject
    device: str = field(init=False)
    model_class: str = field(init=False)

    def __post_init__(self) -> None:
        self.device = self.subject.device
        self.model_class = type(self.subject.model).__name__

    @property
    def encoder_tokens(self) -> int | None:
        """Tokens that the encoder is made to yield; None without one."""
        return self.subject.encoder_tokens if self.subject.reads_encoder else None

    def measure(self, run: Run) -> Measured:
        """Build this cache, weigh it, drop it.

        Raises:
            UnsupportedError: the model, its class or this device does not run it; the error says why.
            OutOfMemoryError: there was not enough memory.
        """
        torch, _ = libraries()
        try:
            with _watching(torch, self.device) as seen:
                if run.cache == PAGED:
                    return self._paged(run, seen)
                cache = self._build(run)
                layers = weigh(cache, self.subject.model)
                settled = seen()
            return _measured(layers, settled)
        except UnsupportedError:
            raise
        except Exception as error:  # model code fails in every way
            if is_out_of_memory(torch, error):
                raise OutOfMemoryError(f"out of memory on {self.device}: {first_line(error)}") from None
            raise UnsupportedError(f"transformers does not run it: {first_line(error)}") from error
        finally:
            release(torch, self.device)

    def _build(self, run: Run) -> Any:
        if run.moment == "generate" or run.cache not in FED or run.num_beams > 1:
            return self._generate(run)
        if run.cache == "static":
            if self.subject.own_cache:
                raise UnsupportedError(f"{self.model_class} builds its own cache")
            return self._static(run)
        if run.moment == "prefill":
            return self.subject.feed((run.tokens,), run.sequences)
        return self._decode(run)

    def _static(self, run: Run) -> Any:
        """A few tokens and a step; where meta tensors allow no step, a prefill, after which the slots are the same."""
        torch, _ = libraries()
        tokens = min(16, run.tokens)
        try:
            return self.subject.feed((tokens - 1, 1) if tokens > 1 else (1,), run.sequences, "static", run.tokens)
        except Exception as error:  # model code fails in every way
            if is_out_of_memory(torch, error):
                raise
        return self.subject.feed((tokens,), run.sequences, "static", run.tokens)

    def _decode(self, run: Run) -> Any:
        torch, _ = libraries()
        if run.tokens > 1:
            try:
                return self.subject.feed((run.tokens - 1, 1), run.sequences)
            except Exception as error:  # model code fails in every way
                if is_out_of_memory(torch, error) or self.subject.decodes:
                    raise
        raise UnsupportedError("it takes no decode step of this length")

    def _generate(self, run: Run) -> Any:
        """The cache that a real `generate` returns."""
        self._check_generate(run)
        output = self.subject.generate(
            **self.subject.inputs(run.sequences, run.prompt),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            num_beams=run.num_beams,
            cache_implementation=run.cache,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        cache = next((output[name] for name in ("past_key_values", "cache_params") if output.get(name)), None)
        if cache is None:
            raise UnsupportedError("generate does not return its cache")
        return cache

    def _check_generate(self, run: Run) -> None:
        if self.device == "meta":
            raise UnsupportedError("generate needs values, which the meta device has none of", hint="Use --device cpu.")
        if run.prompt < 1:
            raise UnsupportedError(f"generate is given {NEW_TOKENS} new tokens, so at least {NEW_TOKENS} are cached")

    def _paged(self, run: Run, seen: Callable[[], OnDevice | None]) -> Measured:
        """Continuous batching's pool, or what requests take out of it."""
        if run.num_beams > 1:
            raise UnsupportedError("continuous batching has no beams")
        model = self.subject.model
        if run.moment == "generate":
            self._check_generate(run)
            taken = paging.served_bytes(model, run.sequences, run.prompt, NEW_TOKENS, run.num_blocks)
            return Measured(taken, taken, 1)
        pool = paging.build_pool(model, run.num_blocks, PAGE)
        if run.moment == "pool":
            return _measured(weigh(pool), seen())
        paging.admit(pool, run.sequences, (run.tokens,) if run.moment == "prefill" else (run.tokens - 1, 1))
        taken = paging.taken_bytes(pool)
        return Measured(taken, taken, 1)

    def close(self) -> None:
        """Drop the model and give the device's memory back."""
        torch, _ = libraries()
        self.subject.model = None
        release(torch, self.device)


def bench(raw: Mapping[str, Any], device: str = "auto", dtype: str = "bfloat16") -> Bench:
    """A thin twin of a parsed config.json, on the device asked for; "auto" takes the first that can hold it.

    Raises:
        MissingRequirementError: torch or transformers is not installed, or there is no CUDA device.
        UnknownArchitectureError, ConfigError: transformers does not take this config.
        UnsupportedError: nothing of it runs there.
    """
    torch, _ = libraries()
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingRequirementError("torch sees no CUDA device here", hint="Use --device cpu or --device meta.")
    order = {"auto": ("cuda", "cpu", "meta") if torch.cuda.is_available() else ("cpu", "meta")}
    return Bench(subject(read_config(raw), dtype, order.get(device, (device,))))


def environment() -> Environment:
    """What the figures of this machine depend on."""
    torch, transformers = libraries()
    name, driver = "no GPU", None
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        with suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            driver = str(pynvml.nvmlSystemGetDriverVersion())
    return Environment(platform.python_version(), torch.__version__, transformers.__version__, name, driver)


def is_out_of_memory(torch: Any, error: BaseException) -> bool:
    """Whether torch said that there was no memory; on the CPU it says so in a RuntimeError's words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def available_bytes() -> int | None:
    """Memory that Linux can still give out; None where it does not say."""
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
        return int(found[1]) * 1024 if found else None
    return None


def release(torch: Any, device: str) -> None:
    """Give back what is no longer referred to; on the meta device nothing is held."""
    if device != "meta":
        gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _watching(torch: Any, device: str) -> Iterator[Callable[[], OnDevice | None]]:
    """A function that says what CUDA's figures grew by since the start, once all work there is done."""
    if device != "cuda":
        yield lambda: None
        return
    release(torch, device)
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def settled() -> OnDevice:
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - allocated
        release(torch, device)
        held = torch.cuda.memory_allocated() - allocated
        return OnDevice(held, torch.cuda.memory_reserved() - reserved, peak, process_bytes())

    yield settled


def process_bytes() -> int | None:
    """What NVML says that this process holds; None where it cannot be asked."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        running = [process for device in devices for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
        return sum(process.usedGpuMemory or 0 for process in running if process.pid == os.getpid()) or None
    return None


def _measured(layers: tuple[HeldLayer, ...], device: OnDevice | None) -> Measured:
    held = [tensor for layer in layers for tensor in layer.tensors]
    return Measured(
        logical=sum(layer.logical for layer in layers),
        storage=sum(layer.storage for layer in layers),
        tensors=sum(tensor.storage > 0 for tensor in held),
        device=device,
    )
