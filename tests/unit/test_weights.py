"""Bytes of weights: which files count, folders on disk, the Hub's listing, and what is said when nobody knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsize import hub as hub_module
from kvsize import source
from kvsize.errors import SourceError, UsageError
from kvsize.source import ModelFiles, load
from kvsize.weights import Part, UnknownWeights, Weights, as_loaded, weights_of
from kvsize.weights.listing import choose

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from hubserver import COMMIT, Hub, Reply, serve
from test_safetensors import encoded, entry

GIB = 2**30
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "torch_dtype": "float32",
}

# -- which files count -------------------------------------------------------------------------------------------------


def shards(stem: str, whole: int, suffix: str = "safetensors", size: int = 10, first: int = 1) -> dict[str, int]:
    return {f"{stem}-{i:05}-of-{whole:05}.{suffix}": size for i in range(first, first + whole)}


INDEX = {"model.safetensors.index.json": 1}
REPOSITORIES = {
    "a single file": ({"model.safetensors": 10, "config.json": 1}, {"model.safetensors"}, 0),
    "shards": ({**shards("model", 3), **INDEX}, set(shards("model", 3)), 0),
    "shards counted from zero": (shards("model", 3, first=0), set(shards("model", 3, first=0)), 0),
    "the other way to name shards": (shards("model.safetensors", 2), set(shards("model.safetensors", 2)), 0),
    "six digits of the whole": (
        {"model-00001-of-000002.safetensors": 1, "model-00002-of-000002.safetensors": 1},
        {"model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"},
        0,
    ),
    "safetensors before .bin": (
        {**shards("model", 2), **shards("pytorch_model", 2, "bin"), **INDEX},
        set(shards("model", 2)),
        1,
    ),
    "a folder of the original": (
        {"model.safetensors": 10, "original/consolidated.00.pth": 10, "original/consolidated.01.pth": 10},
        {"model.safetensors"},
        1,
    ),
    "Mistral's second copy": (
        {**shards("model", 2), **INDEX, "consolidated.safetensors": 20},
        set(shards("model", 2)),
        1,
    ),
    "Mistral's copy alone": ({"consolidated.safetensors": 20}, {"consolidated.safetensors"}, 0),
    "a variant": (
        {"model.safetensors": 40, "model.fp16.safetensors": 20, "fp8/model.safetensors": 10},
        {"model.safetensors"},
        2,
    ),
    "a variant of shards": (
        {**shards("model", 2), "model-00001-of-00002.fp16.safetensors": 5, "model-00002-of-00002.fp16.safetensors": 5},
        set(shards("model", 2)),
        1,
    ),
    "onnx, gguf, tensorflow, flax": (
        {"model.safetensors": 10, "onnx/model.onnx": 1, "a.gguf": 1, "b.gguf": 1, "tf_model.h5": 1, "f.msgpack": 1},
        {"model.safetensors"},
        4,
    ),
    "an adapter beside a model": (
        {"model.safetensors": 10, "adapter_model.safetensors": 1},
        {"model.safetensors"},
        1,
    ),
    "a trainer's leavings": (
        {"pytorch_model.bin": 10, "training_args.bin": 1, "optimizer.bin": 99, "rng_state_0.bin": 1},
        {"pytorch_model.bin"},
        3,
    ),
    "draft layers in a file of their own": (
        {**shards("model", 2), **INDEX, "mtp.safetensors": 5},
        {*shards("model", 2), "mtp.safetensors"},
        0,
    ),
    "a single file beside shards: the larger": (
        {"model.safetensors": 19, **shards("model", 2), **INDEX},
        set(shards("model", 2)),
        1,
    ),
    "names of their own": (
        {"part_a.safetensors": 5, "part_b.safetensors": 6},
        {"part_a.safetensors", "part_b.safetensors"},
        0,
    ),
    "only .bin": (shards("pytorch_model", 2, "bin"), set(shards("pytorch_model", 2, "bin")), 0),
}


@pytest.mark.parametrize(("sizes", "loaded", "left_out"), REPOSITORIES.values(), ids=REPOSITORIES)
def test_what_an_engine_would_load(sizes: dict[str, int], loaded: set[str], left_out: int) -> None:
    choice = choose(sizes)
    assert (set(choice.files), choice.missing) == (loaded, None)
    assert choice.total_bytes == sum(sizes[name] for name in loaded)
    assert len(choice.left_out) == left_out, choice.left_out
    assert choice.kind == ("pickle" if next(iter(loaded)).endswith(".bin") else "safetensors")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({}, "no weights"),
        ({"README.md": 1}, "no weights"),
        ({"a.Q4_K_M.gguf": 5, "b.gguf": 5}, "GGUF files only: name one"),
        ({"adapter_model.safetensors": 5, "adapter_config.json": 1}, "an adapter only"),
        ({"original/consolidated.00.pth": 5}, "no safetensors or .bin files at its root"),
        ({"tf_model.h5": 5}, "only such as tf_model.h5"),
        (dict(list(shards("model", 5).items())[:3]), "3 of the 5 shards of model"),
    ],
)
def test_what_nobody_can_load(sizes: dict[str, int], words: str) -> None:
    choice = choose(sizes)
    assert choice.files == {}
    assert words in str(choice.missing)


def test_a_complete_set_beside_a_stray_shard() -> None:
    sizes = {**shards("model", 2), "model-00003-of-00003.safetensors": 5}
    assert set(choose(sizes).files) == set(shards("model", 2))


def test_what_is_left_out_is_said_by_folder_and_kind() -> None:
    sizes = {"model.safetensors": 1, "original/a.pth": GIB, "original/b.pth": GIB, **shards("pytorch_model", 3, "bin")}
    assert choose(sizes).left_out == ("original/: 2 files, 2.0 GiB", "pytorch_model-*.bin: 3 files, 0.0 GiB")


def test_an_index_decides_where_it_was_read() -> None:
    sizes = {"a.safetensors": 5, "sub/b.safetensors": 6, "c.safetensors": 7}
    assert choose(sizes, ["a.safetensors", "sub/b.safetensors", "a.safetensors"]).total_bytes == 11
    assert "1 of 2 files" in str(choose(sizes, ["a.safetensors", "gone.safetensors"]).missing)
    assert "names no files" in str(choose(sizes, []).missing)


# -- folders on disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    return path


def put(path: Path, name: str, **tensors: tuple[str, list[int], int]) -> None:
    entries, end = {}, 0
    for tensor, (dtype, shape, size) in tensors.items():
        entries[tensor] = entry(dtype, shape, end, end + size)
        end += size
    (path / name).write_bytes(encoded(entries, end))


def known(path: Path, **options: Any) -> Weights:
    found = weights_of(load(str(path)), **options)
    assert isinstance(found, Weights), found
    return found


def test_headers_of_a_folder(folder: Path) -> None:
    put(folder, "model.safetensors", a=("BF16", [4, 8], 64), b=("F32", [4], 16), c=("BF16", [2], 4))
    (folder / "pytorch_model.bin").write_bytes(b"x" * 99)
    found = known(folder)
    assert (found.total_bytes, found.evidence, found.files) == (84, "exact", 1)
    assert found.parts == (Part("BF16", 34, 68), Part("F32", 4, 16))
    assert [tensor.name for tensor in found.tensors] == ["a", "b", "c"]
    assert found.left_out == ("pytorch_model.bin: 1 file, 0.0 GiB",)
    assert known(folder / "config.json") == found


def test_an_index_whose_total_lies(folder: Path) -> None:
    put(folder, "model-00001-of-00002.safetensors", a=("BF16", [4], 8))
    put(folder, "model-00002-of-00002.safetensors", b=("BF16", [4], 8), a=("BF16", [4], 8))
    put(folder, "stray.safetensors", z=("BF16", [4], 8))
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for total in (0, 10**15, "many", 16.5, None):
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        found = known(folder)
        assert (found.total_bytes, found.files) == (16, 2)
        assert found.notes == ("1 tensors are there twice; counted once",)
        assert found.left_out == ("stray.safetensors: 1 file, 0.0 GiB",)


@pytest.mark.parametrize(
    "index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../x.bin"}}']
)
def test_an_index_that_is_none(folder: Path, index: str) -> None:
    put(folder, "model-00001-of-00001.safetensors", a=("BF16", [4], 8))
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(SourceError, match=r"weight_map|list of tensors"):
        weights_of(load(str(folder)))


def test_a_shard_that_is_not_there(folder: Path) -> None:
    put(folder, "model-00001-of-00002.safetensors", a=("BF16", [4], 8))
    found = weights_of(load(str(folder)))
    assert isinstance(found, UnknownWeights)
    assert "1 of the 2 shards" in found.reason
    assert "--weights" in found.hint


def test_a_download_that_is_cut_off(folder: Path) -> None:
    put(folder, "model.safetensors", a=("BF16", [400], 800))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(SourceError, match="not as long as its header says"):
        weights_of(load(str(folder)))


def test_git_lfs_pointers_give_sizes(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
    for name, size in (("model-00001-of-00002.safetensors", 4_000_000_000), ("model-00002-of-00002.safetensors", 77)):
        (folder / name).write_text(pointer.format("0" * 64, size))
    found = known(folder)
    assert (found.total_bytes, found.evidence, found.files) == (4_000_000_077, "derived", 2)
    assert "Git LFS" in found.source


def test_pickles_by_their_sizes(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1234)
    (folder / "sub").mkdir()
    (folder / "sub" / "extra.bin").write_bytes(b"x" * 5)
    found = known(folder)
    assert (found.total_bytes, found.evidence) == (1234, "derived")
    assert "headers included" in found.source
    assert found.left_out == ("sub/: 1 file, 0.0 GiB",)


def test_a_folder_without_weights(folder: Path) -> None:
    found = weights_of(load(str(folder)))
    assert isinstance(found, UnknownWeights)
    assert "holds no weights" in found.reason


# -- stated and recorded -----------------------------------------------------------------------------------------------


def test_stated_weights_come_first(folder: Path) -> None:
    put(folder, "model.safetensors", a=("BF16", [4], 8))
    assert known(folder, given=15 * GIB) == Weights(15 * GIB, "assumed", "as given")
    with pytest.raises(UsageError, match="positive"):
        weights_of(load(str(folder)), given=0)


def test_recorded_figures_cost_nothing() -> None:
    found = weights_of(load("google/gemma-2-9b", offline=True))
    assert isinstance(found, Weights)
    assert (found.total_bytes, found.evidence, found.parts[0].dtype) == (36_966_823_936, "derived", "F32")
    quantised = weights_of(load("deepseek-ai/DeepSeek-V3", offline=True))
    assert isinstance(quantised, Weights)
    assert quantised.parts == ()
    gguf = weights_of(ModelFiles("a.gguf", LLAMA, "gguf", None, "a.gguf", 14))
    assert isinstance(gguf, Weights)
    assert (gguf.total_bytes, gguf.evidence) == (14, "exact")


@pytest.mark.parametrize(("origin", "words"), [("stdin", "without weights"), ("gguf", "a part of the split GGUF file")])
def test_a_config_alone(origin: Any, words: str) -> None:
    found = weights_of(ModelFiles("x", LLAMA, origin, None, "x"))
    assert isinstance(found, UnknownWeights)
    assert words in found.reason


def test_offline_nothing_is_asked() -> None:
    for files in (ModelFiles("o/n", LLAMA, "catalogue"), ModelFiles("o/n", LLAMA, "hub", COMMIT)):
        found = weights_of(files, offline=True)
        assert isinstance(found, UnknownWeights)
        assert "offline" in found.reason


# -- the Hub -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(hub_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(source, "_catalogue_names", list)
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def api(repo: str = "org/name", revision: str = COMMIT) -> str:
    return f"/api/models/{repo}/revision/{revision}?blobs=true"


def listing(sizes: dict[str, int], elements: dict[str, int] | None = None) -> bytes:
    """What the Hub's API says, at its usual length: blob ids, LFS hashes and all."""
    siblings: list[dict[str, Any]] = []
    for name, size in sizes.items():
        large = {"lfs": {"sha256": "0" * 64, "size": size, "pointerSize": 135}} if size > 10_000 else {}
        siblings.append({"rfilename": name, "blobId": "0" * 40, "size": size, **large})
    answer: dict[str, Any] = {"id": "org/name", "sha": COMMIT, "tags": ["safetensors"] * 20, "siblings": siblings}
    answer["spaces"] = [f"someone/space-{number}" for number in range(100)]
    if elements is not None:
        answer["safetensors"] = {"parameters": elements, "total": sum(elements.values())}
    return json.dumps(answer).encode()


def asked(hub: Hub, sizes: dict[str, int], elements: dict[str, int] | None = None, **options: Any) -> Any:
    hub.config("org/name", LLAMA)
    hub.on(api(), Reply(body=listing(sizes, elements)))
    return weights_of(load("org/name"), **options)


def test_two_requests_for_163_shards(hub: Hub) -> None:
    """DeepSeek-V3: 688,586,727,753 bytes of files, 11,888,393 of them headers."""
    total, count = 688_586_727_753, 163
    names = [f"model-{i:05}-of-000163.safetensors" for i in range(1, count + 1)]
    sizes = dict.fromkeys(names, total // count)
    sizes[names[-1]] += total - sum(sizes.values())
    sizes |= {"config.json": 1725, "model.safetensors.index.json": 8_898_324, "tokenizer.json": 7_847_602}
    elements = {"BF16": 3_918_786_560, "F8_E4M3": 680_571_043_840, "F32": 41_555_600}
    found = asked(hub, sizes, elements)
    assert (found.total_bytes, found.evidence, found.files) == (688_574_839_360, "exact", 163)
    assert found.parts[0] == Part("F8_E4M3", 680_571_043_840, 680_571_043_840)
    assert len(hub.requests) == 2
    sent = len(json.dumps(LLAMA)) + len(listing(sizes, elements))
    assert sent < 60_000


def test_the_listing_is_of_the_configs_own_commit(hub: Hub) -> None:
    asked(hub, {"model.safetensors": 10_000})
    assert [request.path for request in hub.requests] == ["/org/name/resolve/main/config.json", api()]


def test_a_mirror_that_names_no_commit(hub: Hub) -> None:
    hub.on("/org/name/resolve/v%2F1/config.json", Reply(body=json.dumps(LLAMA).encode()))
    hub.on(api(revision="v%2F1"), Reply(body=listing({"model.safetensors": 10_000})))
    found = weights_of(load("org/name@v/1"))
    assert isinstance(found, Weights)
    assert (found.total_bytes, found.evidence) == (10_000, "derived")


@pytest.mark.parametrize(
    ("elements", "total", "evidence"),
    [
        ({"BF16": 500_000}, 1_000_000, "exact"),
        ({"BF16": 400_000, "F32": 50_000}, 1_000_000, "exact"),
        ({"U8": 2_000_000}, 1_010_000, "derived"),  # 4-bit elements counted one by one: twice the bytes
        ({"BF16": 400_000}, 1_010_000, "derived"),  # scales left out
        ({"BF16": 500_000, "X9": 1}, 1_010_000, "derived"),
        ({"BF16": "many"}, 1_010_000, "derived"),
        (None, 1_010_000, "derived"),
    ],
)
def test_elements_by_dtype_count_only_where_they_add_up(hub: Hub, elements: Any, total: int, evidence: str) -> None:
    hub.config("org/name", LLAMA)
    answer = json.loads(listing({"model.safetensors": 1_010_000}))
    answer["safetensors"] = {"parameters": elements}
    hub.on(api(), Reply(body=json.dumps(answer).encode()))
    found = weights_of(load("org/name"))
    assert isinstance(found, Weights)
    assert (found.total_bytes, found.evidence) == (total, evidence)
    assert bool(found.parts) == (evidence == "exact")


def test_pickles_are_counted_by_size_whatever_the_hub_says_of_safetensors(hub: Hub) -> None:
    found = asked(hub, {"pytorch_model.bin": 500}, {"BF16": 250})
    assert (found.total_bytes, found.evidence, found.parts) == (500, "derived", ())


@pytest.mark.parametrize(
    "body", [b"{}", b'{"siblings": 3}', b'{"siblings": [{"rfilename": "model.safetensors"}]}', b'{"siblings": [7]}']
)
def test_an_answer_that_is_no_listing(hub: Hub, body: bytes) -> None:
    hub.config("org/name", LLAMA)
    hub.on(api(), Reply(body=body))
    with pytest.raises(SourceError, match="the Hub's answer"):
        weights_of(load("org/name"))


def test_what_the_hub_refuses_keeps_its_words(hub: Hub) -> None:
    hub.config("org/name", LLAMA)
    hub.on(api(), Reply(403, b"{}", {"X-Error-Code": "GatedRepo"}))
    with pytest.raises(SourceError) as caught:
        weights_of(load("org/name"))
    assert caught.value.reason == "gated"


def test_a_repository_without_weights_is_unknown(hub: Hub) -> None:
    found = asked(hub, {"a.gguf": 5})
    assert isinstance(found, UnknownWeights)
    assert "GGUF files only" in found.reason


def test_a_listing_is_bounded(hub: Hub) -> None:
    hub.config("org/name", LLAMA)
    hub.on(api(), Reply(body=b" " * (9 << 20)))
    with pytest.raises(SourceError, match="the list of its files is larger than"):
        weights_of(load("org/name"))


def test_the_catalogues_model_without_a_figure_is_asked_for(hub: Hub) -> None:
    hub.on(api(revision="main"), Reply(body=listing({"model.safetensors": 7})))
    found = weights_of(ModelFiles("org/name", LLAMA, "catalogue", "2025-03-01"))
    assert isinstance(found, Weights)
    assert found.total_bytes == 7


# -- headers by ranges -------------------------------------------------------------------------------------------------


def part_of(file: bytes) -> Reply:
    return Reply(206, file[:400], {"Content-Range": f"bytes 0-399/{len(file)}"})


def test_exact_reads_headers_and_no_more(hub: Hub) -> None:
    one = encoded({"model.embed_tokens.weight": entry("BF16", [64, 8], 0, 1024)})
    two = encoded({"model.norm.weight": entry("F32", [8], 0, 32)})
    sizes = {"model-00001-of-00002.safetensors": len(one), "model-00002-of-00002.safetensors": len(two)}
    for name, file in zip(sizes, (one, two), strict=True):
        hub.on(f"/org/name/resolve/{COMMIT}/{name}", Reply(206, file))
    found = asked(hub, sizes, exact=True)
    assert (found.total_bytes, found.evidence, len(found.tensors)) == (1056, "exact", 2)
    assert len(hub.requests) == 4
    assert sorted(request.headers["Range"] for request in hub.requests[2:]) == sorted(
        f"bytes=0-{len(file) - 1}" for file in (one, two)
    )


def test_the_range_and_not_the_token_goes_to_storage(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    file = encoded({"a": entry("BF16", [4], 0, 8)})
    with serve() as storage:
        path = f"/org/name/resolve/{COMMIT}/model.safetensors"
        hub.on(path, Reply(302, headers={"Location": f"{storage.url}/blob"}))
        storage.on("/blob", Reply(206, file))
        found = asked(hub, {"model.safetensors": len(file)}, exact=True)
        assert found.total_bytes == 8
        assert storage.requests[0].headers["Range"] == f"bytes=0-{len(file) - 1}"
        assert "Authorization" not in storage.requests[0].headers
        assert hub.requests[-1].headers["Authorization"] == "Bearer hf_secret"


def test_a_server_that_ignores_ranges(hub: Hub) -> None:
    hub.on(f"/org/name/resolve/{COMMIT}/model.safetensors", Reply(200, bytes(100)))
    with pytest.raises(SourceError, match="whole files where a part was asked for"):
        asked(hub, {"model.safetensors": 100}, exact=True)


def test_a_part_that_is_longer_than_asked(hub: Hub) -> None:
    hub.on(f"/org/name/resolve/{COMMIT}/model.safetensors", Reply(206, bytes(101)))
    with pytest.raises(SourceError, match=r"model.safetensors is larger than 100 bytes"):
        asked(hub, {"model.safetensors": 100}, exact=True)


# -- as an engine loads them -------------------------------------------------------------------------------------------


def test_thirty_two_bits_loaded_as_sixteen(folder: Path) -> None:
    put(folder, "model.safetensors", a=("F32", [4, 8], 128), b=("BF16", [4], 8))
    found = known(folder)
    halved = as_loaded(found, LLAMA, "bfloat16")
    assert (halved.total_bytes, halved.parts) == (72, (Part("BF16", 32, 64), Part("BF16", 4, 8)))
    assert [tensor.bytes for tensor in halved.tensors] == [64, 8]
    assert "stored as F32" in halved.notes[0]
    assert as_loaded(found, LLAMA, "float32") == found
    assert as_loaded(found, LLAMA, "auto") == found
    assert as_loaded(found, {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "bfloat16") == found
    assert as_loaded(found, {"text_config": {"quantization_config": {}}}, "bfloat16") == found


def test_what_stays_in_thirty_two_bits() -> None:
    mixed = Weights(24, "exact", "x", (Part("BF16", 10, 20), Part("F32", 1, 4)))
    assert as_loaded(mixed, LLAMA, "float16").total_bytes == 24
    assert as_loaded(mixed, LLAMA, "float32").total_bytes == 44
    bare = Weights(24, "derived", "x")
    assert as_loaded(bare, LLAMA, "float32") == bare
