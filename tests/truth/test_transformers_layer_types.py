"""Each layer's kind, beyond the defaults: fields set to other values, held against the real config classes."""

import json
from pathlib import Path

import pytest

from kvsize.architectures import geometry
from kvsize.geometry import Attention, Chunked, Encoder, Full, IndexKey, Recurrent, Sliding

FILE = Path(__file__).parents[2] / "validate" / "truth" / "transformers-5.23.0-layer-types.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()[1:]]

# What a layer of each type keeps: spans of its attention, index keys, and states.
KEEPS = {
    "full_attention": (Full,),
    "sliding_attention": (Sliding,),
    "chunked_attention": (Chunked,),
    "indexed_attention": (Full, IndexKey),
    "linear_attention": (Recurrent,),
    "conv": (Recurrent,),
    "hybrid": (Full, Recurrent),
    "hybrid_sliding": (Sliding, Recurrent),
    "mlp": (),
    "moe": (),
}


def kept(layer):
    """The same of a Layer, each kind once; what it keeps of an encoder is no part of its type."""
    found = []
    for store in layer.stores:
        if isinstance(store, Attention) and isinstance(store.span, Encoder):
            continue
        if isinstance(store, Attention):
            found.append(IndexKey if isinstance(store.entry, IndexKey) else type(store.span))
        else:
            found.append(Recurrent)
    return tuple(dict.fromkeys(found))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(f"{value}" for value in row["config"].values()))
def test_every_layer_is_of_the_type_that_the_class_says(row):
    assert [kept(layer) for layer in geometry(row["config"]).layers] == [KEEPS[kind] for kind in row["layer_types"]]


def test_every_row_is_there():
    assert len(ROWS) == 73
    assert len({row["config"]["model_type"] for row in ROWS}) == 46
