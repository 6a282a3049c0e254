"""Repositories made for a test, and a real smart-HTTP git server for them on loopback."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONTRACT = "name: a\ninstall_cmd: 'true'\nrun_cmd: cat {problem_statement_path}\n"
_PLAIN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(folder: Path, *words: str, given: bytes | None = None) -> str:
    """Run git plainly; what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _PLAIN
    ended = subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, input=given, capture_output=True, check=True
    )
    return ended.stdout.decode().strip()


class Repository:
    """A bare repository, written to object by object: what is in it need not be possible on a disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main", "--template=")
        git(path, "config", "uploadpack.allowFilter", "true")

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def blob(self, content: bytes) -> str:
        return git(self.path, "hash-object", "-w", "--stdin", given=content)

    def tree(self, entries: Mapping[str, tuple[str, str]]) -> str:
        """name → (mode, object); nothing is checked."""
        kinds = {"040000": "tree", "160000": "commit"}
        lines = [f"{mode} {kinds.get(mode, 'blob')} {oid}\t{name}\0" for name, (mode, oid) in entries.items()]
        return git(self.path, "mktree", "-z", "--missing", given="".join(lines).encode())

    def commit(self, files: Mapping[str, str | bytes | tuple[str, str]], branch: str = "main") -> str:
        """A commit of files: content, or (mode, content, link target or submodule's commit)."""
        head = f"commit refs/heads/{branch}\ncommitter a <a@example.com> 1 +0000\n"
        stream = [head.encode() + b"data 1\nx\ndeleteall\n"]
        for name, given in files.items():
            mode, content = given if isinstance(given, tuple) else ("100644", given)
            data = content.encode() if isinstance(content, str) else content
            if mode == "160000":
                stream.append(f"M {mode} {content} {name}\n".encode())
            else:
                stream.append(f"M {mode} inline {name}\ndata {len(data)}\n".encode() + data + b"\n")
        git(self.path, "fast-import", "--quiet", "--force", given=b"".join(stream))
        return git(self.path, "rev-parse", f"refs/heads/{branch}")

    def commit_tree(self, tree: str, branch: str = "main") -> str:
        commit = git(self.path, "commit-tree", tree, "-m", "x")
        git(self.path, "update-ref", f"refs/heads/{branch}", commit)
        return commit


Before = Callable[[BaseHTTPRequestHandler], bool]
"""Told of each request; False: it was answered already."""


@contextmanager
def served(
    root: Path, before: Before | None = None, certificate: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """The repositories below a folder, over HTTP, or HTTPS with a certificate of localhost; their URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def _answer(self, body: bytes) -> None:
            if before and not before(self):
                return
            path, _, query = self.path.partition("?")
            environment = {
                **os.environ,
                **_PLAIN,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            ended = subprocess.run(["git", "http-backend"], env=environment, input=body, capture_output=True)
            head, _, content = ended.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        base = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield base
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
