"""How many cells llama.cpp allocates for a context. llama.cpp@b11434 src/llama-context.cpp, llama-kv-cache-iswa.cpp"""

from __future__ import annotations

from dataclasses import dataclass

from kvsize.engines.llamacpp.versions import Build


def pad(count: int, step: int) -> int:
    """GGML_PAD: up to a whole number of steps."""
    return -(-count // step) * step


@dataclass(frozen=True, slots=True)
class Context:
    """A context's cells: `per_stream` in each of `streams`, shared by all sequences where there is one."""

    per_stream: int
    streams: int
    sequences: int
    unified: bool
    ubatch: int
    old_step: int = 0  # what b6173 pads windows to: 256 with flash attention, else 32

    @property
    def cells(self) -> int:
        """Cells of a layer that keeps everything."""
        return self.per_stream * self.streams

    def window_cells(self, window: int, *, shared: bool) -> int:
        """Cells of one stream of a layer with a window, `shared` by all sequences or one's own."""
        wanted = window * (self.sequences if shared else 1) + self.ubatch
        if self.old_step:
            return min(self.per_stream, pad(wanted, self.old_step))
        return pad(min(self.per_stream, wanted), 256)


def context(
    n_ctx: int, sequences: int, unified: bool, batch: int, ubatch: int, rules: Build, *, flash: bool, hybrid: bool
) -> Context:
    """The cells of `n_ctx`, which all sequences divide between them, or share."""
    ubatch = min(batch, ubatch or batch, n_ctx)  # causal attention: a batch is at most the context
    if rules.old:
        return _old(n_ctx, sequences, unified, ubatch, flash=flash, hybrid=hybrid)
    whole = pad(n_ctx, 256)
    per_stream = whole if unified else pad(whole // sequences, 256)  # at most 256 sequences
    return Context(per_stream, 1 if unified else sequences, sequences, unified, ubatch)


def _old(n_ctx: int, sequences: int, unified: bool, ubatch: int, *, flash: bool, hybrid: bool) -> Context:
    """llama.cpp@b6173 src/llama-model.cpp create_memory: hybrids give each sequence the whole context."""
    step = 256 if flash else 32
    share = n_ctx if unified or hybrid else -(-n_ctx // sequences)
    return Context(pad(share, step), 1 if unified else sequences, sequences, unified, ubatch, old_step=step)
