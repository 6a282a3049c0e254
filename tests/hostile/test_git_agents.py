"""Repositories that try to run something, get out of their folder, or take more than their share."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.git_repository import CONTRACT, Repository, git, served
from valkyrie.agents.library import AgentLibrary, PushedAgent, checked_out
from valkyrie.errors import BundleError, InfrastructureError, UserError, ValkyrieError
from valkyrie.git.repository import parse_source

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The git settings of whoever installs."""
    file = tmp_path / ".gitconfig"
    file.touch()
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return file


@pytest.fixture
def repository(tmp_path: Path, settings: Path) -> Repository:
    return Repository(tmp_path / "served" / "o" / "evil.git")


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Whatever is run leaves this behind."""
    made = tmp_path / "was-run"
    yield made
    assert not made.exists(), made.read_text()


@pytest.fixture
def library(tmp_path: Path) -> AgentLibrary:
    return AgentLibrary(tmp_path / "library")


def install(library: AgentLibrary, text: str, timeout: float = 60.0) -> PushedAgent:
    with checked_out(parse_source(text), "evil", timeout=timeout) as found:
        return library.push(found.folder, found.name, origin=found.origin)


def script(path: Path, marker: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$0" >> {marker}\ncat\n')
    path.chmod(0o755)
    return path


def test_no_hook_filter_or_helper_of_anyone_runs(
    repository: Repository, settings: Path, marker: Path, library: AgentLibrary, tmp_path: Path
) -> None:
    attributes = "* filter=lfs diff=x merge=x\n"
    repository.commit(
        {"contract.yaml": CONTRACT, ".gitattributes": attributes, "hooks/post-checkout": ("100755", "x")}
    )
    hooks = ("post-checkout", "post-index-change", "reference-transaction", "post-merge", "pre-auto-gc")
    for folder in (repository.path / "hooks", tmp_path / "hooks", tmp_path / "template" / "hooks"):
        for hook in hooks:
            script(folder / hook, marker)
    run = script(tmp_path / "run", marker)
    settings.write_text(
        f"[core]\n\thooksPath = {tmp_path / 'hooks'}\n\tfsmonitor = {run}\n"
        f"[init]\n\ttemplateDir = {tmp_path / 'template'}\n"
        f'[filter "lfs"]\n\tsmudge = {run}\n\tprocess = {run}\n\trequired = true\n'
        f"[uploadpack]\n\tpackObjectsHook = {run}\n[submodule]\n\trecurse = true\n"
        f'[diff "x"]\n\ttextconv = {run}\n[merge "x"]\n\tdriver = {run}\n'
    )
    assert install(library, repository.url).name == "evil"


def test_submodules_are_left_alone(repository: Repository, marker: Path, library: AgentLibrary) -> None:
    modules = (
        f'[submodule "x"]\n\tpath = dep\n\turl = ext::sh -c touch% {marker}\n\tupdate = !touch {marker}\n'
    )
    repository.commit({"contract.yaml": CONTRACT, ".gitmodules": modules, "dep": ("160000", "1" * 40)})
    install(library, repository.url)
    assert list((library.download("evil", library.folder / "out") / "dep").iterdir()) == []


@pytest.mark.parametrize(
    "links",
    [
        {"l": "/etc/passwd"},
        {"l": "../../../../../../../../etc/passwd"},
        {"contract.yml": "/etc/passwd"},
        {"a": "b", "b": "/etc"},
        {"sub/l": "../.."},
        {"l": "../git/config"},
        {"l": "."},
    ],
)
def test_links_lead_nowhere(links: dict[str, str], repository: Repository, library: AgentLibrary) -> None:
    contract = {} if "contract.yml" in links else {"contract.yaml": CONTRACT}
    repository.commit({**contract, **{name: ("120000", target) for name, target in links.items()}})
    with pytest.raises((BundleError, UserError)) as caught:
        install(library, repository.url)
    assert "root:" not in str(caught.value)
    assert library.names() == []


@pytest.mark.parametrize(
    "names",
    [
        [b".."],
        [b"."],
        [b".git"],
        [b".GIT"],
        [b"git~1"],
        [b".git\xe2\x80\x8c"],
        [b"a/b"],
        [b"../x"],
        [b""],
        [b"a\\b"],
        [b"a\nb"],
        [b"a\x1b[2Jb"],
        [b"\xff"],
        [b"x", b"x"],
    ],
)
def test_names_of_entries(names: list[bytes], repository: Repository, library: AgentLibrary) -> None:
    blob = bytes.fromhex(repository.blob(b"evil"))
    entries = [(name, blob) for name in names] + [
        (b"contract.yaml", bytes.fromhex(repository.blob(CONTRACT.encode())))
    ]
    raw = b"".join(b"100644 " + name + b"\0" + oid for name, oid in sorted(entries))
    words = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    repository.commit_tree(git(repository.path, *words, given=raw))
    before = set(library.folder.parent.iterdir())
    with pytest.raises(ValkyrieError):
        install(library, repository.url)
    assert set(library.folder.parent.iterdir()) - {library.folder} == before
    assert library.names() == []


def test_a_name_that_is_link_and_folder(
    repository: Repository, library: AgentLibrary, tmp_path: Path
) -> None:
    link, file = (bytes.fromhex(repository.blob(text)) for text in (os.fsencode(tmp_path), b"evil"))
    below = git(
        repository.path,
        "hash-object",
        "-t",
        "tree",
        "-w",
        "--literally",
        "--stdin",
        given=b"100644 was-run\0" + file,
    )
    contract = bytes.fromhex(repository.blob(CONTRACT.encode()))
    raw = b"120000 a\0" + link + b"40000 a\0" + bytes.fromhex(below) + b"100644 contract.yaml\0" + contract
    repository.commit_tree(
        git(repository.path, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=raw)
    )
    with pytest.raises(ValkyrieError):
        install(library, repository.url)
    assert not (tmp_path / "was-run").exists()


def test_too_much_of_everything(
    repository: Repository, library: AgentLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_UPLOAD_MAX_BYTES", "300000")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "1000000")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "50")
    for files, says in (
        ({"random": os.urandom(900_000)}, "AGENT_UPLOAD_MAX_BYTES"),
        ({"zeros": b"\0" * 2_000_000}, "AGENT_ARCHIVE_MAX_EXPANDED_BYTES"),
        ({f"f{number}": "" for number in range(60)}, "AGENT_ARCHIVE_MAX_ENTRIES"),
        ({"d/" * 100 + "f": "x"}, "too long a path"),
    ):
        repository.commit({"contract.yaml": CONTRACT, **files})
        with pytest.raises(BundleError, match=says):
            install(library, repository.url)
    assert library.names() == []


def test_folders_that_hold_each_other_many_times(repository: Repository, library: AgentLibrary) -> None:
    """A hundred million files in a dozen objects."""
    tree = repository.tree({"f": ("100644", repository.blob(b""))})
    for _ in range(8):
        tree = repository.tree({f"d{number}": ("040000", tree) for number in range(10)})
    contract = ("100644", repository.blob(CONTRACT.encode()))
    repository.commit_tree(repository.tree({"contract.yaml": contract, "d": ("040000", tree)}))
    with pytest.raises(BundleError, match=r"holds more than 100,000 files"):
        install(library, repository.url)


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


def test_a_server_that_never_answers(settings: Path, library: AgentLibrary) -> None:
    with (
        silent_server() as url,
        pytest.raises(InfrastructureError, match=r"not done within 0\.5 s") as caught,
    ):
        install(library, f"{url}/o/r", timeout=0.5)
    assert caught.value.cause == "git_timeout"


def test_everything_git_started_ends_with_it(
    settings: Path, library: AgentLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The pipe is held open by ssh and its child; it ends when the last of them does.
    begun = tmp_path / "begun"
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\nexec 9>{pipe}\necho here >&9\nsleep 600 &\ntouch {begun}\nsleep 600\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(tmp_path / "ssh"))
    # Held open, so that a round in which ssh did not get to begin can be followed by another.
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        for seconds in (1.0, 10.0, 100.0):
            with pytest.raises(InfrastructureError, match="was stopped"):
                install(library, "git@host.example:o/r", timeout=seconds)
            if begun.exists():
                break
        os.set_blocking(reader.fileno(), True)
        assert reader.read() == b"here\n"


@pytest.mark.parametrize(
    "target", ["file://{victim}", "ext::sh -c touch% {marker}", "ssh://-oProxyCommand=touch/x"]
)
def test_redirects_and_rewrites_lead_to_no_other_protocol(
    target: str, repository: Repository, settings: Path, marker: Path, library: AgentLibrary
) -> None:
    repository.commit({"contract.yaml": CONTRACT})
    elsewhere = target.format(victim=repository.path, marker=marker)

    def redirect(request: BaseHTTPRequestHandler) -> bool:
        request.send_response(302)
        request.send_header("Location", f"{elsewhere}/info/refs?service=git-upload-pack")
        request.send_header("Content-Length", "0")
        request.end_headers()
        return False

    with served(repository.path.parent, redirect) as url:
        with pytest.raises(ValkyrieError):
            install(library, f"{url}/o/evil.git")
    settings.write_text(f'[url "{elsewhere}"]\n\tinsteadOf = https://rewritten.example/\n')
    with pytest.raises(ValkyrieError, match=r"not allowed|strange hostname"):
        install(library, "https://rewritten.example/o/r")
    assert library.names() == []


def test_a_server_that_paints_the_terminal(settings: Path, library: AgentLibrary, tmp_path: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> bool:
        error = b"ERR \x1b[2J\x1b]0;owned\x07 Everything is fine. \r\nfatal: hm"
        body = b"001e# service=git-upload-pack\n0000%04x" % (len(error) + 4) + error
        request.send_response(200)
        request.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
        return False

    with served(tmp_path, answer) as url, pytest.raises(ValkyrieError) as caught:
        install(library, f"{url}/o/r")
    assert str(caught.value).isprintable()
