"""`kvsize validate` with the real transformers: predicted equals measured, and a fault is found."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvsize.architectures import geometry
from kvsize.cli import run as command
from kvsize.measure import Run, bench
from kvsize.source import load
from kvsize.validation import judge

pytestmark = pytest.mark.oracle

TINY = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 24,
    "vocab_size": 300,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# One of each kind of cache; the whole catalogue is `kvsize validate --all`.
KINDS = (
    "meta-llama/Llama-3.2-1B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "google/gemma-3-1b-it",
    "openai/whisper-tiny",
    "state-spaces/mamba-130m-hf",
    "tiiuae/falcon-7b",
)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.mark.parametrize("model", KINDS)
def test_real_caches_on_the_meta_device(model, capsys):
    assert command(["validate", model, "--device", "meta", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) >= 3
    assert {row["status"] for row in rows} == {"equal"}


def test_a_real_generate_with_beams_and_sequences(tiny, capsys):
    arguments = ["validate", tiny, "--device", "cpu", "--batch", "2", "--ctx", "10,24,40", "--json"]
    assert command([*arguments, "--generate"]) == 0
    plain = json.loads(capsys.readouterr().out)["rows"]
    assert len(plain) == 3 * 5
    assert command([*arguments, "--num-beams", "3"]) == 0
    beams = json.loads(capsys.readouterr().out)["rows"]
    held = {(row["cache"], row["ctx"]): row["measured_bytes"] for row in plain if row["moment"] == "generate"}
    token = 3 * 2 * 2 * 2 * 2 * 16 * 2  # beams, sequences, windowed layers, K and V, heads x head_dim, bytes
    for row in beams:
        lost = token if row["cache"] == "dynamic" and row["ctx"] >= TINY["sliding_window"] else 0
        assert row["measured_bytes"] == 3 * held[row["cache"], row["ctx"]] - lost


def test_a_deliberate_fault_is_found():
    twin = bench(TINY, "cpu")
    for fault in ({"sliding_window": 25}, {"num_key_value_heads": 4}, {"head_dim": 8}, {"num_hidden_layers": 2}):
        wrong = geometry({**TINY, **fault, "layer_types": TINY["layer_types"][: fault.get("num_hidden_layers", 4)]})
        assert judge(wrong, twin, Run("dynamic", 40), _release()).status == "different", fault
    assert judge(geometry(TINY), twin, Run("dynamic", 40), _release()).status == "equal"


def test_out_of_memory_is_said_with_what_was_needed():
    found = judge(geometry(TINY), bench(TINY, "cpu"), Run("static", 2**42), _release())
    assert (found.status, found.predicted) == ("out_of_memory", (2 * 2**42 + 2 * 24) * 128)


def test_twins_keep_what_decides_a_cache():
    twin = bench(load("Qwen/Qwen2.5-0.5B").config, "cpu")
    config = twin.subject.model.config
    assert (config.num_hidden_layers, config.num_key_value_heads, config.vocab_size) == (24, 2, 256)


def test_a_thin_mamba_keeps_the_width_of_its_states(tmp_path, capsys):
    path = tmp_path / "config.json"
    small = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "state_size": 8, "vocab_size": 300}
    path.write_text(json.dumps(small))
    assert command(["validate", str(path), "--device", "cpu", "--ctx", "20", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["measured_bytes"] for row in rows} == {2 * 128 * (8 + 4) * 2}  # cut to 32 it held a quarter of that


def _release():
    import transformers

    return transformers.__version__
