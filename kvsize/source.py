"""Where a model's config comes from: Hub id, URL, folder, file, standard input.

For an id: the Hugging Face cache on disk, then the bundled catalogue, then one GET to the Hub (kvsize/hub.py,
loaded only then). Only config.json is ever asked for, nothing is run, and kvsize keeps no cache of its own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from kvsize.errors import SourceError, UsageError
from kvsize.jsonfile import MAX_BYTES, parse, read_file
from kvsize.regularfile import unreadable

if TYPE_CHECKING:
    from kvsize.gguf import LayerWeights

Origin = Literal["catalogue", "cache", "hub", "file", "stdin", "gguf"]

_FORMS = (
    "MODEL is org/name, org/name@revision, org/name:file.gguf, a Hub URL, a folder, a config.json, a .gguf, "
    "or `-` for standard input."
)
_ONLINE = "Go online (no --offline, no HF_HUB_OFFLINE, no TRANSFORMERS_OFFLINE)"
_HUB_HOSTS = {"huggingface.co", "www.huggingface.co", "hf.co"}
_NOT_MODELS = {
    "api",
    "blog",
    "buckets",
    "collections",
    "datasets",
    "docs",
    "kernels",
    "models",
    "papers",
    "spaces",
}
_WITH_REVISION = {"blob", "commit", "commits", "raw", "resolve", "tree"}
# huggingface_hub@2.4.0 utils/_validators.py REPO_ID_REGEX, each part at most 96 long.
_ID = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)
# org/name[@revision]:file.gguf, but no drive of Windows
_HUB_FILE = re.compile(
    r"(?P<id>(?!-)[\w\-./]{2,200}(?:@[^:\s]{1,200})?):(?!//)(?P<file>[\w\-./ +()]{1,300}\.gguf)", re.I | re.ASCII
)
# What git-check-ref-format(1) allows, and no more than a file name may hold.
_REVISION = re.compile(r"(?![-./])[^\x00-\x20\x7f~^:?*\[\\]{1,200}(?<![./])")
_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub constants.py ENV_VARS_TRUE_VALUES


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's raw config and where it was found.

    `config` is the parsed JSON object as published; `revision` the commit or date it is of, None if unknown;
    `weight_bytes` what the catalogue, a listing or a GGUF header records, None if unknown; `by_layer` how a GGUF header
    spreads them.
    """

    id: str
    config: Mapping[str, Any]
    origin: Origin
    revision: str | None = None
    location: str = ""
    weight_bytes: int | None = None
    by_layer: LayerWeights | None = None


def load(model: str, *, revision: str | None = None, refresh: bool = False, offline: bool = False) -> ModelFiles:
    """Find the config that MODEL names: a path that exists, else cache, catalogue, Hub, in this order.

    `refresh` asks the Hub even if a copy is at hand; `offline` (or HF_HUB_OFFLINE=1) touches no network.
    Nothing that was fetched is stored: the Hugging Face cache is read, never written.
    Errors: UsageError for a MODEL or revision that means nothing, SourceError for one that cannot be read,
    ConfigError for JSON or a GGUF header that contradicts itself.
    """
    if offline and refresh:
        raise UsageError("--offline and --refresh contradict each other", hint="Keep one of them.")
    if (hub_file := _HUB_FILE.fullmatch(model)) and not os.path.exists(model):  # noqa: PTH110  as _existing
        no_network = offline or offline_by_environment()
        return _from_hub_gguf(hub_file["id"], hub_file["file"], revision, offline=no_network)
    path = None if model == "-" or "://" in model else _existing(model)
    if model == "-" or path is not None:
        if revision is not None:
            raise UsageError("only a Hub id has revisions", got=f"--revision {revision}", hint=_FORMS)
        return _from_stdin() if path is None else _from_path(model, path)
    repo_id, named = parse_id(model)
    if revision is not None and named not in {None, revision}:
        got = f"{named} in MODEL, --revision {revision}"
        raise UsageError("two revisions", got=got, hint="Keep one of them.")
    asked = named if revision is None else _checked_revision(revision)
    return _from_id(repo_id, asked, refresh=refresh, offline=offline or offline_by_environment())


# ---- forms


def parse_id(model: str) -> tuple[str, str | None]:
    """Split `org/name`, `name`, `org/name@revision` or a Hub URL into a checked id and revision (or None).

    Errors: UsageError for anything else, and for a URL of another host, which is never fetched.
    """
    if "://" in model:
        return _parse_url(model)
    if model.partition("/")[0].lower() in _HUB_HOSTS:
        return _parse_url(f"https://{model}")
    repo_id, at, revision = model.partition("@")
    return _checked_id(repo_id), _checked_revision(revision) if at else None


def _parse_url(url: str) -> tuple[str, str | None]:
    try:
        parts, home = urlsplit(url), urlsplit(endpoint())
    except ValueError:
        raise UsageError("MODEL is not a URL", hint=_FORMS) from None
    # What stands before an @ is a login: neither used nor shown.
    host = parts.netloc.rpartition("@")[2].lower()
    path = parts.path
    if host == home.netloc.lower() and path.startswith(f"{home.path}/"):
        path = path.removeprefix(home.path)
    elif host not in _HUB_HOSTS:
        hint = f"It is not fetched. HF_ENDPOINT may name a mirror. {_FORMS}"
        raise UsageError("not a URL of the Hub", got=repr(host), hint=hint)
    if parts.scheme not in {"http", "https"}:
        raise UsageError("not a web address", got=repr(parts.scheme), hint=_FORMS)
    return _parse_page([unquote(part) for part in path.split("/") if part], f"{host}{parts.path}")


def _parse_page(parts: list[str], shown: str) -> tuple[str, str | None]:
    if not parts or parts[0] in _NOT_MODELS:
        raise UsageError("not the page of a model", got=repr(shown), hint=_FORMS)
    # huggingface.co/gpt2/tree/main is the page of a bare name.
    size = 1 if len(parts) == 1 or parts[1] in _WITH_REVISION else 2
    repo_id, rest = _checked_id("/".join(parts[:size])), parts[size:]
    if not rest:
        return repo_id, None
    if rest[0] not in _WITH_REVISION or len(rest) == 1:
        raise UsageError("not a page of files", got=repr(shown), hint=f"Did you mean {repo_id}? {_FORMS}")
    # refs/pr/1 and refs/convert/parquet are the only revisions with slashes in a URL; others come as %2F.
    size = 4 if rest[1] == "refs" else 2
    revision, file = _checked_revision("/".join(rest[1:size])), "/".join(rest[size:])
    if file.lower().endswith(".gguf"):
        hint = f"Name it as {repo_id}@{revision}:{file}"
        raise UsageError("a file of a repository, not the repository", got=repr(shown), hint=hint)
    if file not in {"", "config.json"}:
        hint = f"Did you mean {repo_id}@{revision}?"
        raise UsageError("only config.json at the root is read", got=repr(file), hint=hint)
    return repo_id, revision


def _checked_id(repo_id: str) -> str:
    if not _ID.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id or repo_id.endswith(".git"):
        raise UsageError("neither a path that exists nor a Hub id", got=repr(repo_id[:200]), hint=_FORMS)
    return repo_id


def _checked_revision(revision: str) -> str:
    odd = not revision.isprintable() or any(bad in revision for bad in ("..", "//", "/.", "@{"))
    if odd or not _REVISION.fullmatch(revision):
        hint = "Such as main, v1.0 or a commit hash."
        raise UsageError("not a branch, tag or commit", got=repr(revision[:200]), hint=hint)
    return revision


def endpoint() -> str:
    """Give the Hub's address without a slash at its end: HF_ENDPOINT, read at each call.

    Errors: UsageError if it is not http(s)://host[:port][/path]. A login in it would end up in messages.
    """
    address = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not re.fullmatch(r"https?://[\w.\-\[\]:]+(/[\w.\-/~%]*)?", address, re.ASCII | re.IGNORECASE):
        raise UsageError("must be http(s)://host[:port][/path]", where="HF_ENDPOINT")
    return address


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids the network."""
    # `or`, as in huggingface_hub constants.py: TRANSFORMERS_OFFLINE counts if the other is unset or empty.
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


# ---- ids: cache, catalogue, Hub


def _from_id(repo_id: str, revision: str | None, *, refresh: bool, offline: bool) -> ModelFiles:
    bundled = _from_catalogue(repo_id)
    # A revision may be a quantised branch: then the recorded weights are not those of the answer.
    weight_bytes = bundled.weight_bytes if bundled is not None and revision is None else None
    if not refresh:
        cached = _from_cache(repo_id, revision or "main")
        if cached is not None:
            return replace(cached, weight_bytes=weight_bytes)
        if bundled is not None and (revision is None or (revision == bundled.revision and _is_commit(revision))):
            return bundled
    if offline:
        raise _offline(repo_id, revision, refresh=refresh, bundled=bundled)
    return replace(_from_hub(repo_id, revision or "main"), weight_bytes=weight_bytes)


def _from_cache(repo_id: str, revision: str) -> ModelFiles | None:
    """Look an id up as huggingface_hub.try_to_load_from_cache does, which costs 100 ms to import."""
    folder = _cache_dir() / f"models--{repo_id.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    if not _is_commit(commit):  # a name, or a ref that was tampered with: no path is made of it
        return None
    path = folder / "snapshots" / commit / "config.json"
    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises where a folder may not be entered
        return None
    try:
        config = parse(read_file(path), str(path))
    except SourceError as error:
        error.hint = "The cached file is damaged: `--refresh` asks the Hub instead."
        raise
    return ModelFiles(repo_id, config, "cache", commit, str(path))


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{7,64}", revision) is not None


def _cache_dir() -> Path:
    """Find the cache as huggingface_hub@2.4.0 constants.py does, for which a variable set to "" is set."""
    home = os.getenv("XDG_CACHE_HOME", str(Path("~") / ".cache"))
    home = os.getenv("HF_HOME", str(Path(home) / "huggingface"))
    hub = os.getenv("HUGGINGFACE_HUB_CACHE", str(Path(home) / "hub"))
    return Path(os.path.expandvars(os.path.expanduser(os.getenv("HF_HUB_CACHE", hub))))  # noqa: PTH111  order as there


def catalogue_dir() -> Path:
    """Give the folder of the bundled configs: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs" / "models"
    return installed if installed.is_dir() else package.parent / "configs" / "models"


def catalogue() -> tuple[str, ...]:
    """List the ids that the catalogue holds, sorted, from the file names alone."""
    # No id holds "--" (see _checked_id), so the file name says it without being opened.
    return tuple(sorted(name.removesuffix(".json").replace("--", "/", 1) for name in _catalogue_names()))


def _catalogue_names() -> list[str]:
    folder = catalogue_dir()
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208  no Path per file: this runs at each start
    return [name for name in names if name.endswith(".json") and name != "aliases.json"]


def _from_catalogue(repo_id: str) -> ModelFiles | None:
    path = _catalogue_file(repo_id)
    if path is None:
        return None
    entry = parse(read_file(path), str(path))
    # An alias keeps the name it was asked by; spelling follows the Hub, whose ids differ by more than case.
    known = entry["id"] if entry["id"].lower() == repo_id.lower() else repo_id
    revision = entry["revision"] or entry["date"]
    return ModelFiles(known, entry["config"], "catalogue", revision, str(path), entry["weight_bytes"])


def _catalogue_file(repo_id: str) -> Path | None:
    folder = catalogue_dir()
    names = {name.lower(): name for name in _catalogue_names()}
    name = names.get(f"{repo_id.replace('/', '--')}.json".lower())
    aliases = folder / "aliases.json"
    if name is None and aliases.is_file():
        renamed = {key.lower(): value for key, value in parse(read_file(aliases), str(aliases)).items()}
        name = names.get(f"{renamed.get(repo_id.lower(), '').replace('/', '--')}.json".lower())
    return None if name is None else folder / name


def _near(repo_id: str) -> str:
    from difflib import get_close_matches

    known = {known.lower(): known for known in catalogue()}
    names = {lower.rpartition("/")[2]: id_ for lower, id_ in known.items()}
    asked = repo_id.lower()
    close = [known[key] for key in get_close_matches(asked, known, n=3, cutoff=0.75)]
    name = asked.rpartition("/")[2]
    close = close or [names[key] for key in get_close_matches(name, names, n=3, cutoff=0.8)]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _offline(repo_id: str, revision: str | None, *, refresh: bool, bundled: ModelFiles | None) -> SourceError:
    if refresh or bundled is not None:
        what = "--refresh and revisions need the Hub, and this run is offline"
        hint = f"{_ONLINE}, or drop them to read a copy at hand."
    else:
        what = "neither in the Hugging Face cache nor in the catalogue, and this run is offline"
        hint = f"{_ONLINE}, or give a folder or config.json.{_near(repo_id)}"
    where = f"{repo_id}@{revision}" if revision else repo_id
    return SourceError(what, reason="offline", where=where, hint=hint)


def _from_hub(repo_id: str, revision: str) -> ModelFiles:
    from kvsize import hub

    try:
        fetched = hub.fetch_config(endpoint(), repo_id, revision)
    except SourceError as error:
        if error.reason in {"not_found", "unauthorized", "unreachable", "timeout"}:
            error.hint = f"{error.hint or ''}{_near(repo_id)}".strip()
        raise
    return ModelFiles(repo_id, parse(fetched.data, fetched.url), "hub", fetched.commit, fetched.url)


# ---- files


def _existing(model: str) -> Path | None:
    """Give the path if it exists; None for what may be an id. A path wins over an id of the same look."""
    path = Path(os.path.expanduser(model))  # noqa: PTH111  Path.expanduser raises for an unknown ~user
    try:
        path.stat()
    except PermissionError as error:
        if _looks_like_path(model):
            raise unreadable(path, error) from None
    except (OSError, ValueError):  # also a name too long, and a NUL in it
        if _looks_like_path(model):
            what = "no such file or folder"
            raise SourceError(what, reason="not_found", where=model, hint=_FORMS) from None
    else:
        return path if model else None
    return None


def _looks_like_path(model: str) -> bool:
    if model.partition("/")[0].lower() in _HUB_HOSTS:
        return False
    if re.match(r"[/~.\\]|[A-Za-z]:[/\\]", model) or model.lower().endswith(("/", "\\", ".json", ".gguf")):
        return True
    return model.count("/") > 1 and "@" not in model


def _from_path(model: str, path: Path) -> ModelFiles:
    if path.is_dir():
        path = _config_in(model, path)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(model, path)
    return ModelFiles(model, parse(read_file(path), str(path)), "file", None, str(path))


def _config_in(model: str, folder: Path) -> Path:
    path = folder / "config.json"
    try:
        path.lstat()
    except PermissionError as error:
        raise unreadable(path, error) from None
    except OSError:
        what = "no config.json in this folder"
        raise SourceError(what, reason="not_found", where=model, hint=_folder_hint(folder)) from None
    return path


def _folder_hint(folder: Path) -> str:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  names are all that is looked at
    except OSError as error:
        return f"And it cannot be listed: {error.strerror}."
    if any(name.endswith(".gguf") for name in names):
        return "It holds GGUF files: name one of them."
    if "adapter_config.json" in names:
        return "It holds an adapter: name its base model (base_model_name_or_path in adapter_config.json)."
    if "snapshots" in names:
        return "It is a folder of the Hugging Face cache: give the id, org/name."
    return f"For the Hub's model of this name, give its URL: {endpoint()}/{folder.name}."


def _from_gguf(model: str, path: Path) -> ModelFiles:
    from kvsize import gguf

    found = gguf.load(path)
    return ModelFiles(model, found.config, "gguf", None, str(path), found.weight_bytes, found.by_layer)


def _from_hub_gguf(named: str, file: str, revision: str | None, *, offline: bool) -> ModelFiles:
    """Read the header of org/name:file.gguf, by ranged reads that are kept nowhere."""
    from kvsize import gguf

    repo_id, _, inside = named.partition("@")
    if revision is not None and inside not in {"", revision}:
        raise UsageError("two revisions", got=f"{inside} in MODEL, --revision {revision}", hint="Keep one of them.")
    asked = revision or inside or "main"
    if offline:
        hint = f"{_ONLINE}, or give a .gguf file."
        raise SourceError("files of a repository need the Hub, and this run is offline", reason="offline", hint=hint)
    if any(part in {"", ".", ".."} for part in file.split("/")):
        raise UsageError("not a file of a repository", got=repr(file[:200]), hint=_FORMS)
    found = gguf.fetch(endpoint(), _checked_id(repo_id), _checked_revision(asked), file)
    return ModelFiles(f"{repo_id}:{file}", found.config, "gguf", found.commit, file, found.weight_bytes, found.by_layer)


def _from_stdin() -> ModelFiles:
    if sys.stdin is None:
        hint = "Pipe a config.json in."
        raise SourceError("standard input is closed", reason="broken", where="stdin", hint=hint)
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: closed
        raise unreadable(Path("stdin"), error) from None
    return ModelFiles("stdin", parse(data or b"", "stdin"), "stdin", None, "stdin")
