"""The JSON documents: their schemas pinned to the letter, and every kind of document valid under its own."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from kvsize.cli import run
from kvsize.cli.schema import json_schema
from kvsize.report import DOCUMENTS

SCHEMAS = Path(__file__).parent / "schemas"

# document -> command lines that print it
PRINTED = {
    "size": (
        "meta-llama/Llama-3.1-8B --ctx 32k",
        "google/gemma-3-27b-it --ctx 8k,128k --batch 4 --cache static",
        "google/gemma-3-27b-it --ctx 8k --cache paged --num-blocks 512",
        "meta-llama/Llama-3.1-8B --cache quantized",
        "openai/whisper-large-v3 --ctx 448 --encoder-ctx 1500 --num-beams 4",
        "ai21labs/AI21-Jamba-1.5-Mini --ctx 1k",
    ),
    "layers": ("layers google/gemma-3n-E4B-it", "layers deepseek-ai/DeepSeek-V3.2-Exp"),
    "models": ("models --search qwen3", "models --architectures", "models --search nothing-has-this-name"),
}

# What scripts may rely on. A key may be added; one of these may not go.
PROMISED = {
    "model": {"id", "origin", "revision", "model_type", "num_layers"},
    "engine": {"name", "version", "cache"},
    "workload": {"ctx", "batch", "encoder_ctx", "num_beams"},
    "kv_dtype": {"k", "v", "source"},
    "cache": {
        *("total_bytes", "logical_bytes", "after_prefill_bytes", "peak_bytes"),
        *("fixed_bytes", "marginal_bytes_per_token", "host_bytes"),
    },
}


def printed(command, capsys):
    assert run([*command.split(), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schema_is_pinned(name, pytestconfig):
    path = SCHEMAS / f"{name}.json"
    text = json.dumps(json_schema(name), indent=2, ensure_ascii=False) + "\n"
    if pytestconfig.getoption("update_golden"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), "run pytest --update-golden and read what it wrote"
    assert text == path.read_text(encoding="utf-8"), "a document changed its shape: is that a new schema version?"


def test_every_schema_file_has_a_document():
    assert {path.stem for path in SCHEMAS.iterdir()} == set(DOCUMENTS)


@pytest.mark.parametrize(("name", "command"), [(name, c) for name, commands in PRINTED.items() for c in commands])
def test_documents_are_valid_and_complete(name, command, capsys):
    document = printed(command, capsys)
    adapter = TypeAdapter(DOCUMENTS[name])
    parsed = adapter.validate_json(json.dumps(document), strict=True)
    assert adapter.dump_python(parsed, mode="json") == document, "a key that the schema does not know"
    assert next(iter(document)) == "schema"
    assert document["schema"] == f"kvsize.{name}/1"


def test_errors_are_valid_documents(capsys):
    assert run(["meta-llama/Llama-3.1-8B", "--engine", "abacus", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    parsed = TypeAdapter(DOCUMENTS["error"]).validate_json(captured.err, strict=True)
    assert (parsed.code, parsed.exit) == ("usage", 2)


@pytest.mark.parametrize("command", PRINTED["size"])
def test_promised_keys_are_there(command, capsys):
    document = printed(command, capsys)
    for part, keys in PROMISED.items():
        assert keys <= document[part].keys()
    assert {"indices", "kind", "bytes"} <= document["layers"][0].keys()
    assert document["rows"][0]["cache"] == document["cache"]
    assert isinstance(document["notes"], list)


def shape(value):
    """Keys all the way down, without the values and without an engine's own settings."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in ("settings", "pool")}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return None


def test_the_shape_does_not_depend_on_flags(capsys):
    shapes = [shape(printed(command, capsys)) for command in PRINTED["size"]]
    for one in shapes:
        for key in ("overheads", "formulas"):
            assert one.pop(key) in (
                [],
                [{"name": None, "bytes": None}],
                [dict.fromkeys(("formula", "ctx", "bytes", "misses"))],
            )
        assert one == shapes[0]


def test_one_row_a_context_in_the_order_asked(capsys):
    document = printed("google/gemma-3-27b-it --ctx 128k,1,8k --batch 2", capsys)
    assert [row["ctx"] for row in document["rows"]] == [131072, 1, 8192]
    assert {row["batch"] for row in document["rows"]} == {2}
    assert document["workload"]["ctx"] == 131072


def test_layers_cover_every_layer_once(capsys):
    document = printed("google/gemma-3n-E4B-it --ctx 8k", capsys)
    indices = sorted(index for run_ in document["layers"] for index in run_["indices"])
    assert indices == list(range(document["model"]["num_layers"]))
    parts = document["layers"] + document["overheads"]
    assert sum(part["bytes"] for part in parts) == document["cache"]["total_bytes"]
