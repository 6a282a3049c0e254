"""The two things every provider offers: sandboxes, and a way to get them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandboxes.errors import SandboxCommandError, SandboxError, SandboxUnsupportedError, SandboxUserError
from sandboxes.values import (
    Capabilities,
    Command,
    CopyLimits,
    CopyReport,
    ExecResult,
    ImageDefaults,
    OutputSink,
    StreamName,
)
from sandboxes.work import CarryRules, ChangedPath, PackedWork, WorkLimits

if TYPE_CHECKING:
    # Requests are validated models; commands that only look at a store need not pay for pydantic.
    from sandboxes.types import (
        Resources,
        SandboxCapacityDomain,
        SandboxCreateRequest,
        SandboxQuery,
        SandboxSource,
    )


class Sandbox(ABC):
    """One isolated place. Subclasses need not call `super().__init__`.

    `exec`, `command`, `upload_file` and `download_file` are the portable core. Everything else has a
    default built on them or says plainly that it is unsupported.
    """

    __slots__ = ()

    labels: Mapping[str, str] | None = None
    created_at: datetime | None = None
    views: Sequence[str] = ()
    """Targets of the copy-on-write mounts that are there."""
    image_defaults: ImageDefaults | None = None
    """What its image says, never what is in the sandbox now; None where the provider does not tell."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The provider's id of this sandbox."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name it was asked for under, or the id."""

    @property
    @abstractmethod
    def state(self) -> str:
        """`started`, `stopped` or `deleted`."""

    @abstractmethod
    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        """Run a shell command to its end. Timeout gives exit code 124."""

    @abstractmethod
    def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        """Yield the command's output as it comes; a non-zero exit raises SandboxCommandError after it."""

    @abstractmethod
    async def upload_file(self, path: str, content: bytes) -> None:
        """Write one file, making its parent folders."""

    @abstractmethod
    async def download_file(self, path: str) -> bytes:
        """Read one regular file; raises when there is none."""

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        """Run `command`, hand its output to `sink` as it comes, return the exit code.

        124 after a timeout, 137 when killed. Every process the command left in its own tree is dead on
        a timeout or a cancellation; background processes of a command that ended by itself live on.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot stream stdout and stderr apart")

    async def start_entrypoint(self, env: Mapping[str, str], sink: OutputSink | None = None) -> None:
        """Run the image's entrypoint in the background, where there is one, as its author meant it.

        Returns when it has started the command it was given, which does nothing, or has taken its time over
        it. Raises SandboxImageError when it ended before. For a sandbox nobody hostile was in yet.
        """
        _ = env, sink

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        """Yield one regular file in pieces."""
        yield await self.download_file(path)

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        """Write one file from pieces."""
        _ = mode
        await self.upload_file(path, b"".join([chunk async for chunk in chunks]))

    async def upload_folder(self, source: Path, path: str) -> None:
        """Copy a host folder into the sandbox (made if missing, merged if present), modes kept.

        Links in `source` that leave it are refused. What the agent planted at `path` is never followed.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot upload folders")

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        """Copy a folder's regular files out to a new host folder, within limits.

        Links, devices, sockets and fifos are left behind and reported; nothing is ever read through a
        link, so the host's own files cannot be named from inside.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot download folders")

    async def list_files(self, pattern: str) -> list[str]:
        """Absolute paths of regular files that match a glob (`*`, `?`, `[…]`), links not followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot list files")

    async def is_folder(self, path: str) -> bool:
        """Return whether a real folder (not a link) is at `path`."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot inspect paths")

    async def remove(self, path: str) -> None:
        """Delete a file, link or whole folder at `path`; nothing there is fine. Links are not followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot remove files")

    async def clear_folder(self, path: str) -> None:
        """Leave an empty real folder at `path`; a link or file there is replaced, never followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot clear folders")

    async def give_folder(self, path: str, user: str) -> None:
        """Make `user`, a name or number inside, the owner of the real folder at `path`, and of nothing in it.

        SandboxUserError when the sandbox has no such user.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot change owners")

    async def clear(self, folders: Sequence[str], removed: Sequence[str] = ()) -> None:
        """`clear_folder` of each folder, then `remove` of the others."""
        for path in folders:
            await self.clear_folder(path)
        for path in removed:
            await self.remove(path)

    async def changes(self, rules: CarryRules | None = None) -> list[ChangedPath]:
        """Return what differs from what the sandbox was made from, by path, at most MOST_LISTED of them.

        `rules`: only what they carry. For a sandbox whose processes are dead, or that nobody hostile
        was in yet.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot tell what changed in it")

    async def pack_work(
        self, rules: CarryRules, archive: Path, limits: WorkLimits | None = None
    ) -> PackedWork:
        """Pack all that changed and that the rules carry into a new tar file of the host.

        Members have absolute paths without the leading slash, their owner's ids as inside the sandbox, no
        set-id bits, no extended attributes. Regular files, folders and links only; nothing is ever read
        through a link. For a sandbox whose processes are dead.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot pack what changed in it")

    async def unpack_work(self, archive: Path, rules: CarryRules, removed: Sequence[str] = ()) -> None:
        """Put packed work into this sandbox, which was made and set up like the one it comes from.

        At the paths the rules carry, this sandbox is like the other one afterwards: `removed` paths go, and
        so does what its own set-up added there and the archive does not have. For a sandbox in which nobody
        hostile was yet.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot unpack work")

    async def put_back(self, paths: Sequence[str], pristine: Sandbox) -> None:
        """Make each path what it is in `pristine`, a sandbox made from the same source that nothing ran in:
        changed and removed ones are restored, added ones removed. Processes of this sandbox are dead."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot restore files")

    async def kill_all(self) -> None:
        """End every process in the sandbox, however it hid; the sandbox itself stays usable."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot kill processes")

    def shell_argv(self, cwd: str = "/") -> list[str]:
        """The host command that opens an interactive shell in here, in the folder `cwd` if it is there."""
        _ = cwd
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot open a shell")

    async def modify_egress_rules(self, rules: list[str]) -> None:
        """Allow only these hosts."""
        raise SandboxError(f"{type(self).__name__} cannot restrict egress to a list (asked for {rules})")

    async def clear_egress_rules(self) -> None:
        """Lift what `modify_egress_rules` set."""
        raise SandboxError(f"{type(self).__name__} has no egress rules")


class RunnableSandbox(Sandbox):
    """A sandbox whose one primitive is `run`; the portable calls follow from it."""

    __slots__ = ()

    @abstractmethod
    async def run(self, command: Command, sink: OutputSink | None = None) -> int: ...

    async def give_folder(self, path: str, user: str) -> None:
        words: list[str] = []
        code = await self.run(Command(argv=("chown", "-h", user, path)), lambda _, text: words.append(text))
        if code != 0:
            said = "".join(words).strip()
            kind = SandboxUserError if "user" in said else SandboxError
            raise kind(f"{path} in the sandbox cannot be given to {user!r}: {said or f'exit code {code}'}")

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        pieces: list[str] = []

        def keep(_stream: StreamName, text: str) -> None:
            pieces.append(text)

        code = await self.run(Command.shell(command, cwd=cwd, timeout=timeout), keep)
        return ExecResult(exit_code=code, output="".join(pieces))

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        from sandboxes.streams import stream_output

        spec = Command.shell(command, cwd=cwd, timeout=timeout, env=dict(env_vars or {}))
        # Closed here and now, not when the garbage collector gets to it: closing is what ends the command.
        async with aclosing(stream_output(self, spec)) as items:
            async for item in items:
                if isinstance(item, str):
                    yield item
                elif item != 0:
                    raise SandboxCommandError(f"Command failed with exit code {item}", exit_code=item)


class SandboxProvider(ABC):
    """Makes, finds and ends sandboxes."""

    @abstractmethod
    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        """Make one; on any failure or cancellation nothing is left behind."""

    @abstractmethod
    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        """The live sandbox of that id, or SandboxNotFoundError."""

    @abstractmethod
    async def delete_sandbox(self, sandbox_id: str) -> None:
        """End it and everything in it. Deleting what is gone is fine."""

    @abstractmethod
    def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[Sandbox]:
        """Live sandboxes that carry all the labels asked for."""

    async def reap(self, labels: Mapping[str, str]) -> int:
        """End what an earlier process of ours left behind under these labels; how many there were."""
        from sandboxes.types import SandboxQuery

        gone = [sandbox.id async for sandbox in self.list_sandboxes(SandboxQuery(labels=dict(labels)))]
        for sandbox_id in gone:
            await self.delete_sandbox(sandbox_id)
        return len(gone)

    def capabilities(self) -> Capabilities:
        """Return what this provider can do here; cheap after the first call."""
        return Capabilities(provider=type(self).__name__, isolation="it does not say")

    def expected_capabilities(self) -> Capabilities:
        """Return what `capabilities` is expected to say, and start no program to find out.

        A provider that has to try what a machine can do says what it last found there, or what it assumes.
        """
        return self.capabilities()

    @property
    def admission_pool_id(self) -> str:
        """Runs whose providers share this id compete for the same room."""
        return type(self).__name__

    async def check_admission(self, source: SandboxSource, resources: Resources | None = None) -> bool:
        """Return whether there is room for one more right now."""
        _ = source, resources
        return True

    async def get_capacity(self) -> object | None:
        """Return how much room there is in all, where a provider knows."""
        return None

    async def get_capacity_domains(self) -> Sequence[SandboxCapacityDomain] | None:
        """The parts of that room, where a provider knows them."""
        return None

    async def close(self) -> None:
        """End everything this object holds."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
