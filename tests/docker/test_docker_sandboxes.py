"""What containers do beyond the contract: networks, builds, mounts, and what is left after a crash."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from sandboxes.docker import DockerProvider
from sandboxes.docker.container_config import PUBLIC_NETWORK
from sandboxes.docker.sandbox import DockerSandbox
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.folder_contents import folder_digest
from sandboxes.protocol import Sandbox
from sandboxes.testing.base import HEARTBEAT, assert_no_beats, output_of, wait_for_beats
from sandboxes.types import (
    BuildSource,
    Command,
    HostSource,
    ImageSource,
    Mount,
    Resources,
    SandboxCreateRequest,
    SandboxLimits,
    SnapshotSource,
)
from tests.docker_engine import IMAGE, OUTSIDE, PrivateEngine

pytestmark = pytest.mark.slow

PRIVATE, SHARED = "10.77.0.1", "100.64.0.9"
"""Addresses of the engine's host that are not of the public internet."""
SERVE = "import socket; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True)\n"
SERVE += "while True: s.accept()[0].close()"
CONNECT = """
import socket, sys
s = socket.socket(); s.settimeout(2)
if sys.argv[3] == "bound": s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\\0")
s.connect((sys.argv[1], int(sys.argv[2]))); print("reached")
"""


@pytest.fixture
async def provider(engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(tmp_path / "state") as provider:
        yield provider
        await provider.reap({})
    assert engine.left() == []


@contextmanager
def listening(engine: PrivateEngine) -> Iterator[str]:
    """The port of a server on all addresses of the engine's host."""
    command = engine.inside(sys.executable, "-c", SERVE)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


async def connects(sandbox: Sandbox, address: str, port: str, how: str = "plainly") -> bool:
    command = Command(("python3", "-c", CONNECT, address, port, how), timeout=60)
    return await sandbox.run(command) == 0


async def test_public_reaches_out_but_not_the_host(engine: PrivateEngine, provider: DockerProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="public"))
    gateway = engine.docker(
        "network", "inspect", PUBLIC_NETWORK, "-f", "{{(index .IPAM.Config 0).Gateway}}"
    ).strip()
    with listening(engine) as port:

        async def check() -> None:
            assert await connects(sandbox, OUTSIDE, port)
            for how in ("plainly", "bound"):
                for address in (gateway, "169.254.169.254", "127.0.0.1"):
                    assert not await connects(sandbox, address, port, how), (address, how)

        await check()
        await provider.restart(cast("DockerSandbox", sandbox))
        await check()
    capable = "grep CapBnd /proc/self/status"
    assert int((await output_of(sandbox, capable)).split()[1], 16) & 1 << 12 == 0  # CAP_NET_ADMIN


async def test_private_networks_are_reached_by_those_who_name_them(
    engine: PrivateEngine, provider: DockerProvider
) -> None:
    for address in (PRIVATE, SHARED):
        subprocess.run(engine.inside("ip", "address", "replace", f"{address}/32", "dev", "out"), check=True)
    request = SandboxCreateRequest(network="public")
    sandbox = await provider.create_sandbox(request)
    named = await provider.create_sandbox(request.model_copy(update={"allowed_networks": ("10.77.0.0/16",)}))
    with listening(engine) as port:

        async def check() -> None:
            assert await connects(named, PRIVATE, port)
            assert not await connects(named, SHARED, port)

        for address in (PRIVATE, SHARED):
            for how in ("plainly", "bound"):
                assert not await connects(sandbox, address, port, how)
        await check()
        await provider.restart(cast("DockerSandbox", named))
        await check()


async def test_only_the_loopback_of_ipv6_is_left(engine: PrivateEngine, provider: DockerProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="public"))
    pid = engine.docker("inspect", "-f", "{{.State.Pid}}", sandbox.id).strip()
    give = "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip -6 address replace fd00:7::2/64 dev eth0"
    subprocess.run(["nsenter", "-t", pid, "-n", "sh", "-c", f"{give}; ip -6 route show"], check=True)
    script = """
import errno, socket
for address in ("fd00:7::1", "2001:db8::1", "fe80::1"):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        s.sendto(b"x", (address, 9, 0, 2))
        print("sent to", address)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            raise
"""
    captured: list[str] = []
    code = await sandbox.run(
        Command(("python3", "-c", script), timeout=60), lambda _, text: captured.append(text)
    )
    assert (code, captured) == (0, [])


async def test_sandboxes_on_the_same_network_do_not_meet(provider: DockerProvider) -> None:
    one, two = [await provider.create_sandbox(SandboxCreateRequest(network="public")) for _ in range(2)]
    await one.run(Command.shell("python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"))
    address = (await output_of(one, "hostname -I")).split()[0]
    up = "for i in $(seq 50); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))'"
    assert await one.run(Command.shell(f"{up} 2>/dev/null && exit 0; sleep 0.1; done; exit 1")) == 0
    assert not await connects(two, address, "8000")


def make_network(engine: PrivateEngine) -> str:
    """Make one more network of our name, as an engine asked twice at once does."""
    options = ["-X", "POST", "-H", "Content-Type: application/json"]
    body = json.dumps({"Name": PUBLIC_NETWORK, "Driver": "bridge", "Labels": {"valkyrie.kind": "network"}})
    socket = engine.url.removeprefix("unix://")
    command = ["curl", "-sS", "--unix-socket", socket, *options, "-d", body, "http://engine/networks/create"]
    return str(json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["Id"])


def networks(engine: PrivateEngine) -> list[str]:
    return engine.docker("network", "ls", "-q", "--no-trunc", "--filter", "label=valkyrie.kind").split()


async def test_many_at_once_share_one_network(engine: PrivateEngine, tmp_path: Path) -> None:
    # Two processes of one data folder, and a third of another.
    places = [tmp_path / name for name in ("state", "state", "other")]
    async with AsyncExitStack() as held:
        providers = [await held.enter_async_context(DockerProvider(place)) for place in places]
        request = SandboxCreateRequest(network="public")
        made = await asyncio.gather(*(one.create_sandbox(request) for one in providers * 3))
        assert len({sandbox.id for sandbox in made}) == 9
        await asyncio.gather(*(provider.reap({}) for provider in providers))
        # What is on the network of one provider keeps the others from taking it away.
        await providers[0].create_sandbox(request)
        await providers[2].close()
        await providers[1].create_sandbox(request)
        assert len(networks(engine)) == 1
        await providers[0].reap({})
    assert engine.left() == []


async def test_an_engine_with_several_networks_of_one_name_mends(
    engine: PrivateEngine, provider: DockerProvider
) -> None:
    made = [make_network(engine) for _ in range(3)]
    sandboxes = await asyncio.gather(
        *(provider.create_sandbox(SandboxCreateRequest(network="public")) for _ in range(3))
    )
    assert networks(engine) == made[:1]
    for sandbox in sandboxes:
        await provider.delete_sandbox(sandbox.id)
    # Nor does one that goes while a sandbox is being made keep it from being made.
    engine.docker("network", "rm", made[0])
    await provider.create_sandbox(SandboxCreateRequest(network="public"))


async def test_a_strangers_network_of_our_name_is_named(
    engine: PrivateEngine, provider: DockerProvider
) -> None:
    engine.docker("network", "create", PUBLIC_NETWORK)
    with pytest.raises(SandboxUnsupportedError, match=f"docker network rm {PUBLIC_NETWORK}"):
        await provider.create_sandbox(SandboxCreateRequest(network="public"))
    await provider.reap({})
    engine.docker("network", "rm", PUBLIC_NETWORK)


async def test_a_build_runs_once_for_many(engine: PrivateEngine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {IMAGE}\nWORKDIR /built\nCOPY hello .\nRUN date +%N > stamp\nENV COLOUR=green\n"
    )
    (context / "hello").write_text("hello")
    source = BuildSource(context=str(context), digest=f"sha256:{folder_digest(context)}")
    stamps: set[str] = set()

    async def one_of(provider: DockerProvider) -> None:
        sandbox = await provider.create_sandbox(SandboxCreateRequest(source=source, network="none"))
        stamps.add(await output_of(sandbox, "cat hello stamp; echo $COLOUR; pwd"))

    async with DockerProvider(tmp_path / "state") as one, DockerProvider(tmp_path / "state") as two:
        await asyncio.gather(*(one_of(provider) for provider in (one, two) * 4))
        await one.reap({})
    assert len(stamps) == 1
    assert stamps.pop().endswith("green\n/built\n")
    pruned = engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")
    assert "valkyrie-build:" in pruned
    assert engine.left() == []


async def test_an_image_does_not_say_where_models_are(
    provider: DockerProvider, engine: PrivateEngine, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {IMAGE}\nENV ANTHROPIC_BASE_URL=http://127.0.0.1:9 PYTHONPATH=/app COLOUR=green\n"
    )
    request = SandboxCreateRequest(
        source=BuildSource(context=str(context), digest=folder_digest(context)),
        refused_image_env=lambda name: name.startswith("ANTHROPIC_"),
        network="none",
    )
    sandbox = await provider.create_sandbox(request)
    found = await output_of(sandbox, "env")
    assert "ANTHROPIC" not in found and "PYTHONPATH=/app" in found and "COLOUR=green" in found
    await provider.reap({})
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


async def test_no_task_replaces_the_image_of_another(
    provider: DockerProvider, engine: PrivateEngine, tmp_path: Path
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {folder.name} > /whose\n")
    forged = BuildSource(context=str(other), digest=folder_digest(mine))
    with pytest.raises(SandboxUnsupportedError, match="not what was planned"):
        await provider.create_sandbox(SandboxCreateRequest(source=forged, network="none"))
    # An image somebody gave our tag has not our label for it.
    engine.docker("tag", IMAGE, f"valkyrie-build:{folder_digest(mine)}")
    honest = BuildSource(context=str(mine), digest=folder_digest(mine))
    sandbox = await provider.create_sandbox(SandboxCreateRequest(source=honest, network="none"))
    assert await output_of(sandbox, "cat /whose") == "mine\n"
    await provider.reap({})
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


async def test_a_failed_build_tells_its_last_lines(provider: DockerProvider, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo about to fail; exit 7\n")
    source = BuildSource(context=str(context), digest=folder_digest(context))
    with pytest.raises(SandboxError, match=r"(?s)exit|returned.*about to fail"):
        await provider.create_sandbox(SandboxCreateRequest(source=source))
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo slowly; sleep 60\n")
    source = BuildSource(context=str(context), digest=folder_digest(context), timeout=2)
    with pytest.raises(SandboxError, match=r"(?s)2 seconds.*slowly"):
        await provider.create_sandbox(SandboxCreateRequest(source=source))


async def test_what_it_cannot_make_is_refused(provider: DockerProvider) -> None:
    for source, words in (
        (ImageSource(image="127.0.0.1:9/no/such:image"), r"127.0.0.1:9/no/such.*docker pull"),
        (HostSource(rootfs="/srv/root"), "docker import"),
        (SnapshotSource(snapshot="x"), "name an image"),
    ):
        with pytest.raises(SandboxError, match=words):
            await provider.create_sandbox(SandboxCreateRequest(source=source, network="none"))
    gpu = Resources(vcpu=1, memory=1, disk=1, gpu=1)
    for asked in ({"resources": gpu}, {"limits": SandboxLimits(gpus=1)}):
        with pytest.raises(SandboxUnsupportedError, match="NVIDIA"):
            await provider.create_sandbox(SandboxCreateRequest(**asked, network="none"))


async def test_host_folders_are_shown_read_only(provider: DockerProvider, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "note").write_text("from the host")
    heard = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        writer.close()

    server = await asyncio.start_unix_server(answer, shown / "door")
    mount = Mount(source=str(shown), target="/opt/valkyrie/door", sockets=True)
    sandbox = await provider.create_sandbox(SandboxCreateRequest(mounts=(mount,), network="none"))
    try:
        assert await output_of(sandbox, "cat /opt/valkyrie/door/note") == "from the host"
        assert await sandbox.run(Command.shell("echo x > /opt/valkyrie/door/note")) != 0
        speak = "import socket; socket.socket(socket.AF_UNIX).connect('/opt/valkyrie/door/door')"
        assert await sandbox.run(Command(("python3", "-c", speak), timeout=60)) == 0
        await asyncio.wait_for(heard.wait(), 60)
    finally:
        server.close()


async def test_nothing_outlives_kill_all(provider: DockerProvider) -> None:
    request = SandboxCreateRequest(
        network="none", limits=SandboxLimits(pids=128), separate_folders=("/tests",)
    )
    sandbox = await provider.create_sandbox(request)
    await sandbox.upload_file("/tests/kept", b"kept")
    # As someone else, in a session of its own, and with every place for processes taken.
    await sandbox.run(Command.shell("mkdir -p /app; chmod 777 /app"))
    await sandbox.run(Command.shell(f"setsid sh -c '{HEARTBEAT}' >/dev/null 2>&1 &", user="nobody"))
    await wait_for_beats(sandbox)
    await sandbox.run(Command.bash("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=2))
    await sandbox.run(Command.bash("setsid bash -c 'b() { b | b & }; b' & sleep 1", timeout=20))
    await sandbox.kill_all()
    await assert_no_beats(sandbox)
    assert await sandbox.download_file("/tests/kept") == b"kept"
    assert "bash" not in await output_of(sandbox, "ps -e -o comm=")


async def test_a_replaced_shell_does_not_save_its_processes(
    provider: DockerProvider, engine: PrivateEngine
) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
    await output_of(sandbox, f"mkdir -p /app; setsid bash -c '{HEARTBEAT}' >/dev/null 2>&1 &")
    await wait_for_beats(sandbox)
    trick = 'cp /bin/dash /tmp/real; printf \'#!/tmp/real\\ncase "$*" in *kill*) exit 0;; esac\\n'
    trick += 'exec /tmp/real "$@"\\n\' > /tmp/sh; chmod 755 /tmp/sh; mv /tmp/sh /bin/sh'
    await output_of(sandbox, trick)
    await sandbox.kill_all()
    await assert_no_beats(sandbox)


async def test_apt_and_users_work(provider: DockerProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
    script = "apt-get check && useradd -m someone && su someone -c 'id -un' && dpkg --configure -a"
    assert await output_of(sandbox, f"({script}) 2>&1 | tail -1") == "someone\n"


LEAVE = """
import asyncio, os, sys
from pathlib import Path
from typing import cast
from sandboxes.folder_contents import folder_digest
from sandboxes.docker import DockerProvider
from sandboxes.types import BuildSource, SandboxCreateRequest

async def main():
    folder = Path(sys.argv[1])
    provider = DockerProvider(folder / "state")
    for network in ("none", "public"):
        request = SandboxCreateRequest(labels={"Home": "lost"}, network=network, separate_folders=("/tests",))
        await provider.create_sandbox(request)
    many = [asyncio.ensure_future(provider.create_sandbox(request)) for _ in range(6)]
    digest = folder_digest(folder / "context")
    source = BuildSource(context=str(folder / "context"), digest=digest)
    building = asyncio.ensure_future(provider.create_sandbox(SandboxCreateRequest(source=source)))
    log = folder / "state/builds" / f"valkyrie-build-{digest}.log"
    while not (log.exists() and "underway" in log.read_text()):
        await asyncio.sleep(0.05)
    print("now", flush=True)
    await asyncio.gather(building, *many)

asyncio.run(main())
"""


async def test_a_killed_process_leaves_nothing(engine: PrivateEngine, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo underway; sleep 60\n")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEAVE, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert (await child.stdout.readline()).strip() == b"now"
    child.send_signal(signal.SIGKILL)
    await child.wait()
    async with DockerProvider(tmp_path / "state") as provider:
        assert await provider.reap({"Home": "other"}) == 0
        # What the engine was still making when the other side died may come up a moment later.
        ended = 0
        async with asyncio.timeout(60):
            while ended < 2 or engine.left():
                ended += await provider.reap({"Home": "lost"})
                await asyncio.sleep(0.2)
    assert "c4c4" not in engine.docker("images")
    async with asyncio.timeout(60):
        while engine.docker("ps", "-aq").split():
            await asyncio.sleep(0.2)
