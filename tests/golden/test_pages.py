"""What commands print, to the letter; `pytest --update-golden` writes the files anew.

A golden file alone would bless a wrong sum, so tests/golden/test_sums.py re-adds every printed column as well.
"""

from pathlib import Path

import pytest

from kvsize import engines
from kvsize.cli import COMMANDS, run

PAGES = Path(__file__).parent / "pages"

# name -> (columns, command line)
CASES = {
    "llama": (80, "meta-llama/Llama-3.1-8B --ctx 32k"),
    "llama-bytes": (80, "meta-llama/Llama-3.1-8B --ctx 32k --bytes"),
    "gemma3-batch": (80, "google/gemma-3-27b-it --ctx 128k --batch 4"),
    "gemma3-narrow": (60, "google/gemma-3-27b-it --ctx 128k --batch 4"),
    "gemma3-wide": (120, "google/gemma-3-27b-it --ctx 128k --batch 4"),
    "gemma3-static": (80, "google/gemma-3-27b-it --ctx 128k --cache static"),
    "gemma3-list": (80, "google/gemma-3-27b-it --ctx 512,1k,8k,32k,128k --batch 2"),
    "gemma3-list-narrow": (60, "google/gemma-3-27b-it --ctx 512,1k,8k,32k,128k --batch 2"),
    "gemma3-paged": (80, "google/gemma-3-27b-it --ctx 32k --cache paged --num-blocks 4096"),
    "llama-quantized": (80, "meta-llama/Llama-3.1-8B --ctx 32k --cache quantized"),
    "llama-offloaded": (80, "meta-llama/Llama-3.1-8B --ctx 32k --cache offloaded"),
    "llama-beams": (80, "meta-llama/Llama-3.1-8B --ctx 4k --num-beams 4 --batch 2"),
    "deepseek": (80, "deepseek-ai/DeepSeek-V3 --ctx 32k"),
    "deepseek-old": (80, "deepseek-ai/DeepSeek-V3 --ctx 32k --engine transformers@5.13.1"),
    "qwen3-next": (80, "Qwen/Qwen3-Next-80B-A3B-Instruct --ctx 32k"),
    "jamba": (80, "ai21labs/AI21-Jamba-1.5-Mini --ctx 32k"),
    "gemma3n": (80, "google/gemma-3n-E4B-it --ctx 32k"),
    "gpt-oss": (80, "openai/gpt-oss-120b --ctx 128k --kv-dtype bfloat16"),
    "falcon-h1": (80, "tiiuae/Falcon-H1-34B-Instruct"),
    "whisper": (80, "openai/whisper-large-v3 --ctx 448"),
    "whisper-encoder": (80, "openai/whisper-large-v3 --ctx 448 --encoder-ctx 1500"),
    "layers-gemma3": (80, "layers google/gemma-3-27b-it"),
    "layers-gemma3n": (80, "layers google/gemma-3n-E4B-it"),
    "layers-deepseek": (80, "layers deepseek-ai/DeepSeek-V3.2-Exp"),
    "layers-markdown": (80, "layers Qwen/Qwen3-Next-80B-A3B-Instruct --format markdown"),
    "layers-csv": (80, "layers google/gemma-3n-E4B-it --format csv"),
    "models": (80, "models --search gemma-3"),
    "models-markdown": (80, "models --search gemma-3 --format markdown"),
    "architectures": (80, "models --architectures --search qwen3"),
    "size-csv": (80, "google/gemma-3-27b-it --ctx 8k,128k --format csv"),
    "size-markdown": (80, "google/gemma-3-27b-it --ctx 8k,128k --batch 4 --format markdown"),
    "layers-json": (80, "layers google/gemma-3-27b-it --json"),
}


def compare(text, path, update):
    """What was printed against the file; a missing file fails unless it is being written."""
    assert text, "nothing was printed"
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path.name} does not exist: run pytest --update-golden and read what it wrote"
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_page(name, capsys, monkeypatch, pytestconfig):
    width, command = CASES[name]
    monkeypatch.setenv("COLUMNS", str(width))
    # Other engines' figures have tests of their own; here they would tie every page to all of them.
    monkeypatch.setattr(engines, "ENGINES", {"transformers": engines.ENGINES["transformers"]})
    monkeypatch.setattr("kvsize.elsewhere.ENGINES", engines.ENGINES)
    args = command.split()
    # A fixed release: which one is the newest has nothing to do with how it is shown.
    fixed = [] if args[0] in COMMANDS or "--engine" in args or "--help" in args else ["--engine", "transformers@5.23.0"]
    assert run([*args, *fixed]) == 0
    compare(capsys.readouterr().out, PAGES / f"{name}.txt", pytestconfig.getoption("update_golden"))


def test_every_file_has_a_case():
    assert {path.stem for path in PAGES.iterdir()} == set(CASES)
