"""GGUF headers: what is read, what is kept, and what is refused, quickly and without using memory."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from gguffile import ARRAY, LLAMA, STRING, Raw, gguf, pair, tensor, text
from hubserver import COMMIT, Reply, serve

from kvsize import source
from kvsize.architectures import geometry
from kvsize.cli import run
from kvsize.errors import ConfigError, KvsizeError, SourceError, UsageError
from kvsize.gguf import as_config, load
from kvsize.gguf.header import CHUNK, MAX_KEPT, MAX_KEYS, MAX_STRINGS, MAX_TENSORS, TENSOR_TYPES, Header, header
from kvsize.shape import model_shape


def read(data: bytes) -> Header:
    return header(lambda start, count: data[start : start + count], len(data), "m.gguf")


# -- what is read ------------------------------------------------------------------------------------------------------

VALUES = {
    "a.u32": 7,
    "a.u64": 2**40,
    "a.i32": -3,
    "a.bool": True,
    "a.text": "Ö",
    "a.list": [1, 2, 3],
    "a.marks": [True, False],
    "a.empty": [],
    "a.u8": Raw(0, b"\xff"),
    "a.i8": Raw(1, b"\xff"),
    "a.u16": Raw(2, b"\xff\xff"),
    "a.i16": Raw(3, b"\xff\xff"),
    "a.i64": Raw(11, b"\xff" * 8),
    "a.f64": Raw(12, struct.pack("<d", 0.5)),
}
READ = {**VALUES, "a.u8": 255, "a.i8": -1, "a.u16": 65535, "a.i16": -1, "a.i64": -1, "a.f64": 0.5}


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_comes_back(version):
    found = read(gguf(VALUES, version=version))
    assert found.version == version
    assert found.metadata == READ
    assert not found.lengths


def test_vocabularies_are_counted_and_walked_past():
    tokens = [f"token {index}" for index in range(50_000)]
    found = read(gguf({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.5] * 50_000, "a.last": 1}))
    assert found.lengths == {"tokenizer.ggml.tokens": 50_000, "tokenizer.ggml.scores": 50_000}
    assert found.metadata == {"a.last": 1}


def test_arrays_of_every_layer_are_kept_whole():
    found = read(gguf({"a.long": list(range(MAX_KEPT)), "a.longer": [1] * (MAX_KEPT + 1)}))
    assert found.metadata == {"a.long": list(range(MAX_KEPT))}
    assert found.lengths == {"a.longer": MAX_KEPT + 1}


def test_long_texts_are_passed_over():
    found = read(gguf({"tokenizer.chat_template": "x" * 100_000, "a.last": "here"}))
    assert found.metadata == {"a.last": "here"}


def test_what_is_not_utf8_is_shown_as_such():
    assert read(gguf({"a.text": Raw(STRING, text(b"\xff\xfe"))})).metadata == {"a.text": "\ufffd\ufffd"}


def test_tensors_weigh_what_their_blocks_do():
    found = read(gguf({}, [tensor("norm", [256]), tensor("q", [256, 8], 12), tensor("exps", [256, 8, 2], 39)]))
    assert [(one.type, one.bytes) for one in found.tensors] == [("F32", 1024), ("Q4_K", 8 * 144), ("MXFP4", 16 * 136)]
    assert found.weight_bytes == 1024 + 1152 + 2176


@pytest.mark.parametrize(("code", "kind"), TENSOR_TYPES.items())
def test_each_tensor_type_has_blocks_of_whole_bits(code, kind):
    name, elements, size = kind
    assert read(gguf({}, [tensor("t", [elements], code)])).weight_bytes == size, name
    assert 1 <= 8 * size / elements <= 64


def test_reading_asks_for_little_and_grows():
    asked = []
    data = gguf({"tokenizer.ggml.tokens": ["x" * 40] * 60_000, "a.last": 1}) + b"\0" * (1 << 22)

    def reader(start: int, count: int) -> bytes:
        asked.append((start, count))
        return data[start : start + count]

    assert header(reader, len(data), "m.gguf").metadata == {"a.last": 1}
    assert [count for _, count in asked] == [CHUNK, 2 * CHUNK, 4 * CHUNK, 8 * CHUNK]
    assert max(start + count for start, count in asked) < len(data)


# -- what is refused ---------------------------------------------------------------------------------------------------

HUGE = 2**63
HOSTILE = {
    "empty": (b"", SourceError),
    "three bytes": (b"GGU", SourceError),
    "another magic": (b"GGML" + gguf(LLAMA)[4:], SourceError),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n" * 3, SourceError),
    "version 0": (gguf(LLAMA, version=0), SourceError),
    "version 1": (gguf(LLAMA, version=1), SourceError),
    "version 4": (gguf(LLAMA, version=4), SourceError),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + b"\0" * 64, SourceError),
    "no counts": (gguf(LLAMA)[:12], SourceError),
    "cut in a key": (gguf(LLAMA)[:40], SourceError),
    "cut in a value": (gguf(LLAMA)[:-2], SourceError),
    "more keys than bytes": (gguf(LLAMA, keys=200), SourceError),
    "too many keys": (gguf(LLAMA, keys=MAX_KEYS + 1), ConfigError),
    "2^63 keys": (gguf(LLAMA, keys=HUGE), ConfigError),
    "2^63 tensors": (gguf(LLAMA, tensor_count=HUGE), ConfigError),
    "too many tensors": (gguf(LLAMA, tensor_count=MAX_TENSORS + 1), ConfigError),
    "more tensors than bytes": (gguf(LLAMA, tensor_count=MAX_TENSORS), SourceError),
    "a key of 2^63 bytes": (gguf([struct.pack("<Q", HUGE)], keys=1) + b"\0" * 64, SourceError),
    "a key of 2,000 bytes": (gguf({"k" * 2000: 1}), ConfigError),
    "a key twice": (gguf([pair("a.b", 1), pair("a.b", 2)]), ConfigError),
    "a text of 2^63 bytes": (gguf({"a.b": Raw(STRING, struct.pack("<Q", HUGE))}), SourceError),
    "type 13": (gguf({"a.b": Raw(13, b"\0" * 16)}), ConfigError),
    "type 2^32 - 1": (gguf({"a.b": Raw(2**32 - 1, b"\0" * 16)}), ConfigError),
    "an array of arrays": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQ", ARRAY, 2) + b"\0" * 64)}), ConfigError),
    "an array of type 99": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQ", 99, 2) + b"\0" * 64)}), ConfigError),
    "2^63 numbers": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQ", 4, HUGE))}), SourceError),
    "2^63 texts": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQ", STRING, HUGE))}), ConfigError),
    "too many texts": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQ", STRING, MAX_STRINGS + 1))}), ConfigError),
    "texts beyond the end": (gguf({"a.b": Raw(ARRAY, struct.pack("<IQQQ", STRING, 2, HUGE, 0))}), SourceError),
    "a tensor of 2^63 axes": (gguf({}, [text("t") + struct.pack("<I", 2**31) + b"\0" * 32]), ConfigError),
    "a tensor of type 4": (gguf({}, [tensor("t", [32], 4)]), ConfigError),
    "a tensor of type 999": (gguf({}, [tensor("t", [32], 999)]), ConfigError),
    "half a block": (gguf({}, [tensor("t", [33], 8)]), ConfigError),
    "2^200 elements": (gguf({}, [tensor("t", [2**50] * 4)]), ConfigError),
    "half a tensor": (gguf({}, [tensor("t", [256])[:-1]]), SourceError),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name, tmp_path):
    data, error = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(error) as caught:
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert caught.value.exit_code in (3, 4)
    assert "m.gguf" in str(caught.value)


def test_the_most_that_is_kept_is_little():
    numbers = struct.pack("<IQ", 4, MAX_KEPT) + struct.pack(f"<{MAX_KEPT}I", *range(10**6, 10**6 + MAX_KEPT))
    data = gguf([pair(f"a.{index}", Raw(ARRAY, numbers)) for index in range(1000)])
    tracemalloc.start()
    found = read(data)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert len(found.metadata) + len(found.lengths) == 1000
    assert sum(map(len, found.metadata.values())) <= 1 << 17


def test_a_vocabulary_of_a_million_is_walked():
    data = gguf({"tokenizer.ggml.tokens": Raw(ARRAY, struct.pack("<IQ", STRING, 10**6) + text("token") * 10**6)})
    assert read(data).lengths == {"tokenizer.ggml.tokens": 10**6}


def outcome(data: bytes) -> int:
    """The exit code that a file comes to."""
    try:
        geometry(as_config(read(data)))
    except KvsizeError as error:
        return error.exit_code
    return 0


GOOD = gguf({**LLAMA, "tokenizer.ggml.tokens": ["a", "bc"]}, [tensor("blk.0.attn_k.weight", [256, 64], 8)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.integers(0, len(GOOD)),
)
def test_no_damage_gets_past_as_anything_but_a_refusal(edits, cut):
    data = bytearray(GOOD)
    for place, patch in edits:
        data[place : place + len(patch)] = patch
    assert outcome(bytes(data[: cut or len(data)])) in (0, 3, 4)


@given(data=st.binary(max_size=400))
def test_noise_behind_the_counts_is_refused(data):
    with pytest.raises(KvsizeError):
        as_config(read(gguf([data], [], keys=50)))


# -- as a model --------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_model(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf({**LLAMA, "tokenizer.ggml.tokens": ["a", "b"]}, [tensor("output.weight", [256, 32], 2)]))
    files = source.load(str(path))
    assert (files.origin, files.weight_bytes, files.location) == ("gguf", 32 * 8 * 18, str(path))
    assert files.config["llama.block_count"] == 4
    assert not any(key.startswith("tokenizer.") for key in files.config)
    model = geometry(files.config)
    assert (model.model_type, model.architecture, model.max_tokens) == ("llama", "LlamaForCausalLM", 8192)
    assert (model.vocab_size, model.hidden_size, model.num_attention_heads) == (2, 256, 8)


def test_nobody_smuggles_in_what_only_the_reader_says():
    assert as_config(read(gguf({**LLAMA, "kvsize.draft_tensors": True})))["kvsize.draft_tensors"] is False


def test_a_file_without_an_architecture_is_no_model():
    with pytest.raises(ConfigError, match=r"general\.architecture: missing"):
        as_config(read(gguf({"general.name": "x"})))


def part(folder: Path, number: int, count: int = 3, **keys: object) -> Path:
    path = folder / f"big-{number:05}-of-{count:05}.gguf"
    own = LLAMA if number == 1 else {}
    data = {**own, "split.no": number - 1, "split.count": count, **keys}
    path.write_bytes(gguf(data, [tensor(f"blk.{number}.w", [256], 0)]))
    return path


def test_a_split_model_weighs_all_its_parts(tmp_path):
    first, _, _ = (part(tmp_path, number) for number in (1, 2, 3))
    assert load(first).weight_bytes == 3 * 1024
    assert not geometry(load(first).config).notes


def test_a_file_without_tensors_weighs_nothing_known(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(LLAMA))
    assert load(path).weight_bytes is None


def test_the_widths_of_its_computing_are_those_of_the_file():
    shape = model_shape({**LLAMA, "llama.feed_forward_length": [64, 96], "kvsize.vocab_size": 9}, 4)
    assert (shape.hidden, shape.mlp, shape.vocab, shape.moe) == (256, 96, 9, False)
    experts = {"llama.expert_feed_forward_length": 32, "llama.expert_used_count": 2, "llama.expert_shared_count": 1}
    assert model_shape({**LLAMA, **experts}, 4).mlp == 96


WEIRD = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*LLAMA, "llama.nextn_predict_layers", "kvsize.vocab_size", "kvsize.missing_parts", "x"])


@given(edits=st.dictionaries(KEYS, WEIRD, max_size=4))
def test_metadata_from_anywhere_is_a_model_or_a_refusal(edits):
    """A JSON object with general.architecture in it is taken for a GGUF's metadata."""
    config = {**LLAMA, **edits}
    try:
        layers = len(geometry(config).layers)
    except ConfigError:
        return
    assert model_shape(config, layers).layers == layers


def test_a_missing_part_is_named(tmp_path):
    first = part(tmp_path, 1)
    part(tmp_path, 3)
    found = load(first)
    assert found.weight_bytes is None
    assert "big-00002-of-00003.gguf is not beside this file" in geometry(found.config).notes[0]


def test_only_the_first_part_is_a_model(tmp_path):
    with pytest.raises(ConfigError, match="not the first part") as caught:
        load(part(tmp_path, 2))
    assert "big-00001-of-00003.gguf" in str(caught.value.hint)


def test_a_renamed_part_is_refused(tmp_path):
    path = part(tmp_path, 1).rename(tmp_path / "mine.gguf")
    with pytest.raises(ConfigError, match="under another name"):
        load(path)


def test_a_count_of_parts_that_nobody_has_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({**LLAMA, "split.count": 60_000}))
    with pytest.raises(ConfigError, match="more parts"):
        load(path)


# -- on the Hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_file_on_the_hub_is_read_by_its_first_bytes(hub):
    data = gguf(LLAMA, [tensor("output.weight", [256, 4], 0)])
    hub.on("/org/name/resolve/main/sub/m-Q4.gguf", Reply(206, data, {"X-Repo-Commit": COMMIT}))
    files = source.load("org/name:sub/m-Q4.gguf")
    assert (files.id, files.origin, files.revision) == ("org/name:sub/m-Q4.gguf", "gguf", COMMIT)
    assert (files.weight_bytes, len(geometry(files.config).layers)) == (4096, 4)
    assert [request.headers["Range"] for request in hub.requests] == [f"bytes=0-{CHUNK - 1}"]


def test_the_other_parts_are_asked_for_at_the_same_commit(hub):
    data = gguf({**LLAMA, "split.no": 0, "split.count": 2}, [tensor("a", [256])])
    hub.on("/org/name/resolve/dev/m-00001-of-00002.gguf", Reply(206, data, {"X-Repo-Commit": COMMIT}))
    hub.on(f"/org/name/resolve/{COMMIT}/m-00002-of-00002.gguf", Reply(206, gguf({}, [tensor("b", [256])])))
    assert source.load("org/name@dev:m-00001-of-00002.gguf").weight_bytes == 2048


def test_a_file_that_is_not_there_is_not_found(hub):
    with pytest.raises(SourceError) as caught:
        source.load("org/name:m.gguf")
    assert caught.value.reason == "not_found"


@pytest.mark.parametrize("model", ["org/name:../m.gguf", "org/name:a//m.gguf", "or--g/name:m.gguf", "a/b/c:m.gguf"])
def test_names_that_lead_elsewhere_are_refused(model, hub):
    with pytest.raises(UsageError):
        source.load(model)
    assert not hub.requests


def test_two_revisions_are_one_too_many(hub):
    with pytest.raises(UsageError, match="two revisions"):
        source.load("org/name@v1:m.gguf", revision="v2")


def test_offline_it_cannot_be_read(hub):
    with pytest.raises(SourceError) as caught:
        source.load("org/name:m.gguf", offline=True)
    assert caught.value.reason == "offline"
    assert not hub.requests


def test_a_gguf_is_sized_for_llama_cpp_unless_another_engine_is_named(tmp_path, capsys):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(LLAMA))
    for arguments, engine in (([], "llama.cpp"), (["--engine", "transformers"], "transformers")):
        assert run([str(path), "--ctx", "4k", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["engine"]["name"] == engine
