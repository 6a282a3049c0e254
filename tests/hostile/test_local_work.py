"""Work carried out of local sandboxes, while an agent plants traps in it: in each way they are made."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import work
from sandboxes.errors import SandboxError
from sandboxes.local import provider as probe
from sandboxes.local import root_filesystem
from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import MOST_LISTED, CarryRules, Sandbox, WorkLimits
from sandboxes.testing.base import output_of
from sandboxes.testing.work import RULES, WorkContract
from sandboxes.types import HostSource, Mount, SandboxCreateRequest, SandboxLimits

MODES = [root_filesystem.SHIFTED, root_filesystem.PLAIN] if os.geteuid() == 0 else [root_filesystem.ROOTLESS]


@pytest.fixture(params=MODES)
async def provider(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalProvider]:
    found = probe.probe_machine()
    if found.problem is not None:
        pytest.skip(found.problem)
    if request.param == root_filesystem.SHIFTED and found.mode != root_filesystem.SHIFTED:
        pytest.skip("this machine has no idmapped mounts")
    monkeypatch.setattr(probe, "_found", [dataclasses.replace(found, mode=request.param)])
    async with LocalProvider(tmp_path / "state") as provider:
        yield provider
    assert not (tmp_path / "state").exists() or list((tmp_path / "state").iterdir()) == []


async def make(provider: LocalProvider, **fields: object) -> Sandbox:
    return await provider.create_sandbox(SandboxCreateRequest.model_validate({"network": "none"} | fields))


def open_files() -> list[str]:
    return os.listdir("/proc/self/fd")


async def test_nothing_stays_open(provider: LocalProvider, tmp_path: Path) -> None:
    async def cycle(number: int) -> None:
        one, other = await make(provider), await make(provider)
        await output_of(one, "mkdir -p /app/a/b; echo x > /app/a/b/c; ln -s /tests /app/l; rm /etc/passwd")
        packed = await one.pack_work(RULES, tmp_path / f"{number}.tar")
        await other.unpack_work(tmp_path / f"{number}.tar", RULES, packed.removed)
        await one.changes()
        await one.put_back(["/etc/passwd"], other)
        for sandbox in (one, other):
            await provider.delete_sandbox(sandbox.id)

    await cycle(0)
    before = len(open_files())
    for number in range(1, 4):
        await cycle(number)
    assert len(open_files()) == before


async def test_files_of_the_host_cannot_be_packed(provider: LocalProvider, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's secret")
    sandbox = await make(provider)
    await output_of(
        sandbox,
        f"mkdir -p /app; cd /app; ln -s {secret} file; ln -s {tmp_path} folder; ln -s /proc/self/root root;"
        " ln -s /proc/1/cwd/etc/shadow shadow; mkfifo pipe; ln /etc/hosts hard 2>/dev/null || true",
    )
    await sandbox.kill_all()
    packed = await sandbox.pack_work(CarryRules(), tmp_path / "work.tar")
    assert b"the host's secret" not in (tmp_path / "work.tar").read_bytes()
    with tarfile.open(tmp_path / "work.tar") as archive:
        found = {member.name: member for member in archive}
    assert found["app/file"].issym() and found["app/folder"].issym()
    assert "app/pipe" not in found
    assert {"/app/root", "/app/shadow", "/app/pipe"} <= {path for path, _ in packed.skipped}


async def test_a_bomb_of_names_is_cut(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider)
    script = "import os\nos.makedirs('/app/x', exist_ok=True)\nfor n in range(5000): open(f'/app/x/{n}', 'w')"
    await output_of(sandbox, f'/usr/bin/python3 -c "{script}"')
    packed = await sandbox.pack_work(RULES, tmp_path / "work.tar", WorkLimits(max_entries=100))
    assert packed.cut_short
    with tarfile.open(tmp_path / "work.tar") as archive:
        assert len(archive.getmembers()) == 100
    assert 5001 <= len(await sandbox.changes(RULES)) <= MOST_LISTED


async def test_a_bomb_of_fifos_and_links_is_cut(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider)
    script = "import os\nos.makedirs('/app/x', exist_ok=True)\nfor n in range(500): os.mkfifo(f'/app/x/{n}')"
    script += "\nfor n in range(500): os.symlink('/tests', f'/app/x/l{n}')"
    await output_of(sandbox, f'/usr/bin/python3 -c "{script}"')
    packed = await sandbox.pack_work(RULES, tmp_path / "work.tar", WorkLimits(max_entries=100))
    assert packed.cut_short
    assert packed.skipped_count <= 101


async def test_a_walk_looks_at_so_many_names_and_no_more(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_NAMES", 200)
    sandbox = await make(provider)
    await output_of(
        sandbox, "mkdir -p /app/x; cd /app/x; i=0; while [ $i -lt 500 ]; do : > $i; i=$((i+1)); done"
    )
    packed = await sandbox.pack_work(RULES, tmp_path / "work.tar")
    assert packed.cut_short
    assert packed.files <= 201


async def test_odd_times_are_carried(provider: LocalProvider, tmp_path: Path) -> None:
    one, other = await make(provider), await make(provider)
    times = (
        "@-5.25",
        "@0",
        "@8589934592",
        "@99999999999",
        "@9223372036",
        "@9223372037",
        "@4611686018427387904",
    )
    await output_of(one, "mkdir -p /app; cd /app; " + "; ".join(f"touch -d {at} f{at} || :" for at in times))
    packed = await one.pack_work(RULES, tmp_path / "work.tar")
    await other.unpack_work(tmp_path / "work.tar", RULES)
    assert packed.files >= 5
    look = "cd /app; stat -c '%n %Y' * | sort"
    assert await output_of(other, look) == await output_of(one, look)


async def test_what_a_network_needs_is_no_change(provider: LocalProvider) -> None:
    if "public" not in provider.capabilities().networks:
        pytest.skip("no networks here")
    sandbox = await make(provider, network="public")
    assert await sandbox.changes() == []


async def test_a_full_sandbox_says_so(provider: LocalProvider, tmp_path: Path) -> None:
    large = await make(provider, limits=SandboxLimits(memory_mb=256, disk_mb=64))
    small = await make(provider, limits=SandboxLimits(memory_mb=256, disk_mb=16))
    await output_of(large, "mkdir -p /app; head -c 40000000 /dev/zero > /app/zeros")
    await large.pack_work(RULES, tmp_path / "work.tar")
    with pytest.raises(SandboxError, match="No space"):
        await small.unpack_work(tmp_path / "work.tar", RULES)


async def test_an_archive_is_new_or_refused(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider)
    (tmp_path / "work.tar").write_text("kept")
    with pytest.raises((SandboxError, FileExistsError)):
        await sandbox.pack_work(RULES, tmp_path / "work.tar")
    assert (tmp_path / "work.tar").read_text() == "kept"


async def test_damaged_archives_are_refused(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider)
    for content in (b"x" * 512, b"\xff" * 2048, b"a" + bytes(511) + b"b" * 700):
        (tmp_path / "work.tar").write_bytes(content)
        with pytest.raises(SandboxError):
            await sandbox.unpack_work(tmp_path / "work.tar", RULES)


async def test_deleting_meanwhile_is_harmless(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider)
    await output_of(
        sandbox, "mkdir -p /app/x; cd /app/x; i=0; while [ $i -lt 2000 ]; do : > $i; i=$((i+1)); done"
    )
    packing = asyncio.create_task(sandbox.pack_work(RULES, tmp_path / "work.tar"))
    await asyncio.sleep(0)
    await provider.delete_sandbox(sandbox.id)
    try:
        await packing
    except SandboxError:
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="views and root file systems in folders need root")
async def test_views_are_work(provider: LocalProvider, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub/deep").mkdir(parents=True)
    for name in ("kept", "changed", "lost", "hidden", "sub/lost", "sub/deep/lost"):
        (folder / name).write_text(f"{name}\n")
    view = Mount(source=str(folder), target="/workspace", copy_on_write=True, hidden=("hidden", "later"))
    one, other = [await make(provider, mounts=(view,)) for _ in range(2)]
    if "/workspace" not in one.views:
        pytest.skip("no copy-on-write mounts on this file system")
    assert await one.changes() == []
    await output_of(
        one,
        "cd /workspace; echo x >> changed; rm -r lost sub; mkdir sub; echo new > sub/new; echo own > hidden",
    )
    found = {change.path: change.kind for change in await one.changes()}
    assert found == {
        "/workspace/changed": "changed",
        "/workspace/lost": "removed",
        "/workspace/sub/new": "added",
        "/workspace/sub/lost": "removed",
        "/workspace/sub/deep": "removed",
        "/workspace/hidden": "added",
    }
    packed = await one.pack_work(RULES, tmp_path / "work.tar")
    await other.unpack_work(tmp_path / "work.tar", RULES, packed.removed)
    look = "cd /workspace; ls -R; cat changed hidden sub/new"
    assert await output_of(other, look) == await output_of(one, look)
    assert sorted(path.name for path in folder.iterdir()) == ["changed", "hidden", "kept", "lost", "sub"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root file systems in folders need root")
async def test_what_we_put_into_a_root_file_system_is_no_change(
    provider: LocalProvider, tmp_path: Path
) -> None:
    root = tmp_path / "rootfs"
    for name in ("bin", "etc", "work"):
        (root / name).mkdir(parents=True)
    (root / "bin/busybox").write_bytes(
        Path("/bin/busybox").read_bytes() if Path("/bin/busybox").exists() else b""
    )
    (root / "work/file").write_text("x")
    request = {"source": HostSource(rootfs=str(root)), "separate_folders": ("/tests", "/logs/verifier")}
    sandbox = await make(provider, **request)
    assert await sandbox.changes() == []
    await sandbox.upload_file("/etc/hosts", b"127.0.0.1 evil\n")
    await sandbox.remove("/etc/hostname")
    await sandbox.remove("/app")
    await sandbox.upload_file("/work/file", b"y")
    found = {change.path: change.kind for change in await sandbox.changes()}
    assert found == {
        "/etc/hosts": "changed",
        "/etc/hostname": "removed",
        "/app": "removed",
        "/work/file": "changed",
    }
    other = await make(provider, **request)
    await sandbox.put_back(list(found), other)
    assert await sandbox.is_folder("/app")
    assert await sandbox.download_file("/work/file") == b"x"
    assert b"evil" not in await sandbox.download_file("/etc/hosts")


@pytest.mark.skipif(os.geteuid() != 0, reason="the way of kernels without idmapped mounts is root's")
class TestWithoutUserNamespace(WorkContract):
    @pytest.fixture
    async def provider(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalProvider]:
        found = dataclasses.replace(probe.probe_machine(), mode=root_filesystem.PLAIN)
        monkeypatch.setattr(probe, "_found", [found])
        async with LocalProvider(tmp_path / "state") as provider:
            yield provider
