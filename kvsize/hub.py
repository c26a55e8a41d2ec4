"""One GET: a config.json, a listing or a part of a file from the Hub, bounded in bytes and time. Nothing is stored.

urllib, not huggingface_hub's session: that is a requests.Session in 0.34, an httpx.Client in 1.x and an
httpx2.Client in 2.4 (utils/_http.py get_session); and hf_hub_download asks twice (HEAD, GET). The token comes
from huggingface_hub, which knows all the places where it may lie.
"""

from __future__ import annotations

import http.client
import os
import queue
import re
import socket
import ssl
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from string import punctuation
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit

from kvsize.errors import SourceError, UsageError
from kvsize.jsonfile import MAX_BYTES

READ_SECONDS = 10.0  # of silence; huggingface_hub's default for HF_HUB_DOWNLOAD_TIMEOUT
TOTAL_SECONDS = 30.0  # for the whole answer: a server that drips one byte a second never falls silent
PAUSE_SECONDS = 0.5  # before the one retry
MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}

_LOG_IN = "If it is private or gated: log in with `hf auth login`, or set HF_TOKEN."
_SENT = "Your token was sent: https://huggingface.co/settings/tokens says what it may read."
_BEHIND = "Without the Hub kvsize reads a folder, a config.json or `-`; `kvsize models` lists what it brings."
_SETTINGS = "Check HF_ENDPOINT and the proxy settings."

# X-Error-Code, else the status, else its hundred -> reason, what, hint. The codes are those that
# huggingface_hub@2.4.0 utils/_http.py hf_raise_for_status tells apart.
_REFUSALS: dict[str | int, tuple[str, str, str]] = {
    "GatedRepo": ("gated", "the repository is gated", "Accept its terms at {page}. {login}"),
    "RepoNotFound": ("not_found", "the Hub shows no such repository", "Check the spelling. {login}"),
    "RevisionNotFound": (
        "not_found",
        "there is no revision {revision!r}",
        "{page}/tree/main lists the branches.",
    ),
    "EntryNotFound": (
        "not_found",
        "the repository exists but holds no {file}",
        "GGUF-only and adapter (LoRA) repositories have none: name the base model, or see {page}/tree/main.",
    ),
    # The Hub says 401 for what is missing as for what is private (same file, "401 is misleading").
    401: (
        "unauthorized",
        "there is no such repository, or it is private{or_token}",
        "Check the spelling. {login}",
    ),
    403: ("unauthorized", "access denied", "{login}"),
    404: ("not_found", "nothing is there", "Check the spelling, and HF_ENDPOINT if you use a mirror."),
    407: ("unreachable", "the proxy wants a login", "Set HTTPS_PROXY=http://user:password@host:port."),
    429: ("rate_limited", "too many requests{wait}", "Wait, then try again; logged in, the limit is higher."),
    200: ("broken", "the server sends whole files where a part was asked for", _SETTINGS),
    300: ("broken", "the server redirects without end or to nowhere", _SETTINGS),
    500: ("server", "the Hub has an error of its own", f"Try again later. {_BEHIND}"),
}
_ELSE = ("broken", "the server refuses the request", _SETTINGS)


_Get = Callable[[str], http.client.HTTPResponse]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes that were asked for, their commit (None if not said), and the URL, renames followed."""

    data: bytes
    commit: str | None
    url: str


@dataclass(frozen=True, slots=True)
class _Ask:
    endpoint: str
    repo: str
    revision: str
    file: str = "config.json"  # "": the listing
    part: tuple[int, int] | None = None  # first byte and how many

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{self.repo}"

    @property
    def url(self) -> str:
        revision = quote(self.revision, safe="")
        if not self.file:
            return f"{self.endpoint}/api/models/{self.repo}/revision/{revision}?blobs=true"
        return f"{self.page}/resolve/{revision}/{quote(self.file)}"

    @property
    def name(self) -> str:
        return self.file or "the list of its files"

    @property
    def headers(self) -> dict[str, str]:
        headers = {"User-Agent": "kvsize", "Accept-Encoding": "identity"}
        if self.part is not None:
            headers["Range"] = f"bytes={self.part[0]}-{self.part[0] + self.part[1] - 1}"
        return headers

    @property
    def max_bytes(self) -> int:
        return MAX_BYTES if self.part is None else self.part[1]


def fetch_config(endpoint: str, repo_id: str, revision: str) -> Fetched:
    """Fetch `repo_id`'s config.json of `revision`, at most MAX_BYTES of it, following renames.

    `repo_id` and `revision` must be checked before: they become a URL. The token goes to the endpoint only.
    Errors: SourceError with the reason; UsageError for an environment variable that means nothing.
    """
    return _get(_Ask(endpoint, repo_id, revision))


def fetch_listing(endpoint: str, repo_id: str, revision: str) -> Fetched:
    """Fetch what the Hub's API says of a model: its files with their sizes, parameters by dtype. At most MAX_BYTES.

    Bounds, token and errors as fetch_config.
    """
    return _get(_Ask(endpoint, repo_id, revision, file=""))


def fetch_part(endpoint: str, repo_id: str, revision: str, file: str, start: int, count: int) -> Fetched:
    """Fetch `count` bytes of a file from byte `start` on; fewer if it ends before. Else as fetch_config."""
    return _get(_Ask(endpoint, repo_id, revision, file, (start, count)))


def _get(ask: _Ask) -> Fetched:
    silence = _timeout()
    seconds = max(TOTAL_SECONDS, silence)
    end = time.monotonic() + seconds
    outcome: queue.SimpleQueue[Fetched | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put(_fetch(ask, silence, end))
        except Exception as error:  # handed over whole: the caller's thread raises it
            outcome.put(error)

    # A thread: neither getaddrinfo nor the reading of headers takes a deadline. A daemon holds up no exit.
    threading.Thread(target=work, daemon=True, name="kvsize-hub").start()
    try:
        result = outcome.get(timeout=seconds)
    except queue.Empty:
        raise _too_slow(ask, seconds) from None
    if isinstance(result, Exception):
        raise result
    return result


def _fetch(ask: _Ask, silence: float, end: float) -> Fetched:
    token = _token(ask)
    opener = _opener(ask)

    def get(url: str) -> http.client.HTTPResponse:
        headers = ask.headers
        if token and _origin(url) == _origin(ask.url):
            headers["Authorization"] = f"Bearer {token}"
        left = max(0.01, min(silence, end - time.monotonic()))
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  the opener knows http and https only
        answer: http.client.HTTPResponse = opener.open(request, timeout=left)
        return answer

    try:
        return _attempt(ask, get, end, logged_in=token is not None)
    except SourceError as error:
        hung_up = isinstance(error.__cause__, ConnectionResetError | BrokenPipeError)
        if error.reason != "server" and not hung_up:
            raise
    time.sleep(PAUSE_SECONDS)
    return _attempt(ask, get, end, logged_in=token is not None)


def _opener(ask: _Ask) -> urllib.request.OpenerDirector:
    """Speak http and https, through the proxies of the environment, and show each answer as it comes."""
    opener = urllib.request.OpenerDirector()  # build_opener would add file:, ftp:, and redirects with the token
    opener.add_handler(urllib.request.ProxyHandler(_proxies(ask)))
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler(context=_tls()))
    return opener


def _proxies(ask: _Ask) -> dict[str, str]:
    named, to = urllib.request.getproxies(), urlsplit(ask.endpoint)
    # ALL_PROXY counts for curl, requests and httpx; urllib overlooks it.
    proxies = {scheme: named.get(scheme) or named.get("all", "") for scheme in ("http", "https")}
    kind = proxies[to.scheme].partition("://")[0] if "://" in proxies[to.scheme] else "http"
    # urllib would speak plain HTTP to a SOCKS proxy.
    if kind not in {"http", "https"} and not urllib.request.proxy_bypass(to.netloc):
        hint = f"Name an HTTP proxy in {to.scheme.upper()}_PROXY. {_BEHIND}"
        raise SourceError(f"no support for {kind}:// proxies", reason="unreachable", where=ask.page, hint=hint)
    return {scheme: address for scheme, address in proxies.items() if address}


def _attempt(ask: _Ask, get: _Get, end: float, *, logged_in: bool) -> Fetched:
    try:
        return _follow(ask, get, end, logged_in=logged_in)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a malformed Location
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        raise _failure(cause, ask) from cause


def _follow(ask: _Ask, get: _Get, end: float, *, logged_in: bool) -> Fetched:
    url = page = ask.url
    commit, status = None, 0
    for _ in range(MAX_REDIRECTS + 1):
        answer = get(url)
        with closing(answer):
            # The first answer names the commit; renames and the Hub's resolve-cache redirect (307).
            commit, status = commit or _commit(answer.headers), answer.status
            location = answer.headers.get("Location") if status in _REDIRECTS else None
            if location is None:
                if status != (200 if ask.part is None else 206):
                    raise _refused(status, answer.headers, ask, logged_in=logged_in)
                return Fetched(_body(answer, ask, end), commit, page)
        url = _redirected(url, location, ask)
        if "/resolve/" in url and _origin(url) == _origin(ask.url):  # a rename, not storage
            page = urlsplit(url)._replace(query="", fragment="").geturl()
    raise _refused(status, Message(), ask, logged_in=logged_in)


def _commit(headers: Message) -> str | None:
    found = re.fullmatch(r"[0-9a-fA-F]{7,64}", headers.get("X-Repo-Commit", ""))
    return found[0] if found else None


def _redirected(url: str, location: str, ask: _Ask) -> str:
    # Quoted as urllib's own redirect handler does: headers arrive as latin-1, URLs leave as ASCII.
    target = urljoin(url, quote(location, encoding="iso-8859-1", safe=punctuation))
    scheme = urlsplit(target).scheme
    if scheme not in {"http", "https"} or (scheme == "http" and url.startswith("https:")):
        what = f"the server redirects to {scheme or 'nothing'}:, which is not safe to follow"
        raise SourceError(what, reason="broken", where=ask.page, hint=_SETTINGS)
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _body(answer: http.client.HTTPResponse, ask: _Ask, end: float) -> bytes:
    data = bytearray()
    declared = answer.headers.get("Content-Length", "")
    expected = int(declared) if re.fullmatch(r"[0-9]{1,18}", declared) else None
    if expected is not None and expected > ask.max_bytes:
        raise _too_large(ask)
    while chunk := answer.read1(1 << 16):
        data += chunk
        if len(data) > ask.max_bytes:
            raise _too_large(ask)
        if time.monotonic() > end:
            raise TimeoutError
    if expected is not None and len(data) < expected:
        raise http.client.IncompleteRead(bytes(data), expected - len(data))
    return _decoded(bytes(data), answer.headers.get("Content-Encoding", "identity").strip().lower(), ask)


def _decoded(data: bytes, encoding: str, ask: _Ask) -> bytes:
    """Undo a compression that was not asked for (some proxies add it), without unpacking a bomb."""
    if encoding in {"identity", ""}:
        return data
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise http.client.HTTPException(f"Content-Encoding {encoding[:20]!r}, asked for identity")
    unpacker = zlib.decompressobj(wbits=47)  # 32 + 15: zlib or gzip, told apart by the header
    try:
        plain = unpacker.decompress(data, ask.max_bytes + 1)
    except zlib.error as error:
        raise http.client.HTTPException(f"not {encoding}: {error}") from None
    if len(plain) > ask.max_bytes:
        raise _too_large(ask)
    if not unpacker.eof:
        raise http.client.IncompleteRead(data)
    return plain


def _refused(status: int, headers: Message, ask: _Ask, *, logged_in: bool) -> SourceError:
    code = headers.get("X-Error-Code", "")
    key = next((key for key in (code, status, status // 100 * 100) if key in _REFUSALS), None)
    reason, what, hint = _REFUSALS[key] if key is not None else _ELSE
    words = {"page": ask.page, "file": ask.name, "revision": ask.revision, "wait": _wait(headers)}
    words["login"] = _SENT if logged_in else _LOG_IN
    words["or_token"] = ", or your token is not valid" if logged_in else ""
    what, hint = what.format(**words), hint.format(**words)
    return SourceError(what, reason=reason, where=ask.page, got=f"HTTP {status}", hint=hint)


def _wait(headers: Message) -> str:
    """How long the server asks to wait, from Retry-After or from the Hub's own RateLimit: "api";r=0;t=55."""
    after = re.fullmatch(r"\s*([0-9]{1,6})\s*", headers.get("Retry-After", ""))
    after = after or re.search(r";\s*t=([0-9]{1,6})", headers.get("RateLimit", ""))
    return f"; retry after {after[1]} seconds" if after else ""


def _failure(cause: Exception, ask: _Ask) -> SourceError:
    """Say in words what kept the bytes from arriving."""
    host = urlsplit(ask.endpoint).hostname
    reason, what, hint = "unreachable", f"cannot reach {host}", _BEHIND
    match cause:
        case TimeoutError():
            reason, what = "timeout", f"{host} does not answer in time"
            hint = f"Try again, or raise HF_HUB_DOWNLOAD_TIMEOUT (seconds). {_BEHIND}"
        case ssl.SSLCertVerificationError():
            what = f"the certificate of {host} does not verify: {cause.verify_message}"
            hint = "Behind a proxy that inspects TLS, set SSL_CERT_FILE to its root. Check the clock, too."
        case socket.gaierror():
            what = f"the name {host} does not resolve: no network, no DNS, or HF_ENDPOINT is misspelt"
        case ConnectionRefusedError():
            what = f"{host} refuses the connection"
        case ConnectionResetError() | BrokenPipeError():
            what = f"{host} hung up, twice"
        case http.client.IncompleteRead():
            reason, what, hint = "broken", "the answer was cut off before its end", "Try again."
        case http.client.HTTPException() | ValueError():
            reason, what = (
                "broken",
                f"what {host} answers is not HTTP as the Hub speaks it: {type(cause).__name__}",
            )
            hint = _SETTINGS
        case OSError():
            what = f"{what}: {cause.strerror or cause}"
    return SourceError(what, reason=reason, where=ask.page, hint=hint)


def _too_large(ask: _Ask) -> SourceError:
    what = f"{ask.name} is larger than {ask.max_bytes:,} bytes, which no model's is"
    return SourceError(what, reason="too_large", where=ask.page, hint="Look at what the repository holds there.")


def _too_slow(ask: _Ask, seconds: float) -> SourceError:
    what = f"{urlsplit(ask.endpoint).hostname} had not sent the file after {seconds:g} seconds"
    return SourceError(what, reason="timeout", where=ask.page, hint=f"Try again later. {_BEHIND}")


def _timeout() -> float:
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or str(READ_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise UsageError("not a number of seconds", where="HF_HUB_DOWNLOAD_TIMEOUT", got=repr(text))
    return seconds


def _token(ask: _Ask) -> str | None:
    from huggingface_hub import constants, errors, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        token = get_token()
    except (OSError, ValueError, getattr(errors, "OIDCError", OSError)) as error:  # OIDCError since 1.x
        what = f"your token cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
        raise SourceError(what, reason="unauthorized", where=ask.page, hint="Log in again: `hf auth login`.") from None
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        # Never shown, not even in a traceback: http.client would quote the header that it refuses.
        what = "the token holds characters that no token has"
        raise SourceError(what, reason="unauthorized", where=ask.page, hint="Set HF_TOKEN again, or `hf auth login`.")
    return token


def _tls() -> ssl.SSLContext:
    name = next((name for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if os.environ.get(name)), None)
    if name is not None:  # what requests, and so huggingface_hub before 1.0, honours
        bundle = Path(os.environ[name])
        try:
            if bundle.is_dir():
                return ssl.create_default_context(capath=bundle)
            return ssl.create_default_context(cafile=bundle)
        except OSError as error:
            raise UsageError("not a bundle of certificates", where=name, got=str(error)) from None
    context = ssl.create_default_context()
    if find_spec("certifi"):  # python.org's builds for macOS find no roots of the system
        context.load_verify_locations(import_module("certifi").where())
    return context
