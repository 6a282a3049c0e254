"""Contract: folders of the host that a sandbox may change for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.testing.base import ContractBase, output_of
from sandboxes.types import Mount

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
