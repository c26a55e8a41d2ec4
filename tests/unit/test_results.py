"""validate/RESULTS.md is what its files say, and nothing in them differs."""

import importlib.util
import json
from pathlib import Path

import pytest

VALIDATE = Path(__file__).parents[2] / "validate"
FILES = sorted((VALIDATE / "results").glob("*.jsonl"))

SEES = ("mllama_text_model",)  # its encoder's tokens are an image's, which a twin is not shown


def make_results():
    spec = importlib.util.spec_from_file_location("make_results", VALIDATE / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_files():
    assert make_results().page() == (VALIDATE / "RESULTS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_cache_is_as_kvsize_says_today(path):
    from kvsize.architectures import geometry
    from kvsize.real.measure import Run
    from kvsize.source import load
    from kvsize.validation import predict

    compared = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        for row in document["rows"]:
            if row["measured_bytes"] is None:
                continue
            model = geometry(load(row["model"]).config)
            reads = row["model_type"] not in SEES and any("Encoder" in repr(layer) for layer in model.layers)
            encoder = 50 if reads else None
            run = Run(row["cache"], row["ctx"], row["batch"], row["moment"], row["num_beams"])
            release = document["environment"]["transformers"]
            found = predict(model, run, document["settings"]["dtype"], release, encoder)
            assert found == row["measured_bytes"], row
            compared += 1
    assert compared >= 30
