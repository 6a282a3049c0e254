"""Agents and graders' programs that tamper with workspaces: none changes what another grader sees."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import Mount, SandboxCreateRequest, SandboxLimits
from tests.abilities import need_local_sandboxes
from tests.git_repository import git
from tests.hostile.test_local_hostile import provider as provider
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.benchmarks.eval_spec.workbench import ROOM, SandboxWorkbench
from valkyrie.grade.protocol import Program, ProgramResult
from valkyrie.specs.model import EnvironmentSpec, FileEntry, GraderSpec, Stimulus

LOOK = """for f in $(find . -type f | sort); do echo "$f $(cat "$f")"; done
ls /tests | wc -l; pgrep -c sleep || true"""
HIDDEN = "only-for-grading"
UNTOUCHED = "./a.txt a\n./sub/b.txt b\n1\n0\n"


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    need_local_sandboxes(tmp_path, network="none")
    async with LocalProvider(tmp_path / "state") as provider:
        yield provider


def silent(_stream: str, _text: str) -> None:
    return


def shell(script: str, **options: object) -> Program:
    return Program(("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]


@pytest.fixture
def stimulus(tmp_path: Path) -> Stimulus:
    files = {"a.txt": "a", "sub/b.txt": "b", "hidden.py": HIDDEN}
    for name, text in files.items():
        (tmp_path / "evals" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "evals" / name).write_text(text)
    entries = tuple(FileEntry(name, name, tmp_path / "evals") for name in ("a.txt", "sub/b.txt"))
    return Stimulus(
        "one", ("do it",), (GraderSpec("run-command"),) * 2, environment=EnvironmentSpec(files=entries)
    )


async def set_up(local: LocalProvider, stimulus: Stimulus, start: Path, **request: object) -> Sandbox:
    asked = SandboxCreateRequest(network="none", separate_folders=(ROOM,), **request)  # type: ignore[arg-type]
    sandbox = await local.create_sandbox(asked)
    await workspace.prepare(stimulus, EvalOptions(), sandbox, start, silent, needs_diff=True)
    return sandbox


async def after(bench: SandboxWorkbench, attack: str, **options: object) -> ProgramResult:
    """What a second program finds when a first one did its worst."""
    await bench.run(shell(attack, **options))
    return await bench.run(shell(LOOK))


ATTACKS = (
    "rm -rf /workspace; rm -rf ./*",
    "echo evil > /workspace/a.txt; echo evil > /workspace/planted; rm -r /workspace/sub",
    "mv /workspace /elsewhere; ln -s /etc /workspace",
    "setsid sh -c 'while :; do echo evil > /workspace/a.txt; sleep 0.01; done' >/dev/null 2>&1 &",
    "setsid sleep 300 >/dev/null 2>&1 & kill -9 $PPID",
    "cd /tests; for n in copy-1 workspace input.json x; do mkdir -p $n; ln -s /etc $n/l; done; chmod 000 .",
    "rm -rf /tests/* /tests; mkdir -p /tests; ln -s /workspace /tests/link",
    "chmod -R 000 . ; chattr +i a.txt 2>/dev/null; mkfifo pipe; sleep 300",
)


async def test_no_program_changes_what_the_next_one_sees(
    local: LocalProvider, stimulus: Stimulus, tmp_path: Path
) -> None:
    for number, attack in enumerate(ATTACKS):
        start = tmp_path / f"start-{number}"
        sandbox = await set_up(local, stimulus, start)
        bench = SandboxWorkbench(sandbox, stimulus, start)
        assert (await after(bench, attack, timeout=0.5)).stdout == UNTOUCHED, attack
        await local.delete_sandbox(sandbox.id)


async def test_a_program_that_fills_the_disk_leaves_room_for_the_next(
    local: LocalProvider, stimulus: Stimulus, tmp_path: Path
) -> None:
    sandbox = await set_up(local, stimulus, tmp_path / "start", limits=SandboxLimits(disk_mb=16))
    bench = SandboxWorkbench(sandbox, stimulus, tmp_path / "start")
    fill = "cat /dev/zero > full 2>/dev/null; cat /dev/zero > /workspace/full 2>/dev/null; true"
    assert (await after(bench, fill)).stdout == UNTOUCHED


async def test_an_agent_that_fills_the_disk_is_graded_all_the_same(
    local: LocalProvider, stimulus: Stimulus, tmp_path: Path
) -> None:
    sandbox = await set_up(local, stimulus, tmp_path / "start", limits=SandboxLimits(disk_mb=16))
    await sandbox.exec("cat /dev/zero > /full; cat /dev/zero > /tests/full")
    once = replace(stimulus, graders=stimulus.graders[:1])
    bench = SandboxWorkbench(sandbox, once, tmp_path / "start")
    assert (await bench.run(shell(LOOK))).stdout == UNTOUCHED


PLANTS = (
    "ln -s /etc /workspace/tests",
    "mkdir /workspace/tests; ln -s /etc/passwd /workspace/tests/hidden.py",
    "ln -s /workspace/tests /workspace/tests",
    "mkdir -p /workspace/tests/hidden.py/folder",
    "mkfifo /workspace/tests",
    "for i in 1 2 3; do ln -s /workspace /tests/copy-$i; done; ln -s /etc /tests/.hidden",
)


async def test_grading_files_go_through_no_planted_link(
    local: LocalProvider, stimulus: Stimulus, tmp_path: Path
) -> None:
    entry = FileEntry("hidden.py", "tests/hidden.py", tmp_path / "evals")
    stimulus = replace(stimulus, grading_files=(entry,))
    for number, plant in enumerate(PLANTS):
        start = tmp_path / f"start-{number}"
        sandbox = await set_up(local, stimulus, start)
        assert (await sandbox.exec(plant)).exit_code == 0
        bench = SandboxWorkbench(sandbox, stimulus, start)
        for _ in range(2):
            ran = await bench.run(shell("cat tests/hidden.py; ls -A /tests | wc -l"))
            assert ran.stdout == f"{HIDDEN}1\n", plant
        assert (await sandbox.exec(f"grep -s -l {HIDDEN} -r /etc /workspace")).output == "", plant
        assert (await sandbox.exec("head -c 5 /etc/passwd")).output == "root:", plant
        await local.delete_sandbox(sandbox.id)


async def test_a_sub_path_that_leads_out(local: LocalProvider, stimulus: Stimulus, tmp_path: Path) -> None:
    sandbox = await set_up(local, stimulus, tmp_path / "start")
    await sandbox.exec("ln -s / /workspace/root; ln -s sub /workspace/fine; ln -s .. /workspace/up")
    bench = SandboxWorkbench(sandbox, stimulus, tmp_path / "start")
    for sub_path in ("root", "up"):
        ran = await bench.run(shell("ls", sub_path=sub_path))
        assert (ran.exit_code, ran.stdout) == (127, "")
    assert (await bench.run(shell("ls", sub_path="fine"))).stdout == "b.txt\n"


async def test_what_an_agent_plants_stays_in_the_sandbox(
    local: LocalProvider, stimulus: Stimulus, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's secret")
    sandbox = await set_up(local, stimulus, tmp_path / "start")
    script = f"""cd /workspace; ln -s {secret} file; ln -s {tmp_path} folder; mkfifo pipe; rm a.txt
        ln -s /proc/self/root{secret} a.txt; truncate -s 900G sparse; mkdir deep; cd deep
        i=0; while [ $i -lt 200 ]; do mkdir d; cd d; i=$((i+1)); done; cd /workspace
        n=$(printf 'bad\\377name'); echo x > "$n"; echo new > new"""
    assert (await sandbox.exec(script)).exit_code == 0
    final = await workspace.snapshot(stimulus, EvalOptions(), sandbox, tmp_path / "start", silent)
    found = [path for path in final.rglob("*") if path.is_symlink() or path.is_file()]
    assert sorted(path.name for path in found) == ["b.txt", "new"]
    told = await workspace.diff(tmp_path / "start", final)
    assert "--- a/a.txt\n+++ /dev/null" in told and "+++ b/new" in told
    assert "Binary files a/sparse and b/sparse differ" in told
    assert "secret" not in told
    await workspace.materialise(final, tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()) == ["b.txt", "new"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes show folders that can be changed")
@pytest.mark.parametrize("owner", [0, 1234])
async def test_a_view_of_the_work_dir_with_a_git_that_works(
    provider: LocalProvider, tmp_path: Path, owner: int
) -> None:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    (work_dir / "a.txt").write_text("a\n")
    (work_dir / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("the host's secret")
    git(work_dir, "init", "--quiet", "--initial-branch=main", "--template=")
    git(work_dir, "add", "--all")
    git(work_dir, "commit", "--quiet", "--message=one")
    for path in (work_dir, *work_dir.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    before = {path: path.lstat().st_mtime_ns for path in (work_dir, *work_dir.rglob("*"))}
    stimulus, options = Stimulus("one", ("do it",)), EvalOptions(work_dir=str(work_dir))
    request = SandboxCreateRequest(network="none", mounts=workspace.mounts(stimulus, options))
    sandbox = await provider.create_sandbox(request)
    assert list(sandbox.views) == ["/workspace"]
    await workspace.prepare(stimulus, options, sandbox, tmp_path / "start", silent)
    done = await sandbox.exec(
        "cd /workspace && git status --short && echo b > a.txt && git -c user.name=a -c user.email=a@b"
        " commit -qam two && git log --format=%s && cat out; ls -d /tmp/* | wc -l"
    )
    assert done.output.startswith("two\none\n")
    assert "secret" not in done.output.replace("secret: No such file", "").replace(str(tmp_path), "")
    final = await workspace.snapshot(stimulus, options, sandbox, tmp_path / "start", silent)
    assert "-a\n+b\n" in await workspace.diff(tmp_path / "start", final)
    assert {path: path.lstat().st_mtime_ns for path in (work_dir, *work_dir.rglob("*"))} == before


async def test_a_folder_that_cannot_lie_below_changes_is_not_shown(provider: LocalProvider) -> None:
    view = Mount(source="/proc/sys/kernel", target="/workspace", copy_on_write=True)
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none", mounts=(view,)))
    found = await sandbox.exec("ls -A /workspace && touch /workspace/mine && ls -A /workspace")
    assert (list(sandbox.views), found.output) == ([], "mine\n")
