"""The arithmetic behind a run of layers, with the numbers put in: `10 x 131,072 x 8,192 B`.

Read back from the engine's own bytes by exact division, so that a printed product is the printed figure by
construction; where nothing divides evenly, fewer factors are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsize.build import copies, is_split
from kvsize.documents import FormatDoc, LayerDoc, SizeDoc, StoreDoc
from kvsize.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Terms:
    """`lead` factors times (`tokens` x `entry_bytes` + `state_bytes`); `tokens` is 0 where it does not grow."""

    lead: tuple[int, ...]
    tokens: int
    entry_bytes: int
    state_bytes: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The factors as text, for aligning; a sum is one cell."""
        lead = [f"{factor:,}" for factor in self.lead]
        if not self.tokens:
            return (*lead, f"{self.state_bytes:,} B")
        if self.state_bytes:
            return (*lead, f"({self.tokens:,} x {self.entry_bytes:,} + {self.state_bytes:,}) B")
        return (*lead, f"{self.tokens:,}", f"{self.entry_bytes:,} B")


def terms(run: LayerDoc, document: SizeDoc) -> Terms:
    """The factors of one run's bytes."""
    sequences = document.workload.batch * copies(document.engine.settings)
    lead = (sequences, len(run.indices)) if sequences > 1 else (len(run.indices),)
    one, rest = divmod(run.bytes, sequences * len(run.indices))
    if rest:
        return Terms((), 0, 0, run.bytes)
    kept, entry = _kept(run.stores, one, document)
    return Terms(lead, kept, entry, one - kept * entry)


def _kept(stores: Sequence[StoreDoc], one: int, document: SizeDoc) -> tuple[int, int]:
    """Tokens that one layer keeps of one sequence, and the bytes of each; (0, 0) where that is not how it works."""
    growing = [store for store in stores if store.per_token]
    spans = {store.span for store in growing}
    if not growing or "compressed" in spans:
        return 0, 0
    entry = _entry_bytes(growing, document.kv_dtype)
    ctx = document.workload.ctx
    if len(growing) < len(stores):  # states beside attention: what attention takes is known, the rest is theirs
        return (ctx, entry) if entry and spans == {"full"} and ctx * entry <= one else (0, 0)
    if spans == {"full"}:
        return _whole_context(one, entry, ctx)
    if "encoder" in spans:
        return _with_encoder(growing, one, document)
    window = min((store.span_tokens or ctx) for store in growing)
    fits = len(spans) == 1 and entry and one % entry == 0 and one // entry >= min(window - 1, ctx)
    return (one // entry, entry) if fits and not is_split(document.engine.settings) else (0, 0)


def _whole_context(one: int, entry: int, ctx: int) -> tuple[int, int]:
    if one % ctx == 0:
        return ctx, one // ctx
    return (one // entry, entry) if entry and one % entry == 0 and one // entry > ctx else (0, 0)


def _with_encoder(stores: Sequence[StoreDoc], one: int, document: SizeDoc) -> tuple[int, int]:
    """Decoder tokens and encoder tokens in equal entries add up."""
    sizes = {_entry_bytes([store], document.kv_dtype) for store in stores}
    tokens = (document.workload.encoder_ctx or 0) + (document.workload.ctx if len(stores) > 1 else 0)
    entry = sizes.pop()
    return (tokens, entry) if not sizes and tokens * entry == one else (0, 0)


def _entry_bytes(stores: Sequence[StoreDoc], kv_dtype: FormatDoc) -> int:
    """Bytes of one token in all these stores; 0 where the format is an engine's own or K and V differ."""
    total = 0
    for store in stores:
        name = store.format or (kv_dtype.k if kv_dtype.k == kv_dtype.v else "")
        found = FORMATS.get(name)
        if found is None or store.elements % found.block_elements:
            return 0
        total += found.bytes(store.elements)
    return total
