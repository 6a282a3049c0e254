"""Contract: files in and out while the agent plants traps, and folders of the host that a sandbox may change
for itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.errors import SandboxError, SandboxFileNotFoundError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.testing.base import ContractBase, output_of
from sandboxes.types import Command, CopyLimits, Mount


class FileContract(ContractBase):
    """What holds for every file operation."""

    async def test_any_bytes_round_trip(self, sandbox: Sandbox) -> None:
        content = bytes(range(256)) * 5
        await sandbox.upload_file("/app/new/folder/data.bin", content)
        assert await sandbox.download_file("/app/new/folder/data.bin") == content
        await sandbox.upload_file("/app/new/folder/data.bin", b"")
        assert await sandbox.download_file("/app/new/folder/data.bin") == b""

    async def test_big_files_round_trip_in_pieces(self, sandbox: Sandbox) -> None:
        piece = os.urandom(1 << 20)
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(64):
                sent.update(piece)
                yield piece

        await sandbox.upload_stream("/app/big.bin", pieces(), mode=0o755)
        count = 0
        async for chunk in sandbox.stream_download("/app/big.bin"):
            count += 1
            received.update(chunk)
        assert received.digest() == sent.digest()
        if self.executes:
            assert count > 1
            await output_of(sandbox, "test -x /app/big.bin")

    async def test_what_is_not_there(self, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/file", b"x")
        for path in ("/app/none", "/none/at/all", "/app", "/app/file/below"):
            with pytest.raises(SandboxFileNotFoundError):
                await sandbox.download_file(path)
        assert not await sandbox.is_folder("/app/file")
        assert not await sandbox.is_folder("/app/none")
        assert await sandbox.is_folder("/app")
        await sandbox.remove("/app/none")
        await sandbox.remove("/none/at/all")

    async def test_folders_round_trip(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "a/b").mkdir(parents=True)
        (source / "a/b/data").write_bytes(b"\0\1")
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        await sandbox.upload_file("/app/kept", b"kept")
        await sandbox.upload_folder(source, "/app")
        if self.executes:
            assert await output_of(sandbox, "cd /app && ./run.sh") == "ran\n"
        report = await sandbox.download_folder("/app", tmp_path / "out")
        assert (report.files, report.skipped_count) == (3, 0)
        assert (tmp_path / "out/a/b/data").read_bytes() == b"\0\1"
        assert (tmp_path / "out/run.sh").read_text().endswith("echo ran\n")
        assert (tmp_path / "out/kept").read_bytes() == b"kept"
        with pytest.raises(SandboxFileNotFoundError):
            await sandbox.download_folder("/none", tmp_path / "none")

    async def test_a_link_that_leaves_the_source_is_refused(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        (tmp_path / "source/link").symlink_to("/etc/passwd")
        with pytest.raises(SandboxError, match="link"):
            await sandbox.upload_folder(tmp_path / "source", "/app/in")

    async def test_listing_by_pattern(self, sandbox: Sandbox) -> None:
        for name in ("a.json", "b.json", "c.txt", "sub/d.json"):
            await sandbox.upload_file(f"/app/{name}", b"{}")
        assert await sandbox.list_files("/app/*.json") == ["/app/a.json", "/app/b.json"]
        assert await sandbox.list_files("/app/?.[tj]*") == ["/app/a.json", "/app/b.json", "/app/c.txt"]
        assert await sandbox.list_files("/app/*/d.json") == ["/app/sub/d.json"]
        assert await sandbox.list_files("/app/c.txt") == ["/app/c.txt"]
        assert await sandbox.list_files("/none/*") == []

    async def test_removing(self, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/folder/one/two", b"x")
        await sandbox.upload_file("/app/file", b"x")
        await sandbox.remove("/app/folder")
        await sandbox.remove("/app/file")
        assert not await sandbox.is_folder("/app/folder")
        assert await sandbox.list_files("/app/*") == []

    async def test_clearing_a_folder(self, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/folder/one/two", b"x")
        await sandbox.clear_folder("/app/folder")
        assert await sandbox.list_files("/app/**/*") == []
        await sandbox.upload_file("/app/file", b"x")
        await sandbox.clear_folder("/app/file")
        await sandbox.upload_file("/app/file/inside", b"y")
        assert await sandbox.list_files("/app/**/*") == ["/app/file/inside"]

    async def test_clearing_several_things(self, sandbox: Sandbox) -> None:
        for path in ("/app/folder/one", "/app/file", "/app/kept"):
            await sandbox.upload_file(path, b"x")
        await sandbox.clear(("/app/folder", "/app/new"), removed=("/app/file", "/app/none"))
        assert await sandbox.list_files("/app/*") == ["/app/kept"]
        assert await sandbox.list_files("/app/*/*") == []
        if self.executes:
            await output_of(sandbox, "test -d /app/folder -a -d /app/new")

    async def test_planted_links_are_not_read_through(self, sandbox: Sandbox, tmp_path: Path) -> None:
        self.needs("executes")
        secret = tmp_path / "host/secret"
        secret.parent.mkdir()
        secret.write_text("the host's secret")
        await _plant(sandbox, secret)
        for name in ("file", "relative", "passwd", "dangling", "fifo", "loop"):
            with pytest.raises(SandboxFileNotFoundError):
                await sandbox.download_file(f"/app/out/{name}")
        for name in ("folder/secret", "magic/secret", "climb/etc/hostname"):
            try:
                content = await sandbox.download_file(f"/app/out/{name}")
            except SandboxError:
                continue
            assert b"secret" not in content
        report = await sandbox.download_folder("/app/out", tmp_path / "copied")
        copied = [path for path in (tmp_path / "copied").rglob("*") if path.is_symlink() or path.is_file()]
        assert [path.name for path in copied] == ["plain"]
        assert report.files == 1
        assert report.skipped_count >= 9
        assert await sandbox.list_files("/app/out/*") == ["/app/out/plain"]
        assert not await sandbox.is_folder("/app/out/folder")
        for name in ("folder", "climb"):
            with pytest.raises(SandboxError):
                await sandbox.download_folder(f"/app/out/{name}", tmp_path / f"copied-{name}")

    async def test_planted_links_are_not_written_through(self, sandbox: Sandbox, tmp_path: Path) -> None:
        self.needs("executes")
        secret = tmp_path / "host/secret"
        secret.parent.mkdir()
        secret.write_text("the host's secret")
        source = tmp_path / "source"
        (source / "folder").mkdir(parents=True)
        (source / "folder/secret").write_text("overwritten")
        (source / "relative").write_text("uploaded")
        await _plant(sandbox, secret)
        await sandbox.upload_file("/app/out/file", b"uploaded")
        assert await sandbox.download_file("/app/out/file") == b"uploaded"
        try:
            await sandbox.upload_file("/app/out/folder/secret", b"overwritten")
        except SandboxError:
            pass
        await sandbox.upload_folder(source, "/app/out")
        assert await sandbox.download_file("/app/out/relative") == b"uploaded"
        assert await sandbox.download_file("/app/out/folder/secret") == b"overwritten"
        assert await sandbox.download_file("/app/out/plain") == b"plain"
        await _plant(sandbox, secret)
        await sandbox.remove("/app/out")
        assert secret.read_text() == "the host's secret"
        assert [path.name for path in secret.parent.iterdir()] == ["secret"]

    async def test_downloads_keep_to_their_limits(self, sandbox: Sandbox, tmp_path: Path) -> None:
        for number in range(5):
            await sandbox.upload_file(f"/app/out/{number}", b"x" * 1000)
        await sandbox.upload_file("/app/out/large", b"x" * 5000)
        limits = CopyLimits(max_bytes=3500, max_file_bytes=2000)
        report = await sandbox.download_folder("/app/out", tmp_path / "bytes", limits)
        assert (report.files, report.bytes, report.skipped_count) == (3, 3000, 3)
        report = await sandbox.download_folder("/app/out", tmp_path / "entries", CopyLimits(max_entries=4))
        assert report.files == 4
        assert len(list((tmp_path / "entries").iterdir())) == 4
        assert any("more than 4" in reason for _, reason in report.skipped)

    async def test_traps_of_size(self, sandbox: Sandbox, tmp_path: Path) -> None:
        self.needs("executes")
        await output_of(
            sandbox,
            "mkdir -p /app/out/many /app/out/nest; cd /app/out; truncate -s 10G sparse || true;"
            " i=0; while [ $i -lt 300 ]; do : > many/$i; i=$((i+1)); done;"
            " cd nest; i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done",
        )
        report = await sandbox.download_folder("/app/out", tmp_path / "out", CopyLimits(max_entries=2000))
        assert report.files == 300
        assert "sparse" not in [path.name for path in (tmp_path / "out").iterdir()]
        await sandbox.remove("/app/out")
        assert not await sandbox.is_folder("/app/out")

    async def test_names_that_are_not_utf8(self, sandbox: Sandbox, tmp_path: Path) -> None:
        self.needs("executes")
        script = r"""mkdir -p /app/out; cd /app/out; n=$(printf 'bad\377name'); echo x > "$n"; mkdir "d$n";
            echo x > "d$n/file"; echo y > good"""
        await sandbox.run(Command.shell(script))
        report = await sandbox.download_folder("/app/out", tmp_path / "out")
        json.dumps(report.skipped).encode()
        "".join(path for path, _ in report.skipped).encode()
        assert (tmp_path / "out/good").read_text() == "y\n"
        assert "/app/out/good" in await sandbox.list_files("/app/out/*")
        "".join(await sandbox.list_files("/app/**")).encode()
        await sandbox.remove("/app/out")


async def _plant(sandbox: Sandbox, secret: Path) -> None:
    """Every kind of trap, in /app/out, beside one plain file."""
    # The host's path is put together inside, because a provider may translate paths it sees.
    await output_of(
        sandbox,
        f"""host=$(printf %s%s / {str(secret.parent)[1:]})
            rm -rf /app/out; mkdir -p /app/out; cd /app/out; printf plain > plain
            ln -s "$host/secret" file; ln -s "$host" folder; ln -s plain relative; ln -s nowhere dangling
            ln -s /etc/passwd passwd; ln -s loop loop; mkfifo fifo
            ln -s ../../../../../../../../../../../.. climb; ln -s "/proc/self/root$host" magic""",
    )


# Contract: folders of the host that a sandbox may change for itself.

VIEW = "/workspace"


class MountContract(ContractBase):
    """What holds for copy-on-write mounts, and where a provider has none."""

    async def test_a_view_shows_the_folder_or_nothing(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        sandbox = await self._viewing(provider, _folder(tmp_path))
        files = await sandbox.list_files(f"{VIEW}/**/*")
        if VIEW in sandbox.views:
            assert files == [f"{VIEW}/kept", f"{VIEW}/sub/lost"]
        else:
            assert list(sandbox.views) == files == []
        assert bool(sandbox.views) <= provider.capabilities().copy_on_write

    async def test_changes_to_a_view_stay_in_the_sandbox(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        folder = _folder(tmp_path)
        before = _state(folder)
        sandbox = await self._viewing(provider, folder)
        if VIEW not in sandbox.views:
            pytest.skip("the provider has no copy-on-write mounts here")
        await output_of(
            sandbox,
            f"cd {VIEW}; echo more >> kept; chmod 777 kept .; rm -r sub; echo new > new; mkdir made;"
            " mv kept made; touch -d 2001-01-01 made; ln -s new link; rm outside; test ! -e sub/lost",
        )
        await sandbox.upload_file(f"{VIEW}/sub/uploaded", b"x")
        assert _state(folder) == before
        assert await output_of(sandbox, f"cat {VIEW}/made/kept") == "kept\nmore\n"
        other = await self._viewing(provider, folder)
        assert await other.list_files(f"{VIEW}/**/*") == [f"{VIEW}/kept", f"{VIEW}/sub/lost"]
        await provider.delete_sandbox(sandbox.id)
        await provider.delete_sandbox(other.id)
        assert _state(folder) == before

    async def test_links_in_a_view_lead_nowhere_on_the_host(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        sandbox = await self._viewing(provider, _folder(tmp_path))
        if VIEW not in sandbox.views:
            pytest.skip("the provider has no copy-on-write mounts here")
        assert "secret" not in await output_of(sandbox, f"cat {VIEW}/outside 2>/dev/null || true")

    async def test_what_is_hidden_in_a_view_is_not_there_though_it_changes(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        folder = _folder(tmp_path)
        sandbox = await self._viewing(provider, folder, hidden=("sub/lost", "later", "sub/lost/below"))
        if VIEW not in sandbox.views:
            pytest.skip("the provider has no copy-on-write mounts here")
        (folder / "later").mkdir()
        (folder / "later" / "secret").write_text("secret\n")
        (folder / "sub" / "lost").write_text("lost again\n")
        assert await sandbox.list_files(f"{VIEW}/**/*") == [f"{VIEW}/kept"]
        assert await output_of(sandbox, f"cat {VIEW}/later/secret {VIEW}/sub/lost 2>/dev/null || true") == ""
        await output_of(
            sandbox, f"mkdir {VIEW}/later; echo own > {VIEW}/later/own; echo own > {VIEW}/sub/lost"
        )
        assert await sandbox.list_files(f"{VIEW}/later/*") == [f"{VIEW}/later/own"]
        assert (folder / "sub" / "lost").read_text() == "lost again\n"

    async def _viewing(
        self, provider: SandboxProvider, folder: Path, hidden: tuple[str, ...] = ()
    ) -> Sandbox:
        view = Mount(source=str(folder), target=VIEW, copy_on_write=True, hidden=hidden)
        return await provider.create_sandbox(self.request(mounts=(view,)))


def _folder(top: Path) -> Path:
    folder = top / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "kept").write_text("kept\n")
    (folder / "sub" / "lost").write_text("lost\n")
    (top / "host").write_text("secret\n")
    (folder / "outside").symlink_to(top / "host")
    return folder


def _state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in (folder, *folder.rglob("*"))
    }
