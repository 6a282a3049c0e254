"""Contract: what changed in a sandbox is known, and carried into another one as data."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxes.protocol import CarryRules, PackedWork, Sandbox, SandboxProvider, WorkLimits
from sandboxes.testing.base import ContractBase, output_of

RULES = CarryRules(
    carried=("/", "/etc/passwd", "/usr/local/share/game"),
    left=("/usr", "/bin", "/sbin", "/lib", "/etc", "/opt", "/var/lib"),
    homes=("/root", "/home/*"),
    forbidden=("/tests", "/solution", "/logs/verifier"),
)
SYSTEM_FILE = "/etc/passwd"
"""A file every image has, and that a sandbox may change wherever there is one."""


@dataclass(frozen=True, slots=True)
class Carried:
    """One sandbox's work in another one."""

    packed: PackedWork
    archive: Path
    target: Sandbox

    def members(self) -> Mapping[str, tarfile.TarInfo]:
        """Return what the archive holds, by absolute path."""
        with tarfile.open(self.archive) as archive:
            return {f"/{member.name}".rstrip("/"): member for member in archive}

    def skipped(self) -> set[str]:
        """Return the paths that stayed behind."""
        return {path for path, _ in self.packed.skipped}


class WorkContract(ContractBase):
    """What holds where `Capabilities.carries_work` says so."""

    async def carry(
        self,
        provider: SandboxProvider,
        folder: Path,
        script: str,
        *,
        setup: str = "mkdir -p /app",
        rules: CarryRules = RULES,
        limits: WorkLimits | None = None,
    ) -> Carried:
        """Set two sandboxes up, run the script in the first, and carry its work into the second."""
        self.needs_work(provider)
        source, target = await self.pair(provider, setup)
        await output_of(source, script)
        await source.kill_all()
        archive = folder / "work.tar"
        packed = await source.pack_work(rules, archive, limits)
        await target.unpack_work(archive, rules, packed.removed)
        return Carried(packed, archive, target)

    async def pair(self, provider: SandboxProvider, setup: str) -> tuple[Sandbox, Sandbox]:
        """Make two sandboxes that are set up the same way."""
        made = [await provider.create_sandbox(self.request()) for _ in range(2)]
        for sandbox in made:
            await output_of(sandbox, setup)
        return made[0], made[1]

    def needs_work(self, provider: SandboxProvider) -> None:
        """Skip the test where the provider does not carry work."""
        self.needs("executes")
        if not provider.capabilities().carries_work:
            pytest.skip("the provider does not carry work")

    async def test_a_new_sandbox_has_no_changes(self, provider: SandboxProvider, tmp_path: Path) -> None:
        self.needs_work(provider)
        sandbox = await provider.create_sandbox(self.request(separate_folders=("/tests", "/logs/verifier")))
        assert await sandbox.changes() == []
        packed = await sandbox.pack_work(RULES, tmp_path / "work.tar")
        assert (packed.files, packed.bytes, packed.removed, packed.left_count) == (0, 0, [], 0)
        assert packed.skipped == []

    async def test_changes_are_told_by_path_and_kind(self, provider: SandboxProvider) -> None:
        self.needs_work(provider)
        sandbox = await provider.create_sandbox(self.request())
        await output_of(
            sandbox,
            "mkdir -p /app/sub; echo x > /app/sub/new; echo x >> /etc/passwd; rm -r /usr/local/share;"
            " echo x > /usr/local/bin/tool",
        )
        found = {change.path: change.kind for change in await sandbox.changes()}
        assert found["/app/sub/new"] == "added"
        assert found[SYSTEM_FILE] == "changed"
        assert found["/usr/local/share"] == "removed"
        assert found["/usr/local/bin/tool"] == "added"
        assert not {"/", "/etc", "/usr", "/usr/local", "/usr/local/bin"} & set(found)
        carried = {change.path for change in await sandbox.changes(RULES)}
        assert carried == set(found) - {"/usr/local/share", "/usr/local/bin/tool"}

    async def test_files_and_folders_are_carried_as_they_are(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; echo hello > plain; printf 'a\\0b' > binary; : > empty; mkdir -p deep/er;"
            " echo x > deep/er/f;"
            " mkdir none; echo '#!/bin/sh' > run; chmod 755 run; echo x > closed; chmod 000 closed;"
            " mkdir shut; echo x > shut/in; chmod 700 shut; touch -d 2001-02-03T04:05:06Z plain;"
            " ln plain hard; echo more >> /etc/passwd; mkdir /data; echo x > /data/f;"
            " echo x > \"$(printf 'b\\377d')\"",
        )
        assert done.packed.skipped == []
        assert not done.packed.cut_short
        look = (
            "cd /app; cat plain hard deep/er/f; od -An -tx1 binary; test -f empty -a ! -s empty;"
            " stat -c '%n %a %F' run closed shut none; stat -c %Y plain; tail -n 1 /etc/passwd; cat /data/f;"
            " ls \"$(printf 'b\\377d')\" | wc -l"
        )
        assert (await output_of(done.target, look)).splitlines() == [
            *("hello", "hello", "x", " 61 00 62"),
            *("run 755 regular file", "closed 0 regular file", "shut 700 directory", "none 755 directory"),
            *("981173106", "more", "x", "1"),
        ]

    async def test_what_was_removed_is_removed(self, provider: SandboxProvider, tmp_path: Path) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "rm -r /etc/passwd /app/setup /app/folder; echo x > /app/kept",
            setup="mkdir -p /app/folder; echo x > /app/setup; echo x > /app/folder/in; echo x > /app/stays",
        )
        assert done.packed.removed == [SYSTEM_FILE]
        assert await done.target.list_files("/app/**/*") == ["/app/kept", "/app/stays"]
        assert not await done.target.list_files(SYSTEM_FILE)
        assert not await done.target.is_folder("/app/folder")

    async def test_the_set_up_is_changed_and_not_repeated(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "echo solved > /app/file; chmod 700 /app/sub; rm /app/sub/a; mv /app/sub/b /app/c",
            setup="mkdir -p /app/sub; echo open > /app/file; echo a > /app/sub/a; echo b > /app/sub/b",
        )
        look = "cat /app/file /app/c; ls /app/sub; stat -c %a /app/sub"
        assert await output_of(done.target, look) == "solved\nb\n700\n"

    async def test_folders_without_rights_are_no_obstacle(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; rm -f closed/sub/file shut/lost; echo new > shut/new; rm -r gone; echo x > open",
            setup="mkdir -p /app/closed/sub /app/shut /app/gone/sub; cd /app; echo x > closed/sub/file;"
            " echo x > shut/lost; echo x > shut/kept; echo x > gone/sub/file;"
            " chmod 000 closed/sub closed gone/sub; chmod 555 shut gone",
        )
        look = "cd /app; ls -A . shut closed/sub; stat -c %a shut closed closed/sub; cat shut/new"
        expected = ". closed open shut closed/sub: shut: kept new 555 0 0 new"
        found = (await output_of(done.target, look)).replace(".:", ".").split()
        assert sorted(found) == sorted(expected.split())

    async def test_folders_and_files_change_places(self, provider: SandboxProvider, tmp_path: Path) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; rm file; mkdir file; echo x > file/in; rm -r folder; echo now > folder;"
            " rm -r linked; ln -s file linked; rm link; mkdir link; echo x > link/in",
            setup="mkdir -p /app/folder/deep /app/linked/deep; cd /app; echo x > file;"
            " echo x > folder/deep/in;"
            " echo x > linked/deep/in; ln -s folder link",
        )
        look = "cd /app; cat file/in folder link/in; readlink linked; ls -A"
        expected = "x\nnow\nx\nfile\nfile\nfolder\nlink\nlinked\n"
        assert await output_of(done.target, look) == expected

    async def test_a_folder_made_anew_hides_what_was_in_it(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        rules = CarryRules(carried=("/", "/usr/local/share"), left=("/usr",))
        done = await self.carry(
            provider,
            tmp_path,
            "rm -r /usr/local/share; mkdir /usr/local/share; echo x > /usr/local/share/new",
            rules=rules,
        )
        assert await output_of(done.target, "ls -A /usr/local/share") == "new\n"

    async def test_a_system_file_replaced_by_a_folder(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider, tmp_path, "rm /etc/passwd; mkdir /etc/passwd; echo x > /etc/passwd/in"
        )
        assert await output_of(done.target, "cat /etc/passwd/in") == "x\n"

    async def test_links_are_carried_as_links(self, provider: SandboxProvider, tmp_path: Path) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; echo x > file; ln -s file near; ln -s /app/file far; ln -s none dangling;"
            " ln -s /etc/hostname host; ln -s loop loop; ln -s ../app/near chain; mkdir sub; ln -s .. sub/up",
        )
        names = ("near", "far", "dangling", "host", "chain", "sub/up")
        look = (
            f"cd /app; for one in {' '.join(names)}; do readlink $one; done; cat near far chain sub/up/file"
        )
        expected = ["file", "/app/file", "none", "/etc/hostname", "../app/near", "..", "x", "x", "x", "x"]
        assert (await output_of(done.target, look)).split() == expected
        assert done.skipped() <= {"/app/loop"}

    async def test_links_to_forbidden_places_stay_behind(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        links = {
            "answer": "/tests/expected.json",
            "relative": "../tests/expected.json",
            "folder": "/tests",
            "reward": "/logs/verifier/reward.txt",
            "top": "/",
            "logs": "/logs",
            "first": "/app/second",
            "second": "third",
            "third": "sub/../answer",
            "climb": "sub/../../../../tests/x",
            "self": "/proc/self/root/tests/expected.json",
            "one": "/proc/1/root/tests",
            "cwd": "/proc/self/cwd/tests",
            "double": "//tests//./x",
            "sub/up": "../../tests/x",
            "through": "sub/top/tests/x",
            "sub/top": "../..",
            "gone": "/app/none/../../tests/x",
        }
        script = "mkdir -p /app/sub; cd /app; " + "; ".join(f"ln -s '{to}' {at}" for at, to in links.items())
        done = await self.carry(provider, tmp_path, f"{script}; echo x > file; ln -s file fine")
        assert done.skipped() == {f"/app/{name}" for name in links}
        assert await output_of(done.target, "cd /app; ls; ls sub; readlink fine") == "file\nfine\nsub\nfile\n"

    async def test_a_link_that_only_the_changed_system_makes_harmless_stays_behind(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        # Where the agent is, the way leads to its own folder; where nobody changed it, to the tests.
        done = await self.carry(
            provider,
            tmp_path,
            "mkdir -p /app/a/b/c/d /app/a/tests; rm -rf /usr/local/share;"
            " ln -s /app/a/b/c/d /usr/local/share;"
            " ln -s /usr/local/share/../../../tests/x /app/link; echo x > /app/file",
        )
        assert await output_of(done.target, "test ! -L /app/link; cat /app/file") == "x\n"

    async def test_only_files_folders_and_links_are_carried(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; mkfifo fifo; echo x > file; chmod 6755 file; mkdir sticky; chmod 3777 sticky;"
            " perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(q(sock))) or die'"
            " || python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
        )
        assert {"/app/fifo", "/app/sock"} <= done.skipped()
        look = "cd /app; ls; stat -c %a file sticky"
        assert await output_of(done.target, look) == "file\nsticky\n755\n1777\n"
        assert all(not member.mode & 0o6000 for member in done.members().values())

    async def test_owners_are_kept(self, provider: SandboxProvider, tmp_path: Path) -> None:
        self.needs("changes_users")
        done = await self.carry(
            provider,
            tmp_path,
            "cd /app; echo x > file; mkdir folder; ln -s file link; chown 1234:4321 file folder;"
            " chown -h 7:8 link",
        )
        assert (done.members()["/app/file"].uid, done.members()["/app/file"].gid) == (1234, 4321)
        look = "cd /app; stat -c '%u %g' file folder link"
        assert await output_of(done.target, look) == "1234 4321\n1234 4321\n7 8\n"

    async def test_the_system_and_hidden_entries_of_homes_are_left(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "echo x > /root/.profile; mkdir -p /root/.config/app /home/me/.ssh /usr/local/share/game;"
            " echo x > /root/.config/app/f; echo x > /home/me/.ssh/f; echo x > /home/me/seen;"
            " echo x > /root/seen;"
            " echo x > /usr/local/bin/dirname; ln -s /app /etc/ld.so.preload; echo x > /opt/tool;"
            " mkdir /opt/folder; echo x > /usr/local/share/game/level; echo x > /solution/s; mkdir -p /tests;"
            " echo x > /tests/t",
            setup="mkdir -p /app /solution",
        )
        left = {change.path: change.kind for change in done.packed.left}
        for path in (
            *("/root/.profile", "/root/.config/app/f", "/home/me/.ssh/f", "/usr/local/bin/dirname"),
            *("/etc/ld.so.preload", "/opt/tool", "/opt/folder", "/solution/s"),
        ):
            assert left[path] in ("added", "changed")
        assert done.packed.left_count >= 8
        look = (
            "cat /root/seen /home/me/seen /usr/local/share/game/level; test ! -e /opt/tool;"
            " test ! -e /usr/local/bin/dirname; test ! -L /etc/ld.so.preload; test ! -e /home/me/.ssh;"
            " test ! -e /solution/s; test ! -e /tests/t; test ! -e /root/.config/app"
        )
        assert await output_of(done.target, look) == "x\nx\nx\n"
        assert {"/usr/local/share/game/level", "/root/seen"} <= set(done.members())

    async def test_kernel_folders_are_no_work(self, provider: SandboxProvider, tmp_path: Path) -> None:
        done = await self.carry(provider, tmp_path, "echo x > /run/f; echo x > /dev/shm/f; echo x > /app/f")
        assert [path for path in done.members() if path.startswith(("/run", "/dev"))] == []
        assert not [one for one in done.packed.left if one.path.startswith(("/run/", "/dev/", "/proc/"))]

    async def test_work_keeps_to_its_limits(self, provider: SandboxProvider, tmp_path: Path) -> None:
        script = (
            "cd /app; for n in 1 2 3 4 5; do head -c 1000 /dev/zero > f$n; done; truncate -s 10G huge || true"
        )
        files = WorkLimits(max_bytes=3500, max_file_bytes=2000)
        done = await self.carry(provider, tmp_path, script, limits=files)
        assert (done.packed.files, done.packed.bytes, done.packed.cut_short) == (3, 3000, True)
        assert "/app/huge" in done.skipped() or not await done.target.list_files("/app/huge")
        (tmp_path / "more").mkdir()
        done = await self.carry(
            provider, tmp_path / "more", f"{script}; rm -f huge", limits=WorkLimits(max_entries=4)
        )
        assert done.packed.cut_short
        assert len(done.members()) == 4

    async def test_hard_links_count_each_time(self, provider: SandboxProvider, tmp_path: Path) -> None:
        script = "cd /app; head -c 1000 /dev/zero > f; for n in 1 2 3 4 5; do ln f f$n; done"
        done = await self.carry(provider, tmp_path, script, limits=WorkLimits(max_bytes=3500))
        assert (done.packed.files, done.packed.cut_short) == (3, True)

    async def test_deep_and_many(self, provider: SandboxProvider, tmp_path: Path) -> None:
        done = await self.carry(
            provider,
            tmp_path,
            "mkdir /app/many /app/nest; cd /app/many; i=0; while [ $i -lt 500 ]; do : > $i; i=$((i+1)); done;"
            " cd ../nest; i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done; : > end",
        )
        assert await output_of(done.target, "ls /app/many | wc -l") == "500\n"

    async def test_the_same_work_is_the_same_archive(self, provider: SandboxProvider, tmp_path: Path) -> None:
        self.needs_work(provider)
        sandbox = await provider.create_sandbox(self.request())
        await output_of(
            sandbox, "mkdir -p /app/b /app/a; for n in z y x; do echo $n > /app/$n; done; : > /app/a/f"
        )
        for name in ("one", "two"):
            await sandbox.pack_work(RULES, tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    async def test_an_archive_that_names_other_places_is_refused(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        self.needs_work(provider)
        sandbox = await provider.create_sandbox(self.request())
        for name in ("app/../etc/evil", "../evil", "usr/local/evil", "tests/evil"):
            with tarfile.open(tmp_path / "evil.tar", "w") as archive:
                archive.addfile(tarfile.TarInfo(name))
            try:
                await sandbox.unpack_work(tmp_path / "evil.tar", RULES)
            except Exception as error:  # noqa: BLE001 - refused or left out, both will do
                assert "evil" in str(error)
        assert (
            await output_of(sandbox, "ls /etc/evil /evil /usr/local/evil /tests/evil 2>/dev/null || :") == ""
        )

    async def test_a_member_below_a_link_of_the_archive_is_not_written_through_it(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        self.needs_work(provider)
        sandbox = await provider.create_sandbox(self.request())
        with tarfile.open(tmp_path / "evil.tar", "w") as archive:
            link = tarfile.TarInfo("app/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/usr/local/bin"
            archive.addfile(link)
            archive.addfile(tarfile.TarInfo("app/link/evil"))
        try:
            await sandbox.unpack_work(tmp_path / "evil.tar", RULES)
        except Exception as error:  # noqa: BLE001 - refused or written elsewhere, both will do
            assert "evil" in str(error)
        assert await output_of(sandbox, "ls /usr/local/bin/evil 2>/dev/null || :") == ""

    async def test_put_back_makes_the_system_what_it_was(self, provider: SandboxProvider) -> None:
        self.needs_work(provider)
        sandbox, pristine = await self.pair(provider, "true")
        look = (
            "cd /usr/local/share; find . -exec stat -c '%n %a %u %g %F' {} + | sort | cksum;"
            " find . -type f -exec cksum {} + | sort | cksum; cksum < /etc/passwd;"
            " stat -c '%a %u %g' /etc/passwd /usr/local/bin; ls -A /usr/local /usr/local/bin | cksum"
        )
        before = await output_of(sandbox, look)
        await output_of(
            sandbox,
            "rm /etc/passwd; ln -s /app/evil /etc/passwd; echo x > /usr/local/bin/dirname; mkdir -p /app;"
            " chmod 777 /usr/local/bin; rm -r /usr/local/share; ln -s /app /usr/local/share;"
            " mkdir /usr/local/dir;"
            " echo x > /usr/local/dir/in; echo x > /app/kept",
        )
        await sandbox.kill_all()
        changed = [one.path for one in await sandbox.changes() if not one.path.startswith("/app")]
        await sandbox.put_back(changed, pristine)
        assert await output_of(sandbox, look) == before
        assert await output_of(sandbox, "cat /app/kept; ls -A /app") == "x\nkept\n"

    async def test_put_back_leaves_the_rest_alone(self, provider: SandboxProvider) -> None:
        self.needs_work(provider)
        sandbox, pristine = await self.pair(provider, "true")
        await output_of(
            sandbox, "echo a > /usr/local/bin/a; echo b > /usr/local/bin/b; echo x >> /etc/passwd"
        )
        await sandbox.kill_all()
        await sandbox.put_back(["/usr/local/bin/a", "/usr/local/none"], pristine)
        look = "ls /usr/local/bin/a 2>/dev/null; cat /usr/local/bin/b; tail -n 1 /etc/passwd"
        assert await output_of(sandbox, look) == "b\nx\n"
        await sandbox.put_back([SYSTEM_FILE], pristine)
        assert await output_of(sandbox, "tail -n 1 /etc/passwd") != "x\n"

    async def test_put_back_does_not_write_through_links(self, provider: SandboxProvider) -> None:
        self.needs_work(provider)
        sandbox, pristine = await self.pair(provider, "true")
        await output_of(
            sandbox, "mkdir -p /app/share; rm -r /usr/local/share; ln -s /app/share /usr/local/share"
        )
        await sandbox.kill_all()
        await sandbox.put_back(["/usr/local/share/x", "/usr/local/share"], pristine)
        assert await sandbox.is_folder("/usr/local/share")
        assert await sandbox.list_files("/app/**/*") == []
