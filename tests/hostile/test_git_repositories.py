"""Repositories of strangers on this machine: nothing in them is obeyed, and they lead nowhere else."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.git_repository import CONTRACT, git, served
from tests.integration.notifications.test_sender import make_certificate
from valkyrie.agents.library import checked_out
from valkyrie.benchmarks.eval_spec.layout import Checkouts
from valkyrie.benchmarks.named import registries
from valkyrie.errors import UserError, ValkyrieError
from valkyrie.evals.export.harbor import write_environment
from valkyrie.evals.lint.specs import lint_spec_file
from valkyrie.git.repository import parse_source
from valkyrie.specs.model import EnvironmentSpec, Stimulus, WorkspaceRepository
from valkyrie.specs.project import Project

MISSING = "1" * 40
SPEC = """\
name: fx
defaults: {executor: mock}
stimuli:
  - name: one
    prompt: Do it.
    environment: {git: {type: worktree, source: fx.git}}
    graders: [{type: output-contains, config: {value: x}}]
  - name: two
    prompt: Do it.
    grading_environment: {files: [{src: fx.git/secret.txt, dest: s.txt}]}
    graders: [{type: output-contains, config: {value: x}}]
"""
# Every key that git documents as a command, or as the name of a file to read or write. RUN is the canary.
COMMANDS = """\
alias.rev-parse=!RUN
alias.fetch=!RUN
alias.x=!RUN
browser.x.cmd=RUN
core.alternateRefsCommand=RUN
core.askPass=RUN
core.editor=RUN
core.fsmonitor=RUN
core.gitProxy=RUN
core.hooksPath=HOOKS
core.pager=RUN
core.sshCommand=RUN
credential.helper=!RUN
credential.https://example.com.helper=!RUN
diff.external=RUN
diff.x.command=RUN
diff.x.textconv=RUN
difftool.x.cmd=RUN
filter.x.clean=RUN
filter.x.process=RUN
filter.x.smudge=RUN
gpg.program=RUN
gpg.ssh.defaultKeyCommand=RUN
gpg.ssh.program=RUN
gpg.x509.program=RUN
guitool.x.cmd=RUN
hook.x.command=RUN
hook.x.event=reference-transaction
imap.tunnel=RUN
init.templateDir=TEMPLATE
instaweb.httpd=RUN
interactive.diffFilter=RUN
log.showSignature=true
man.x.cmd=RUN
merge.x.driver=RUN
mergetool.x.cmd=RUN
pager.fetch=RUN
pager.rev-parse=RUN
pager.version=RUN
receive.procReceiveRefs=refs
remote.origin.proxy=ext::RUN
remote.origin.receivepack=RUN
remote.origin.uploadpack=RUN
remote.origin.url=REPOSITORY
remote.origin.vcs=x
remote.x.url=ext::RUN
sendemail.sendmailCmd=RUN
sendemail.smtpServer=RUN
sendemail.tocmd=RUN
sequence.editor=RUN
submodule.x.update=!RUN
submodule.recurse=true
tar.x.command=RUN
trailer.x.cmd=RUN
trailer.x.command=RUN
uploadpack.packObjectsHook=RUN
url.ext::RUN.insteadOf=file://
web.browser=x"""
FILES = """\
blame.ignoreRevsFile=CANARY
commit.template=CANARY
core.attributesFile=CANARY
core.excludesFile=CANARY
core.worktree=OUTSIDE
credential.useHttpPath=true
extensions.worktreeConfig=true
fsck.skipList=CANARY
http.cookieFile=CANARY
http.proxy=http://127.0.0.1:9
http.sslCAInfo=CANARY
include.path=CANARY
includeIf.gitdir:/.path=CANARY
mailmap.file=CANARY
receive.fsck.skipList=CANARY
trace2.eventTarget=CANARY"""
HOOKS = (
    *("applypatch-msg", "fsmonitor-watchman", "post-checkout", "post-index-change", "post-merge"),
    *("post-rewrite", "post-update", "pre-auto-gc", "pre-receive", "proc-receive", "reference-transaction"),
    *("push-to-checkout", "update", "pre-commit", "post-commit", "sendemail-validate"),
)


class Scene:
    """A project folder with a repository `fx.git` of a stranger in it, and a canary for whatever runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.repository = self.project / "fx.git"
        self.canary = folder / "was-run"
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        self.project.mkdir()
        (self.outside / "secret.txt").write_text("top secret\n")
        git(self.outside, "init", "--quiet", "--initial-branch=main", "--template=")
        git(self.outside, "add", "--all")
        git(self.outside, "commit", "--quiet", "--message=private")
        self.run = folder / "run"
        self.run.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.canary}\n')
        self.run.chmod(0o755)
        git(self.project, "init", "--quiet", "--bare", "--initial-branch=main", "--template=", "fx.git")
        files = {"contract.yaml": CONTRACT, "a.txt": "a\n", ".gitattributes": "* filter=x diff=x merge=x\n"}
        stream = ["commit refs/heads/main\ncommitter a <a@example.com> 1 +0000\ndata 1\nx\n"]
        stream += [f"M 100644 inline {name}\ndata {len(text)}\n{text}\n" for name, text in files.items()]
        git(self.repository, "fast-import", "--quiet", "--force", given="".join(stream).encode())
        (self.repository / "secret.txt").write_text("x\n")
        (self.project / "eval.yaml").write_text(SPEC)
        for place in (self.repository / "hooks", folder / "hooks", folder / "template/hooks"):
            place.mkdir(parents=True)
            for hook in HOOKS:
                (place / hook).symlink_to(self.run)

    def configure(self, lines: str, *, lazy: bool = False) -> None:
        """Write the repository's config; a lazy one fetches what it does not have."""
        values = {
            "RUN": str(self.run),
            "HOOKS": str(self.folder / "hooks"),
            "TEMPLATE": str(self.folder / "template"),
            "REPOSITORY": str(self.repository),
            "OUTSIDE": str(self.outside),
            "CANARY": str(self.canary),
        }
        file = self.repository / "config"
        file.write_text(
            "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[uploadpack]\n\tallowFilter = true\n"
        )
        if lazy:
            lines = f"extensions.partialclone=origin\n{lines}"
            (self.repository / "HEAD").write_text(f"{MISSING}\n")
        for line in lines.splitlines():
            key, _, value = line.partition("=")
            for name, filled in values.items():
                key, value = (re.sub(rf"\b{name}\b", filled, text) for text in (key, value))
            git(self.folder, "config", "--file", str(file), "--add", key, value)

    def untouched(self) -> bool:
        return not self.canary.exists()


def lint(scene: Scene) -> str:
    project = Project(file=None, folder=scene.project)
    return "\n".join(
        str(one.message) for one in lint_spec_file(scene.project / "eval.yaml", None, project)[1]
    )


def stage(scene: Scene) -> str:
    with laid_out(WorkspaceRepository("worktree", "fx.git", scene.project)) as folder:
        return text_of(folder)


@contextmanager
def laid_out(source: WorkspaceRepository) -> Iterator[Path]:
    checkouts = Checkouts()
    try:
        yield asyncio.run(checkouts.of(source))
    finally:
        checkouts.close()


def install(scene: Scene) -> str:
    with checked_out(parse_source(str(scene.repository)), "evil") as found:
        return text_of(found.folder)


def fetch(scene: Scene) -> str:
    with tempfile.TemporaryDirectory(dir=scene.folder) as cache:
        return text_of(registries.fetch(parse_source(scene.repository.as_uri()), Path(cache)).folder)


def export(scene: Scene) -> str:
    source = WorkspaceRepository("worktree", "fx.git", scene.project)
    with tempfile.TemporaryDirectory(dir=scene.folder) as into:
        write_environment(Stimulus("one", ("x",), environment=EnvironmentSpec(git=source)), Path(into), None)
        return text_of(Path(into))


def text_of(folder: Path) -> str:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return "\n".join(path.read_text() for path in files)


DOORS: tuple[Callable[[Scene], str], ...] = (lint, stage, install, fetch, export)


def through_all(scene: Scene) -> list[str]:
    """What every way into a repository gives or says."""
    said = []
    for door in DOORS:
        try:
            said.append(door(scene))
        except ValkyrieError as error:
            said.append(str(error))
    return said


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    made = Scene(tmp_path / "scene")
    yield made
    assert made.untouched(), made.canary.read_text()


def test_no_command_of_a_config_runs(scene: Scene) -> None:
    scene.configure(f"{COMMANDS}\n{FILES}")
    said = through_all(scene)
    assert all("a\n" in text for text in said[1:]), said
    scene.configure(f"{COMMANDS}\n{FILES}", lazy=True)
    through_all(scene)


@pytest.mark.slow
@pytest.mark.parametrize("line", [*COMMANDS.splitlines(), *FILES.splitlines()])
def test_no_key_of_a_config_matters(scene: Scene, line: str) -> None:
    scene.configure(line)
    said = through_all(scene)
    assert all("a\n" in text for text in said[1:]), said
    scene.configure(f"remote.origin.url=REPOSITORY\nremote.origin.uploadpack=RUN\n{line}", lazy=True)
    assert not any("a\n" in text for text in through_all(scene)[1:])


@pytest.mark.parametrize("name", ["config", "config.worktree", "info/attributes", "index", "description"])
def test_other_files_are_not_even_read(scene: Scene, name: str) -> None:
    (scene.repository / name).parent.mkdir(exist_ok=True)
    (scene.repository / name).unlink(missing_ok=True)
    os.mkfifo(scene.repository / name)  # whoever reads it waits for ever
    assert "a\n" in stage(scene)
    assert "error" not in lint(scene)


def test_an_object_that_is_missing_is_not_fetched(scene: Scene) -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/o/r"
        scene.configure(f"remote.origin.url={url}\nremote.origin.promisor=true", lazy=True)
        assert "has no commit yet" in through_all(scene)[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


def test_a_partial_clone_says_how_to_complete_it(scene: Scene) -> None:
    clone = scene.project / "clone"
    words = ("clone", "--quiet", "--no-checkout", "--filter=blob:none", scene.repository.as_uri(), str(clone))
    git(scene.repository, "config", "uploadpack.allowFilter", "true")
    git(scene.project, *words)
    with pytest.raises(UserError, match=r"fetch --refetch --no-filter` completes it"):
        with laid_out(WorkspaceRepository("worktree", "clone", scene.project)):
            pass
    git(clone, "fetch", "--quiet", "--refetch", "--no-filter")
    with laid_out(WorkspaceRepository("worktree", "clone", scene.project)) as folder:
        assert "a\n" in text_of(folder)


def _alternates(scene: Scene) -> None:
    head = git(scene.outside, "rev-parse", "HEAD")
    (scene.repository / "objects/info").mkdir(exist_ok=True)
    (scene.repository / "objects/info/alternates").write_text(f"{scene.outside}/.git/objects\n")
    (scene.repository / "refs/heads/main").write_text(f"{head}\n")


def _alternates_of_another_line_end(scene: Scene) -> None:
    """Git ends lines at \\n alone: what begins with a vertical tab is a folder to it."""
    _alternates(scene)
    (scene.repository / "objects/info/alternates").write_text("\v#\n")
    (scene.repository / "objects/\v#/info").mkdir(parents=True)
    (scene.repository / "objects/\v#/info/alternates").write_text(f"{scene.outside}/.git/objects\n")


def _quoted_alternates(scene: Scene) -> None:
    _alternates(scene)
    (scene.repository / "objects/info/alternates").write_text(f'#\n"{scene.outside}/.git/\\157bjects"\n')


def _linked_objects(scene: Scene) -> None:
    _alternates(scene)
    (scene.repository / "objects/info/alternates").unlink()
    (scene.repository / "objects").rename(scene.repository / "old")
    (scene.repository / "objects").symlink_to(scene.outside / ".git/objects")


def _linked_parts(scene: Scene) -> None:
    _alternates(scene)
    (scene.repository / "objects/info/alternates").unlink()
    for part in (scene.outside / ".git/objects").glob("??"):
        if not (scene.repository / "objects" / part.name).exists():
            (scene.repository / "objects" / part.name).symlink_to(part)


def _linked_files(scene: Scene) -> None:
    _alternates(scene)
    (scene.repository / "objects/info/alternates").unlink()
    for file in (scene.outside / ".git/objects").glob("??/*"):
        (scene.repository / "objects" / file.parent.name).mkdir(exist_ok=True)
        (scene.repository / "objects" / file.parent.name / file.name).symlink_to(file)


def _linked_info(scene: Scene) -> None:
    _alternates(scene)
    (scene.repository / "objects/info").rename(scene.project / "info")
    (scene.repository / "objects/info").symlink_to(scene.project / "info")


def _linked_refs(scene: Scene) -> None:
    (scene.repository / "refs").rename(scene.repository / "old")
    (scene.repository / "refs").symlink_to(scene.outside / ".git/refs")
    _borrow(scene)


def _linked_head(scene: Scene) -> None:
    (scene.repository / "HEAD").unlink()
    (scene.repository / "HEAD").symlink_to(scene.outside / ".git/HEAD")
    _borrow(scene)


def _common_folder(scene: Scene) -> None:
    (scene.repository / "commondir").write_text(f"{scene.outside}/.git\n")


def _pointer(scene: Scene) -> None:
    (scene.repository / ".git").write_text(f"gitdir: {scene.outside}/.git\n")


def _pointer_to_a_worktree(scene: Scene) -> None:
    git(scene.outside, "worktree", "add", "--quiet", "-b", "w", str(scene.folder / "elsewhere"))
    (scene.repository / ".git").write_text(f"gitdir: {scene.outside}/.git/worktrees/elsewhere\n")


def _forged_worktree(scene: Scene) -> None:
    """A worktree that points back, in a repository that is not the author's."""
    own = scene.project / "worktrees/w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "gitdir").write_text(f"{scene.repository}/.git\n")
    (own / "commondir").write_text(f"{scene.outside}/.git\n")
    (scene.repository / ".git").write_text(f"gitdir: {own}\n")


def _linked_git(scene: Scene) -> None:
    (scene.repository / ".git").symlink_to(scene.outside / ".git")


def _borrow(scene: Scene) -> None:
    """Objects that the author could not have are not the point: give them."""
    for file in (scene.outside / ".git/objects").glob("??/*"):
        (scene.repository / "objects" / file.parent.name).mkdir(exist_ok=True)
        (scene.repository / "objects" / file.parent.name / file.name).write_bytes(file.read_bytes())


WAYS_OUT = (
    *(_alternates_of_another_line_end, _quoted_alternates),
    *(_alternates, _linked_objects, _linked_parts, _linked_files, _linked_info, _linked_refs, _linked_head),
    *(_common_folder, _pointer, _pointer_to_a_worktree, _forged_worktree, _linked_git),
)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_repository_leads_nowhere_else(scene: Scene, way: Callable[[Scene], None]) -> None:
    way(scene)
    said = through_all(scene)
    assert not any("top secret" in text for text in said), said
    assert "fx.git" in said[0], "a refusal names the repository"


@pytest.mark.parametrize(
    "git_source_text",
    [
        "type: worktree, source: '{outside}'",
        "type: clone, url: 'file://{outside}'",
        "type: clone, url: 'file://{encoded}'",
        "type: worktree, source: 'file://{encoded}'",
        "type: worktree, source: 'x://../../outside'",
        "type: clone, url: 'h:x/../../outside'",
        "type: worktree, source: '../outside'",
        "type: worktree, source: link",
    ],
)
def test_a_repository_outside_the_project_is_refused(scene: Scene, git_source_text: str) -> None:
    """However it is written: percent signs, folders that look like a protocol or a host, links."""
    encoded = str(scene.outside).replace("outside", "%6futside")
    (scene.project / "x:").mkdir()
    (scene.project / "h:x").mkdir()
    (scene.project / "link").symlink_to(scene.outside)
    written = git_source_text.format(outside=scene.outside, encoded=encoded)
    (scene.project / "eval.yaml").write_text(SPEC.replace("type: worktree, source: fx.git", written))
    assert "--allow-path" in lint(scene)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HEAD", "packed-refs", "refs/heads/main", "shallow", "objects/ab"])
def test_pipes_in_a_repository_are_not_waited_for(scene: Scene, name: str) -> None:
    (scene.repository / name).unlink(missing_ok=True)
    os.mkfifo(scene.repository / name)
    through_all(scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    "head", ["ref: ../../outside/.git/refs/heads/main", "ref: refs/../../../x", "-x", "ref: /etc/passwd", ""]
)
def test_a_head_that_is_no_reference(scene: Scene, head: str) -> None:
    (scene.repository / "HEAD").write_text(f"{head}\n")
    assert not any("a\n" in text or "root:" in text for text in through_all(scene)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("ref", ["--output=x", "-h", "--exec=x", "HEAD:a.txt", "@{-1}", ":/x", "^main"])
def test_words_of_a_spec_are_no_options(scene: Scene, ref: str) -> None:
    with pytest.raises(ValkyrieError):
        with laid_out(WorkspaceRepository("worktree", "fx.git", scene.project, ref=ref)):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% {canary}",
        "fd::17",
        "git://127.0.0.1/x",
        "ftp://127.0.0.1/x",
        "ssh://-oProxyCommand=touch {canary}/x",
        "-oProxyCommand=touch {canary}:x",
        "git@127.0.0.1:o/r",
        "transport::address",
        "file://{outside}/../outside",
    ],
)
def test_no_other_protocol(scene: Scene, url: str) -> None:
    text = url.format(canary=scene.canary, outside=scene.outside)
    with pytest.raises(ValkyrieError) as caught:
        with laid_out(WorkspaceRepository("clone", text, scene.project, ref="none")):
            pass
    assert str(caught.value).isprintable()


def test_a_spec_does_not_fetch_as_the_user(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credential helpers, netrc, cookies, headers and rewritten addresses stay with the user."""
    sent: list[str] = []

    def refuse(request: BaseHTTPRequestHandler) -> bool:
        sent.append(str(request.headers))
        request.send_response(401)
        request.send_header("WWW-Authenticate", "Basic")
        request.send_header("Content-Length", "0")
        request.end_headers()
        return False

    home = tmp_path / "home"
    (home / ".netrc").write_text("default login you password canary-password\n")
    (home / ".git-credentials").write_text("https://you:canary-password@localhost\n")
    (home / ".gitconfig").write_text(
        f"[credential]\n\thelper = !{scene.run}\n[http]\n\textraHeader = X-Canary: canary-password\n"
        f'[core]\n\taskPass = {scene.run}\n\tsshCommand = {scene.run}\n[url "ext::{scene.run}"]\n'
        "\tinsteadOf = https://\n"
    )
    monkeypatch.setenv("GIT_ASKPASS", str(scene.run))
    monkeypatch.setenv("SSH_ASKPASS", str(scene.run))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(scene.run))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    certificate = make_certificate(tmp_path, "localhost")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate[0]))
    with served(scene.project, refuse, certificate) as url:
        with pytest.raises(UserError, match=r"needs a login.*valk config set git_logins localhost"):
            with laid_out(WorkspaceRepository("clone", f"{url}/fx.git", scene.project)):
                pass
        with pytest.raises(UserError, match=r"git_logins"):
            registries.fetch_all([registries.PinnedFolder(f"{url}/fx.git", MISSING)], tmp_path / "cache")
    secret = base64.b64encode(b"you:canary-password").decode()
    assert sent
    assert not any("canary-password" in one or secret in one for one in sent)
    for address, says in (("http://127.0.0.1:9/o/r", "over plain http"), ("ssh://h/o/r", "over ssh")):
        with pytest.raises(UserError, match=rf"{says}.*git_logins"):
            registries.fetch_all([registries.PinnedFolder(address, MISSING)], tmp_path / "cache")
    with pytest.raises(UserError, match=r"over ssh, which logs in as you.*git_logins example\.com"):
        with laid_out(WorkspaceRepository("clone", "git@example.com:o/r", scene.project)):
            pass


def test_the_user_may_allow_logins(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[str] = []

    def look(request: BaseHTTPRequestHandler) -> bool:
        sent.append(str(request.headers))
        return True

    (tmp_path / "home/.gitconfig").write_text("[http]\n\textraHeader = X-Mine: yes\n")
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("VALKYRIE_GIT_LOGINS", "example.com, 127.0.0.1")
    with served(scene.project, look) as url:
        with laid_out(WorkspaceRepository("clone", f"{url}/fx.git", scene.project)) as folder:
            assert "a\n" in text_of(folder)
    assert "X-Mine: yes" in sent[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linked", "shallow", "packed", "sha256", "submodule", "detached", "spaces"])
def test_honest_repositories_work(scene: Scene, kind: str) -> None:
    folder = scene.project / ("a b ü" if kind == "spaces" else kind)
    plain = scene.repository
    if kind == "sha256":
        git(scene.project, "init", "--quiet", "--object-format=sha256", "--template=", str(folder))
        (folder / "a.txt").write_text("a\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message=x")
    elif kind == "submodule":
        git(scene.project, "init", "--quiet", "--template=", "super")
        words = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", plain.as_uri(), "sub")
        git(scene.project / "super", *words)
        folder = scene.project / "super/sub"
        assert (folder / ".git").is_file()
    else:
        options = ("--depth=1",) if kind == "shallow" else ()
        git(scene.project, "clone", "--quiet", *options, plain.as_uri(), str(folder))
    if kind == "packed":
        git(folder, "gc", "--quiet")
        git(folder, "pack-refs", "--all")
    if kind == "detached":
        git(folder, "checkout", "--quiet", "--detach")
    if kind == "linked":
        git(folder, "worktree", "add", "--quiet", "-b", "w", str(scene.project / "w"))
        folder = scene.project / "w"
    with laid_out(WorkspaceRepository("worktree", str(folder), scene.project)) as found:
        assert "a\n" in text_of(found)
        assert git(found, "rev-parse", "HEAD") == git(folder, "rev-parse", "HEAD")


def test_nothing_else_starts_git() -> None:
    """One place starts git; the test reads the sources as a reviewer would."""
    source = Path(__file__).parents[2] / "src" / "valkyrie"
    starting = re.compile(r"""(subprocess\.\w+|create_subprocess_exec|Popen|which)\(\s*\[?\s*["']git["']""")
    found = [str(path) for path in source.rglob("*.py") if starting.search(path.read_text("utf-8"))]
    assert found == [str(source / "git" / "command.py")]


def test_an_export_writes_through_no_link(scene: Scene) -> None:
    """Files of a spec, one of which is a link that an earlier one brought."""
    from valkyrie.specs.model import FileEntry

    (scene.project / "one").mkdir()
    (scene.project / "one/setup.sh").symlink_to(scene.canary)
    (scene.project / "one/.keep").symlink_to(scene.canary)
    (scene.project / "one/out").symlink_to(scene.outside)
    (scene.project / "two/out").mkdir(parents=True)
    (scene.project / "two/out/new.txt").write_text("x")
    for image in (None, "python:3.12"):
        for more in (("two", "."), ("two/out/new.txt", "out/new.txt"), ("two/out/new.txt", "out/")):
            entries = (FileEntry("one", ".", scene.project), FileEntry(*more, scene.project))
            stimulus = Stimulus("x", ("x",), environment=EnvironmentSpec(files=entries, commands=("true",)))
            with tempfile.TemporaryDirectory(dir=scene.folder) as into:
                try:
                    write_environment(stimulus, Path(into), image)
                except UserError:
                    pass
    assert sorted(path.name for path in scene.outside.iterdir()) == [".git", "secret.txt"]


def test_git_of_the_working_folder_is_not_started(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.` in PATH must not make a file of the project our git."""
    (scene.project / "git").symlink_to(scene.run)
    monkeypatch.chdir(scene.project)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}:")
    assert "a\n" in stage(scene)


@pytest.mark.slow
def test_variables_of_git_do_not_reach_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "PAGER", "GIT_EDITOR", "GIT_SSH", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, str(scene.run))
    monkeypatch.setenv("GIT_DIR", str(scene.outside / ".git"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(scene.outside / ".git/objects"))
    monkeypatch.setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", str(scene.outside / ".git/objects"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor={scene.run}'")
    monkeypatch.setenv("GIT_TRACE", str(scene.canary))
    monkeypatch.setenv("GIT_TRACE2_EVENT", str(scene.canary))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(scene.folder / "template"))
    said = through_all(scene)
    assert all("a\n" in text for text in said[1:]), said


def test_the_scene_bites(scene: Scene) -> None:
    """Plain git does run such a command: the canary is alive."""
    scene.configure("remote.origin.url=REPOSITORY\nremote.origin.uploadpack=RUN", lazy=True)
    words = ["git", f"--git-dir={scene.repository}", "rev-parse", "--verify", "HEAD^{commit}"]
    subprocess.run(words, env={"PATH": os.defpath, "HOME": "/nonexistent"}, capture_output=True)
    assert not scene.untouched()
    scene.canary.unlink()
