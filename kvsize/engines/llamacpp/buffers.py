"""llama.cpp's compute buffer: not a cache, but it grows with one. An estimate with a known reach.

Compared with b11739's own figures on a CPU (validate/truth). With flash attention, and logits for a whole ubatch (the
library's default), dense models come out within 6 %, three in four within 1 %; without it within 7 %, but for windows.
Mixtures of experts and MLA take more where few logits are asked for, as llama-server does: some 30 to 230 MiB. T5 and
encoders are another matter, and CUDA and Metal were not measured. Sparse attention's indexer scores every cell with
each of its heads; several GPUs keep PIPELINE_COPIES of what a ubatch reads.
"""

from __future__ import annotations

FLOAT = 4
PIPELINE_COPIES = 4  # GGML_SCHED_MAX_COPIES, where layers lie on several GPUs. ggml/src/ggml-backend.cpp


def mask_bytes(ubatch: int, cells: int) -> int:
    """The attention mask, float16: one row for each token of a ubatch."""
    return 2 * ubatch * cells


def scores_bytes(ubatch: int, heads: int, cells: int) -> int:
    """Without flash attention: scores of each head, and a float32 mask."""
    return FLOAT * ubatch * (heads + 1) * cells


def compute_buffer_estimate(
    *,
    hidden: int,
    mlp: int,
    vocab: int,
    heads: int,
    cells: int,
    ubatch: int = 512,
    outputs: int | None = None,
    flash: bool = True,
    index_heads: int = 0,
    devices: int = 1,
) -> int:
    """Bytes of one device's compute buffer; on a CPU alone it holds 4 x ubatch x hidden more.

    `cells`: of one sequence, those of windows added. `outputs`: rows of logits (None: of a whole ubatch).
    """
    rows = ubatch if outputs is None else outputs
    widest = max(
        FLOAT * ubatch * (3 * mlp + 4 * hidden),
        FLOAT * rows * vocab + FLOAT * ubatch * 4 * hidden,
    )
    copies = PIPELINE_COPIES if devices > 1 else 1
    inputs = copies * mask_bytes(ubatch, cells) + (copies - 1) * FLOAT * ubatch * hidden
    if not flash:
        widest = max(widest, FLOAT * ubatch * 4 * hidden + scores_bytes(ubatch, heads, cells))
    return widest + FLOAT * ubatch * index_heads * cells + inputs
