"""Where a config comes from: forms, order, catalogue, files, and the Hub through a server on loopback."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize import hub as hub_module
from kvsize import jsonfile, regularfile, source
from kvsize.errors import ConfigError, KvsizeError, SourceError, UsageError
from kvsize.source import ModelFiles, catalogue, load

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite has no packages

from hubserver import COMMIT, Hub, Reply, serve

TOKEN = "hf_SECRETsecretSECRETsecret"
CONFIG = {"model_type": "llama", "num_hidden_layers": 2}
MAIN = "/org/name/resolve/main/config.json"
ENVIRONMENT = [
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HF_OIDC_RESOURCE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an empty current folder, a catalogue of three models, no network."""
    import huggingface_hub.constants

    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    here, home, models = tmp_path / "here", tmp_path / "home", tmp_path / "models"
    for folder in (here, home, models):
        folder.mkdir()
    for model, revision in (("Org/Known-7B", COMMIT), ("org/other-7b", None), ("gpt2", None)):
        entry = {"id": model, "origin": "…", "revision": revision, "date": "2025-03-01", "confidence": "high"}
        entry |= {"weight_bytes": 14, "config": CONFIG | {"_name": model}}
        (models / f"{model.replace('/', '--')}.json").write_text(json.dumps(entry))
    (models / "aliases.json").write_text(json.dumps({"mirror/Known": "Org/Known-7B"}))
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nothing listens there
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(source, "catalogue_dir", lambda: models)
    monkeypatch.setattr(hub_module, "PAUSE_SECONDS", 0.0)
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def other_host() -> Iterator[Hub]:
    with serve() as server:
        yield server


def refused(model: str = "org/name", **options: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        load(model, **options)
    assert caught.value.exit_code == 3
    assert caught.value.hint, "each refusal names a next step"
    return caught.value


def put_in_cache(home: Path, repo: str, config: object, *, ref: str | None = "main", commit: str = COMMIT) -> Path:
    folder = home / f"models--{repo.replace('/', '--')}"
    path = folder / "snapshots" / commit / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    if ref is not None:
        (folder / "refs" / ref).parent.mkdir(parents=True)
        (folder / "refs" / ref).write_text(commit)
    return path


# ---- forms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("gpt2", ("gpt2", None)),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("org/na.me_x-1", ("org/na.me_x-1", None)),
        ("https://huggingface.co/org/name", ("org/name", None)),
        ("https://huggingface.co/org/name/", ("org/name", None)),
        ("http://hf.co/gpt2", ("gpt2", None)),
        ("huggingface.co/org/name", ("org/name", None)),
        ("huggingface.co/org/name/blob/main/config.json", ("org/name", "main")),
        ("https://huggingface.co/gpt2/tree/v2", ("gpt2", "v2")),
        ("https://huggingface.co/org/name/tree/v2", ("org/name", "v2")),
        ("https://huggingface.co/org/name/blob/abc123/config.json", ("org/name", "abc123")),
        ("https://huggingface.co/org/name/resolve/main/config.json?download=true#x", ("org/name", "main")),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", ("org/name", "refs/pr/3")),
        ("https://huggingface.co/org/name/tree/refs/pr/3", ("org/name", "refs/pr/3")),
        ("https://me:secret@huggingface.co/org/name", ("org/name", None)),
        ("http://127.0.0.1:9/org/name/raw/main/config.json", ("org/name", "main")),
    ],
)
def test_forms_of_an_id(text: str, expected: tuple[str, str | None]) -> None:
    assert source.parse_id(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "org/", "/name", "a/b/c", "org/na me", "org/../x", "..", "org/na--me", "org/name.git", "-name",
        "org/.x", "org/name?x=1", "org/name#x", "org/na%2fme", "org/name\n", "org\x00/name", "örg/name",
        "x" * 97,
        "org/name@", "org/name@../x", "org/name@a b", "org/name@-x", "org/name@a//b", "org/name@a\n",
        "org/name@x/", "org/name@\udc80",
        "https://huggingface.co", "https://huggingface.co/datasets/org/name",
        "https://huggingface.co/org/name/tree",
        "https://huggingface.co/org/name/discussions/1", "https://huggingface.co/org/%2e%2e/tree/main",
        "https://huggingface.co/org/name/tree/main/sub", "https://huggingface.co/org/name/blob/main/README.md",
        "ftp://huggingface.co/org/name", "file:///etc/passwd", "https://[::1", "hf://org/name",
    ],
)  # fmt: skip
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(UsageError):
        source.parse_id(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/org/name",
        "https://huggingface.co@evil.example/org/name",
        "https://huggingface.co.evil.example/org/name",
        "https://huggingface.co\\@evil.example/org/name",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_another_host_is_never_fetched(url: str, hub: Hub) -> None:
    with pytest.raises(UsageError, match="not a URL of the Hub"):
        load(url)
    assert hub.requests == []


def test_a_login_in_a_url_is_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        load("https://me:s3cret@evil.example/org/name")
    assert "s3cret" not in str(caught.value)


def test_a_url_with_a_gguf_says_so() -> None:
    with pytest.raises(UsageError, match=r"org/name@main:model-Q4\.gguf"):
        load("https://huggingface.co/org/name/blob/main/model-Q4.gguf")


def test_an_endpoint_with_a_path_and_its_urls(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/api/hf/")
    hub.on("/api/hf" + MAIN, Reply(body=b"{}"))
    assert load("org/name").location == f"{hub.url}/api/hf{MAIN}"
    assert load(f"{hub.url}/api/hf/org/name").config == {}


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://x", "http://me:pw@host", "http://host?x=1", "http://"])
def test_an_endpoint_that_means_nothing(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(UsageError, match="HF_ENDPOINT") as caught:
        load("org/name")
    assert "pw" not in str(caught.value)


def test_revisions_that_contradict() -> None:
    with pytest.raises(UsageError, match="two revisions"):
        load("org/name@a", revision="b")
    with pytest.raises(UsageError, match="not a branch"):
        load("org/name", revision="../b")
    with pytest.raises(UsageError, match="only a Hub id"):
        load("-", revision="b")
    with pytest.raises(UsageError, match="contradict"):
        load("org/name", refresh=True, offline=True)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"(https?://)?[a-z.]{1,12}/[\w@%./-]{0,30}", fullmatch=True))
def test_any_text_is_a_model_or_an_error_of_ours(text: str) -> None:
    if text != "-":
        with suppress(KvsizeError):
            source.parse_id(text)


# ---- files


def test_a_folder_and_a_file(world: Path) -> None:
    (world / "here" / "model").mkdir()
    path = world / "here" / "model" / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert load("model") == ModelFiles("model", CONFIG, "file", None, "model/config.json")
    assert load(str(path)) == ModelFiles(str(path), CONFIG, "file", None, str(path))
    path.rename(path.with_name("other.json"))
    assert load("model/other.json").config == CONFIG


def test_a_path_wins_over_an_id_of_the_same_look(world: Path) -> None:
    (world / "here" / "gpt2").mkdir()
    (world / "here" / "gpt2" / "config.json").write_text("{}")
    assert load("gpt2").origin == "file"
    (world / "here" / "gpt2" / "config.json").unlink()
    assert "http://127.0.0.1:9/gpt2" in str(refused("gpt2").hint)


@pytest.mark.parametrize(
    "text",
    ["./x", "../x", "/no/such", "~/no-such", "~nobody-here/x", "x/y/z", "x.json", "x.gguf", "x/", "C:\\x"],
)
def test_a_path_that_is_not_there(text: str) -> None:
    error = refused(text)
    assert error.reason == "not_found"
    assert str(error).startswith(f"{text}: no such file or folder")


@pytest.mark.parametrize(
    ("file", "hint"),
    [("m.gguf", "GGUF"), ("adapter_config.json", "adapter"), ("snapshots", "cache"), ("README.md", "Hub's")],
)
def test_a_folder_without_config(world: Path, file: str, hint: str) -> None:
    (world / "here" / file).touch()
    error = refused(".")
    assert error.reason == "not_found"
    assert hint in str(error.hint)


def test_gguf_is_read_as_one(world: Path) -> None:
    (world / "here" / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match=r"m\.gguf: the header is cut off"):
        load("m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_does_not_hang(world: Path) -> None:
    os.mkfifo(world / "here" / "config.json")
    run = python("from kvsize.source import load\ntry: load('.')\nexcept Exception as e: print(e.reason, e)")
    assert run.stdout.startswith("broken config.json: not a regular file")  # and python() gives up after a while


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
def test_a_device_is_not_read() -> None:
    assert refused("/dev/zero").reason == "broken"


def test_a_folder_named_config_json_and_a_dangling_link(world: Path) -> None:
    (world / "here" / "config.json").mkdir()
    assert "cannot be read: Is a directory" in str(load_error("."))
    (world / "here" / "config.json").rmdir()
    (world / "here" / "config.json").symlink_to("nowhere")
    assert "cannot be read: No such file" in str(load_error("."))


def load_error(model: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        load(model)
    assert caught.value.reason == "broken"
    return caught.value


def test_permission_denied(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "here" / "config.json").write_text("{}")

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(regularfile.os, "open", deny)  # chmod would not stop root
    assert str(refused("config.json")) == "config.json: cannot be read: Permission denied\nCheck who may read it."


def test_a_file_is_read_no_further_than_the_bound(world: Path) -> None:
    path = world / "here" / "big.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it whole would take the machine down
    assert refused("big.json").reason == "too_large"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    pipe(json.dumps(CONFIG).encode())
    assert load("-") == ModelFiles("stdin", CONFIG, "stdin", None, "stdin")
    pipe(b"")
    assert str(refused("-")).startswith("stdin: empty")
    pipe(b" " * (jsonfile.MAX_BYTES + 1))
    assert refused("-").reason == "too_large"
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-").reason == "broken"


# ---- JSON


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": Infinity}', {"a": float("inf")}),
        (b'{"a": 1, "a": 1}', {"a": 1}),
        (b'{"a": NaN, "a": NaN, "b": 2}', None),
        (b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        (b'{"a": ' + b"[" * 98 + b"]" * 98 + b"}", None),
    ],
)
def test_json_that_passes(data: bytes, expected: dict[str, Any] | None) -> None:
    parsed = jsonfile.parse(data, "x")
    assert expected is None or parsed == expected


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", "not_json", "empty"),
        (b"  \n", "not_json", "empty"),
        (b"[1]", "not_json", "not an object (got list)"),
        (b"null", "not_json", "not an object (got NoneType)"),
        (b'{"a": 1', "not_json", "line 1 column 8"),
        (b'{"a": 1} x', "not_json", "Extra data"),
        (b"\xff\xfe{\x00}\x00", "not_json", "not UTF-8 text (byte 0)"),
        (b'{"a": "\xff"}', "not_json", "not UTF-8 text (byte 7)"),
        (b"<!DOCTYPE html><html>", "not_json", "login page or captive portal"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "not_json", "git lfs pull"),
        (b'{"a": 1, "a": 2}', "config", "'a' stands there twice, with different values (got 1 and 2)"),
        (b'{"a": 1, "a": true}', "config", "got 1 and True"),
        (b'{"x": {"k": 1, "k": 1.0}}', "config", "'k'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "config", "4300"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "config", "nested"),
        (b'{"a":' * 99_999, "config", "nested"),
        (b"[" * 99_999, "config", "nested"),
    ],
)
def test_json_that_does_not(data: bytes, error: str, words: str) -> None:
    with pytest.raises(KvsizeError) as caught:
        jsonfile.parse(data, "x.json")
    assert words in str(caught.value)
    assert str(caught.value).startswith("x.json: ")
    assert error == (caught.value.reason if isinstance(caught.value, SourceError) else caught.value.code)
    assert caught.value.exit_code == (4 if isinstance(caught.value, ConfigError) else 3)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123eE.-NaInfity\\u ', max_size=60).map(str.encode))
def test_any_bytes_are_an_object_or_an_error_of_ours(data: bytes) -> None:
    with suppress(KvsizeError):
        assert isinstance(jsonfile.parse(data, "x"), dict)


# ---- catalogue


def test_the_catalogue_answers_without_network() -> None:
    found = load("Org/Known-7B")
    assert (found.id, found.origin, found.revision, found.weight_bytes) == (
        "Org/Known-7B",
        "catalogue",
        COMMIT,
        14,
    )
    assert found.config["_name"] == "Org/Known-7B"
    assert Path(found.location).name == "Org--Known-7B.json"
    assert load("org/KNOWN-7b").id == "Org/Known-7B"
    assert load("gpt2").revision == "2025-03-01"
    assert load("Mirror/known").id == "Mirror/known"
    assert load("mirror/Known").config == found.config
    assert load("Org/Known-7B", offline=True) == found
    assert catalogue() == ("Org/Known-7B", "gpt2", "org/other-7b")


def test_a_revision_is_answered_only_if_it_is_the_recorded_one() -> None:
    assert load("Org/Known-7B", revision=COMMIT).origin == "catalogue"
    assert refused("Org/Known-7B", revision="main").reason == "unreachable"
    assert refused("gpt2@2025-03-01").reason == "unreachable", "a date is no revision"
    assert refused("Org/Known-7B", refresh=True).reason == "unreachable"


def test_no_catalogue_at_all(monkeypatch: pytest.MonkeyPatch, world: Path) -> None:
    monkeypatch.setattr(source, "catalogue_dir", lambda: world / "none")
    assert catalogue() == ()
    assert refused("gpt2", offline=True).reason == "offline"


def test_the_name_of_the_alias_file_is_no_model() -> None:
    assert refused("aliases", offline=True).reason == "offline"


def test_where_the_catalogue_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    assert source.catalogue_dir() == Path(source.__file__).parents[1] / "configs" / "models"
    package = tmp_path / "site" / "kvsize"
    (package / "configs" / "models").mkdir(parents=True)
    monkeypatch.setattr(source, "__file__", str(package / "source.py"))
    assert source.catalogue_dir() == package / "configs" / "models"


def test_looking_up_opens_two_small_files_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(source, "read_file", lambda path: opened.append(path.name) or jsonfile.read_file(path))
    load("mirror/known")
    assert opened == ["aliases.json", "Org--Known-7B.json"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=True)


def test_a_catalogue_model_loads_no_network_library(world: Path) -> None:
    folder = f"pathlib.Path({str(world / 'models')!r})"
    start = f"import pathlib, sys\nfrom kvsize import source\nsource.catalogue_dir = lambda: {folder}\n"
    names = ("huggingface_hub", "urllib.request", "ssl", "difflib", "kvsize.hub")
    heavy = f"\nprint([name for name in {names} if name in sys.modules])"
    assert python(f"{start}source.load('gpt2'){heavy}").stdout == "[]\n"
    # and the check can fail:
    asked = python(f"{start}\ntry: source.load('org/none')\nexcept Exception: pass{heavy}")
    assert "huggingface_hub" in asked.stdout


def test_a_typo_is_pointed_out_offline() -> None:
    error = refused("org/knwon-7b", offline=True)
    assert error.reason == "offline"
    assert "Did you mean Org/Known-7B" in str(error.hint)
    assert "Did you mean org/other-7b" in str(refused("other-7B", offline=True))
    assert "Did you mean" not in str(refused("quite/different", offline=True))


@pytest.mark.parametrize(
    ("name", "value"), [("HF_HUB_OFFLINE", "1"), ("HF_HUB_OFFLINE", "yes"), ("TRANSFORMERS_OFFLINE", "on")]
)
def test_offline_by_environment(monkeypatch: pytest.MonkeyPatch, hub: Hub, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    error = refused("org/name")
    assert error.reason == "offline"
    assert name in str(error)
    assert load("gpt2").origin == "catalogue"
    assert refused("gpt2", refresh=True).reason == "offline"
    assert "drop them" in str(refused("gpt2@v1"))
    assert hub.requests == []


# ---- the Hugging Face cache


def test_the_cache_comes_first(world: Path) -> None:
    path = put_in_cache(world / "home" / "hub", "gpt2", {"from": "cache"})
    found = load("gpt2")
    assert found == ModelFiles("gpt2", {"from": "cache"}, "cache", COMMIT, str(path), 14)
    assert load("gpt2", revision="main").weight_bytes is None
    assert load(f"gpt2@{COMMIT}", offline=True).origin == "cache"
    assert refused("gpt2", refresh=True).reason == "unreachable"
    assert refused("gpt2@v2").reason == "unreachable"


def test_a_pull_request_in_the_cache(world: Path) -> None:
    put_in_cache(world / "home" / "hub", "org/name", CONFIG, ref="refs/pr/1")
    assert load("org/name@refs/pr/1").revision == COMMIT
    assert refused("org/name", offline=True).reason == "offline"


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_where_the_cache_lies(world: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Asked of huggingface_hub itself: its own answer in a fresh process is the judge."""
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", str(world / "elsewhere"))
    monkeypatch.setenv(name, str(world / "elsewhere" / "x"))
    said = python("from huggingface_hub import constants\nprint(constants.HF_HUB_CACHE)").stdout.strip()
    assert str(source._cache_dir()) == said


@pytest.mark.parametrize("ref", ["../../../../here", "", "main\x00", "zz" * 20])
def test_a_ref_that_was_tampered_with(world: Path, ref: str) -> None:
    put_in_cache(world / "home" / "hub", "org/name", CONFIG)
    (world / "here" / "config.json").write_text("{}")
    (world / "home" / "hub" / "models--org--name" / "refs" / "main").write_text(ref)
    assert refused("org/name", offline=True).reason == "offline"


def test_a_damaged_file_in_the_cache(world: Path) -> None:
    put_in_cache(world / "home" / "hub", "org/name", '{"cut')
    error = refused("org/name")
    assert error.reason == "not_json"
    assert "--refresh" in str(error)


# ---- the Hub


def test_one_get_for_a_config(hub: Hub, world: Path) -> None:
    hub.config("org/name", CONFIG)
    found = load("org/name")
    assert found == ModelFiles("org/name", CONFIG, "hub", COMMIT, hub.url + MAIN)
    assert [request.path for request in hub.requests] == [MAIN]
    headers = hub.requests[0].headers
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers
    assert list((world / "home").iterdir()) == [], "nothing is stored"


def test_revision_and_refresh_ask_the_hub(hub: Hub, world: Path) -> None:
    put_in_cache(world / "home" / "hub", "gpt2", {"from": "cache"})
    hub.config("gpt2", {"from": "hub"})
    hub.config("gpt2", {"from": "pr"}, revision="refs%2Fpr%2F1")
    assert (load("gpt2", refresh=True).config, load("gpt2", refresh=True).weight_bytes) == (
        {"from": "hub"},
        14,
    )
    assert load("gpt2@refs/pr/1").config == {"from": "pr"}


def test_the_token_goes_to_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    hub.config("org/name", CONFIG)
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    load("org/name")
    assert hub.requests[-1].headers["Authorization"] == f"Bearer {TOKEN}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    load("org/name")
    assert "Authorization" not in hub.requests[-1].headers


def test_the_stored_token(hub: Hub, world: Path) -> None:
    hub.config("org/name", CONFIG)
    (world / "home" / "token").write_text(TOKEN)
    load("org/name")
    assert hub.requests[-1].headers["Authorization"] == f"Bearer {TOKEN}"
    (world / "home" / "token").unlink()
    (world / "home" / "token").mkdir()
    assert refused().reason == "unauthorized"


@pytest.mark.parametrize("token", ["hf_ab\r\nX-Evil: 1", "hf_äöü", "hf a b"])
def test_a_token_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    error = refused()
    assert error.reason == "unauthorized"
    assert token not in str(error)
    assert hub.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_token_never_crosses_hosts(hub: Hub, other_host: Hub, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.on(
        MAIN,
        Reply(302, headers={"Location": f"http://{host}:{other_host.port}/blob?sig=1", "X-Repo-Commit": COMMIT}),
    )
    other_host.on("/blob?sig=1", Reply(body=b'{"a": 1}'))
    found = load("org/name")
    assert (found.config, found.revision, found.location) == ({"a": 1}, COMMIT, hub.url + MAIN)
    assert "Authorization" in hub.requests[0].headers
    assert [("Authorization" in request.headers, request.path) for request in other_host.requests] == [
        (False, "/blob?sig=1")
    ]


def test_another_name_of_the_same_server_is_another_host(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.on(MAIN, Reply(302, headers={"Location": f"http://localhost:{hub.port}/blob"}))
    hub.on("/blob", Reply(body=b"{}"))
    load("org/name")
    assert ["Authorization" in request.headers for request in hub.requests] == [True, False]


def test_the_resolve_cache_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = f"/api/resolve-cache/models/org/name/{COMMIT}/config.json"
    hub.on(MAIN, Reply(307, headers={"Location": f"{path}?x=%22a%22", "X-Repo-Commit": COMMIT}))
    hub.on(f"{path}?x=%22a%22", Reply(body=b"{}", headers={"X-Repo-Commit": "f" * 40}))
    assert (load("org/name").revision, load("org/name").location) == (COMMIT, hub.url + MAIN)
    assert all("Authorization" in request.headers for request in hub.requests)


def test_a_renamed_repository(hub: Hub) -> None:
    hub.on("/old/name/resolve/main/config.json", Reply(307, headers={"Location": MAIN}))
    hub.config("org/name", CONFIG)
    found = load("old/name")
    assert (found.id, found.location, found.revision) == ("old/name", hub.url + MAIN, COMMIT)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://x/y", "http://[::1", "http://x:y/", "data:,{}"])
def test_redirects_that_are_not_followed(hub: Hub, location: str) -> None:
    hub.on(MAIN, Reply(302, headers={"Location": location}))
    assert refused().reason in {"broken", "unreachable"}
    assert len(hub.requests) == 1


def test_https_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = hub_module._Ask("https://hub.example", "org/name", "main")
    with pytest.raises(SourceError, match="not safe"):
        hub_module._redirected(ask.url, "http://hub.example/x", ask)


def test_redirects_without_end_or_target(hub: Hub) -> None:
    hub.on(MAIN, Reply(302, headers={"Location": MAIN}))
    assert "without end" in str(refused())
    assert len(hub.requests) == hub_module.MAX_REDIRECTS + 1
    hub.on(MAIN, Reply(302))
    assert refused().reason == "broken"


@pytest.mark.parametrize(
    ("refusal", "reason", "words"),
    [
        ((401, "GatedRepo"), "gated", "Accept its terms at"),
        ((403, "GatedRepo"), "gated", "Accept its terms at"),
        ((401, "RepoNotFound"), "not_found", "no such repository"),
        ((404, "RepoNotFound"), "not_found", "no such repository"),
        ((404, "RevisionNotFound"), "not_found", "no revision 'main'"),
        ((404, "EntryNotFound"), "not_found", "GGUF-only and adapter"),
        ((401, ""), "unauthorized", "or it is private"),
        ((403, ""), "unauthorized", "access denied"),
        ((404, ""), "not_found", "HF_ENDPOINT"),
        ((407, ""), "unreachable", "proxy wants a login"),
        ((429, ""), "rate_limited", "too many requests (got HTTP 429)"),
        ((400, ""), "broken", "refuses the request"),
        ((206, ""), "broken", "HTTP 206"),
        ((304, ""), "broken", "HTTP 304"),
        ((418, "Unheard{of}"), "broken", "HTTP 418"),
    ],
)
def test_each_refusal_has_its_own_words(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, refusal: tuple[int, str], reason: str, words: str
) -> None:
    hub.refuse("org/name", *refusal)
    error = refused()
    assert error.reason == reason
    assert words in str(error)
    assert str(error).startswith(f"{hub.url}/org/name: ")
    assert len(hub.requests) == 1, "no second try"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TOKEN not in repr(refused()) + str(refused())


def test_logging_in_is_the_hint_only_without_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refuse("org/name", 401)
    assert "hf auth login" in str(refused())
    assert "token" not in refused().what
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "Your token was sent" in str(refused())
    assert "token is not valid" in refused().what


def test_nothing_that_the_server_says_is_echoed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.refuse("org/name", 403, TOKEN, X_Error_Message=f"bad token {TOKEN}\x1b[2J")
    error = refused()
    assert TOKEN not in str(error)
    assert "\x1b" not in str(error)


def test_a_typo_is_pointed_out_online(hub: Hub) -> None:
    assert "Did you mean Org/Known-7B?" in str(refused("org/known-7"))


def test_a_typo_is_pointed_out_where_no_hub_is_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "Did you mean Org/Known-7B?" in str(refused("org/known-7"))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Retry_After": "120"}, "retry after 120 seconds"),
        ({"RateLimit": '"api";r=0;t=55'}, "retry after 55 seconds"),
    ],
)
def test_when_to_come_back(hub: Hub, headers: dict[str, str], words: str) -> None:
    hub.refuse("org/name", 429, **headers)
    assert words in str(refused())


def test_one_retry_after_a_server_error(hub: Hub) -> None:
    hub.on(MAIN, Reply(503), Reply(body=b"{}"))
    assert load("org/name").config == {}
    hub.requests.clear()
    hub.on(MAIN, Reply(500))
    error = refused()
    assert (error.reason, len(hub.requests)) == ("server", 2)


def test_one_retry_after_hanging_up(hub: Hub) -> None:
    hub.on(MAIN, Reply(hang_up=True), Reply(body=b"{}"))
    assert load("org/name").config == {}
    hub.requests.clear()
    hub.on(MAIN, Reply(hang_up=True))
    error = refused()
    assert (error.reason, len(hub.requests)) == ("unreachable", 2)
    assert "hung up, twice" in str(error)


def test_a_cut_off_body(hub: Hub) -> None:
    hub.on(MAIN, Reply(body=b'{"a": 1}', length=20))
    error = refused()
    assert (error.reason, error.what) == ("broken", "the answer was cut off before its end")


@pytest.mark.parametrize(
    ("size", "length", "reason"),
    [
        (9 << 20, 9 << 20, "too_large"),
        (9 << 20, -1, "too_large"),
        (2, 9 << 20, "too_large"),  # refused for what it declares
        (9 << 20, 8 << 20, "not_json"),  # a lie: read no further than declared, all blanks
    ],
)
def test_a_body_over_the_bound(hub: Hub, size: int, length: int, reason: str) -> None:
    hub.on(MAIN, Reply(body=b" " * size, length=length))
    assert refused().reason == reason


def test_a_body_without_end() -> None:
    class Endless:
        headers = Message()
        given = 0

        def read1(self, size: int) -> bytes:
            self.given += size
            return b" " * size

    answer, ask = Endless(), hub_module._Ask("https://x", "a/b", "main")
    with pytest.raises(SourceError, match="larger than"):
        hub_module._body(answer, ask, time.monotonic() + 60)
    assert answer.given <= jsonfile.MAX_BYTES + (1 << 17)


def test_a_bomb_of_gzip(hub: Hub) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 1 << 17
    hub.on(MAIN, Reply(body=bomb, headers={"Content-Encoding": "gzip"}))
    tracemalloc.start()
    try:
        assert refused().reason == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 40 << 20, "unpacked no further than the bound"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "encoding", "ok"),
    [
        (gzip.compress(b"{}"), "gzip", True),
        (zlib.compress(b"{}"), "deflate", True),
        (b"{}", "identity", True),
        (gzip.compress(b"{}")[:-9], "gzip", False),
        (b"{}", "gzip", False),
        (b"{}", "br", False),
    ],
)
def test_compression_that_was_not_asked_for(hub: Hub, body: bytes, encoding: str, ok: bool) -> None:
    hub.on(MAIN, Reply(body=body, headers={"Content-Encoding": encoding}))
    if ok:
        assert load("org/name").config == {}
    else:
        assert refused().reason == "broken"


def test_a_captive_portal(hub: Hub, other_host: Hub) -> None:
    hub.on(MAIN, Reply(302, headers={"Location": f"{other_host.url}/login"}))
    other_host.on("/login", Reply(body=b"\n<html>Please log in</html>", headers={"Content-Type": "text/html"}))
    error = refused()
    assert error.reason == "not_json"
    assert "captive portal" in str(error)


def test_what_is_not_http(hub: Hub) -> None:
    hub.on(MAIN, Reply(body=b"{}", headers={f"X-{n}": "x" for n in range(200)}))
    assert refused().reason == "broken"


DRIPPED = 15  # seconds; all of the answer below would take 20


@pytest.mark.parametrize("drip_headers", [False, True])
def test_a_server_that_drips(hub: Hub, monkeypatch: pytest.MonkeyPatch, drip_headers: bool) -> None:
    monkeypatch.setattr(hub_module, "TOTAL_SECONDS", 0.3)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")
    hub.on(MAIN, Reply(body=b" " * 1000, headers={"X-Long": "x" * 999}, drip=0.02, drip_headers=drip_headers))
    began = time.monotonic()
    assert refused().reason == "timeout"
    while not drip_headers and any(thread.name == "kvsize-hub" for thread in threading.enumerate()):
        assert time.monotonic() - began < DRIPPED, "the reader of a dripping body gives up by itself"
        time.sleep(0.01)
    assert time.monotonic() - began < DRIPPED


def test_a_server_that_falls_silent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.1")
    hub.on(MAIN, Reply(body=b"{}", drip=5.0))
    error = refused()
    assert (error.reason, len(hub.requests)) == ("timeout", 1)
    assert "HF_HUB_DOWNLOAD_TIMEOUT" in str(error)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_timeout_that_means_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", text)
    with pytest.raises(UsageError, match="HF_HUB_DOWNLOAD_TIMEOUT"):
        load("org/name")


def test_a_connection_refused() -> None:
    error = refused()
    assert (error.reason, error.what) == ("unreachable", "127.0.0.1 refuses the connection")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "does not resolve"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "SSL_CERT_FILE"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (OSError("Tunnel connection failed: 403 Forbidden"), "Tunnel connection failed: 403"),
        (BrokenPipeError(32, "Broken pipe"), "hung up"),
    ],
)
def test_what_keeps_the_bytes_away(monkeypatch: pytest.MonkeyPatch, cause: OSError, words: str) -> None:
    if isinstance(cause, ssl.SSLCertVerificationError):
        cause.verify_message = "self-signed certificate"  # OpenSSL sets it

    def fail(*_: object, **__: object) -> None:
        raise hub_module.URLError(cause)

    monkeypatch.setattr(hub_module.urllib.request.OpenerDirector, "open", fail)
    error = refused()
    assert error.reason == "unreachable"
    assert words in str(error)


def test_a_proxy_of_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", hub.url)
    hub.on(f"http://hub.invalid{MAIN}", Reply(body=b"{}"))
    assert load("org/name").config == {}
    monkeypatch.delenv("http_proxy")
    monkeypatch.setenv("ALL_PROXY", hub.url)
    assert load("org/name").config == {}
    assert len(hub.requests) == 2


def test_a_proxy_of_another_kind(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.config("org/name", CONFIG)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:pw@127.0.0.1:9")
    error = refused()
    assert (error.reason, error.what) == ("unreachable", "no support for socks5:// proxies")
    assert hub.requests == []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert load("org/name").config == CONFIG


def test_a_bundle_of_certificates(hub: Hub, monkeypatch: pytest.MonkeyPatch, world: Path) -> None:
    hub.config("org/name", CONFIG)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(world / "here"))
    assert load("org/name").config == CONFIG
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(world / "none.pem"))
    with pytest.raises(UsageError, match="REQUESTS_CA_BUNDLE: not a bundle"):
        load("org/name")
