"""A small local Hub: scripted answers for config.json on loopback, and a record of what was asked of it.

    with serve() as hub:
        hub.on("/org/name/resolve/main/config.json", Reply(body=b"{}"))
        ...
        assert len(hub.requests) == 1

Two servers stand for two hosts: their ports differ, and so their origins.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Reply:
    """One answer. `length` may lie about the body, `hang_up` sends nothing, `drip` waits between bytes."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    hang_up: bool = False
    drip: float = 0.0
    drip_headers: bool = False


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]


class Hub:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._replies: dict[str, list[Reply]] = {}

    def on(self, path: str, *replies: Reply) -> None:
        """Answer `path` with each reply once; the last one is repeated."""
        self._replies[path] = list(replies)

    def config(self, repo: str, config: dict[str, Any] | bytes, revision: str = "main", **headers: str) -> None:
        body = config if isinstance(config, bytes) else json.dumps(config).encode()
        named = {
            "X-Repo-Commit": COMMIT,
            "ETag": '"abc"',
            "Content-Type": "text/plain; charset=utf-8",
        } | headers
        self.on(f"/{repo}/resolve/{revision}/config.json", Reply(body=body, headers=named))

    def refuse(self, repo: str, status: int, code: str = "", revision: str = "main", **headers: str) -> None:
        named = {"X-Error-Code": code} if code else {}
        reply = Reply(status, b'{"error":"..."}', named | {k.replace("_", "-"): v for k, v in headers.items()})
        self.on(f"/{repo}/resolve/{revision}/config.json", reply)

    def reply(self, path: str) -> Reply:
        replies = self._replies.get(path)
        if not replies:
            return Reply(404, b"Repository not found", {"X-Error-Code": "RepoNotFound"})
        return replies.pop(0) if len(replies) > 1 else replies[0]


@contextmanager
def serve() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.requests.append(Request(self.path, dict(self.headers)))
            with suppress(OSError):  # the client may have left
                _answer(self, hub.reply(self.path), hub.closing)

        def do_HEAD(self) -> None:
            raise AssertionError("kvsize asks once: GET")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, reply: Reply, closing: threading.Event) -> None:
    handler.close_connection = True
    if reply.hang_up:
        return
    length = len(reply.body) if reply.length is None else reply.length
    lines = [f"HTTP/1.1 {reply.status} Scripted"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines += [f"Content-Length: {length}"] if length >= 0 else []  # -1: none, the end is the end
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if not reply.drip:
        handler.wfile.write(head + reply.body)
        return
    if not reply.drip_headers:
        handler.wfile.write(head)
    for byte in (head if reply.drip_headers else b"") + reply.body:
        if closing.wait(reply.drip):
            return
        handler.wfile.write(bytes([byte]))
