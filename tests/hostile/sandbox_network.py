"""A fake host for the network tests: run as a program inside fresh network and mount namespaces.

`hosts` lays out the fake host and a far network behind it, with a stand-in server at every address, and
runs an `operator`, the one who attaches sandboxes, as root or as an ordinary user. In each sandbox runs an
`agent`, which tries what it is told. Nothing leaves the namespaces made here. Only the standard library and
the code under test are imported, so that any system Python will do.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PUBLIC = "198.51.100.7"
FAR = [PUBLIC, "169.254.169.254", "169.254.42.42", "100.100.100.200", "168.63.129.16"]
FAR += ["10.9.9.9", "10.200.0.9", "172.16.5.5", "192.168.99.9", "100.64.9.9"]
HOST = ["10.1.1.2", "192.168.77.1", "203.0.113.5"]
GAINED = "198.51.102.1"
PUBLIC6, METADATA6 = "2001:db8::7", "fd00:ec2::254"
PORT = 8000
ABSTRACT = "\0valkyrie-network-test"
NOBODY = 65534
WAIT = 1.0
"""Longer than replies on this machine take; packets that are dropped wait for it."""


# What an agent may try.


def probe(ask: dict[str, Any]) -> str:
    """`reached …`, or the name of the error."""
    try:
        return f"reached {PROBES[ask['how']](ask)}"
    except TimeoutError:
        return "TIMEOUT"
    except socket.gaierror as error:
        return f"GAI {error}"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def tcp(ask: dict[str, Any]) -> str:
    family = socket.AF_INET6 if ":" in ask["to"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.settimeout(ask.get("wait", WAIT))
        if ask.get("device"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        if ask.get("unicast_if"):
            made.setsockopt(socket.IPPROTO_IP, 50, struct.pack("!I", socket.if_nametoindex("eth0")))
        made.connect((ask["to"], ask.get("port", PORT)))
        return made.recv(64).decode()


def udp(ask: dict[str, Any]) -> str:
    family = socket.AF_INET6 if ":" in ask["to"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.settimeout(ask.get("wait", WAIT))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if ask.get("device"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        made.sendto(ask.get("say", "hello").encode(), (ask["to"], ask.get("port", PORT)))
        return made.recv(64).decode()


def abstract(_ask: dict[str, Any]) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(ABSTRACT)
        return made.recv(64).decode()


def resolve(ask: dict[str, Any]) -> str:
    return str(socket.gethostbyname(ask["to"]))


def listen(_ask: dict[str, Any]) -> str:
    made = socket.create_server(("0.0.0.0", 9000))
    LISTENING.append(made)
    return "listening"


def frame(ask: dict[str, Any]) -> str:
    """A datagram as an Ethernet frame, past this namespace's routes and neighbours."""
    neighbours = [line.split() for line in Path("/proc/net/arp").read_text().splitlines()[1:]]
    router = next(words[3] for words in neighbours if words[0] == "192.0.0.200")
    payload = ask["say"].encode()
    ip = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        28 + len(payload),
        1,
        0,
        64,
        17,
        0,
        socket.inet_aton(ask.get("source", "192.0.0.201")),
        socket.inet_aton(ask["to"]),
    )
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as made:
        made.bind(("eth0", 0))
        header = bytes.fromhex(router.replace(":", "")) + made.getsockname()[4] + b"\x08\0"
        made.send(header + ip + struct.pack("!HHHH", 5555, PORT, 8 + len(payload), 0) + payload)
    return "sent"


def nested(_ask: dict[str, Any]) -> str:
    """Root of a user namespace of one's own, over this network namespace."""
    argv = "unshare -Ur ip route add 169.254.0.0/16 dev eth0".split()
    if subprocess.run(argv, check=False).returncode:
        raise PermissionError(errno.EPERM, "refused")
    return "routes changed"


LISTENING: list[socket.socket] = []
PROBES: dict[str, Callable[[dict[str, Any]], str]] = {
    "tcp": tcp,
    "udp": udp,
    "abstract": abstract,
    "resolve": resolve,
    "listen": listen,
    "frame": frame,
    "nested": nested,
}


def agent() -> None:
    """Do as told on standard input, the items of one line at once: most of them only wait."""
    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            print(json.dumps(list(pool.map(probe, json.loads(line)))), flush=True)


# The fake host and what is behind it.


def ip(*lines: str) -> None:
    """Run `ip` in the namespace of the calling thread."""
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


class Hits:
    """Which datagrams arrived at all."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._news = threading.Condition()

    def add(self, said: str) -> None:
        with self._news:
            self._seen.add(said)
            self._news.notify_all()

    def wait_for(self, said: str) -> bool:
        with self._news:
            return self._news.wait_for(lambda: said in self._seen, timeout=60)

    def all(self) -> list[str]:
        with self._news:
            return sorted(self._seen)


def serve(name: str, made: socket.socket, hits: Hits) -> None:
    """Answer every peer with `name`, in a thread."""

    def stream() -> None:
        while True:
            peer, _ = made.accept()
            with peer:
                try:
                    peer.sendall(name.encode())
                except OSError:
                    pass

    def datagrams() -> None:
        while True:
            data, peer = made.recvfrom(2048)
            hits.add(data.decode(errors="replace"))
            try:
                made.sendto(name.encode(), peer)
            except OSError:
                pass

    run = datagrams if made.type == socket.SOCK_DGRAM else stream
    threading.Thread(target=run, daemon=True).start()


def datagram_socket(address: str, port: int = PORT) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    return made


def serve_names(made: socket.socket) -> None:
    """Every name is the public server."""

    def answer() -> None:
        while True:
            query, peer = made.recvfrom(512)
            question = query[12 : query.index(b"\0", 12) + 5]
            reply = query[:2] + struct.pack("!5H", 0x8180, 1, 0 if question[-3] != 1 else 1, 0, 0) + question
            if question[-3] == 1:
                reply += struct.pack("!HHHIH4s", 0xC00C, 1, 1, 60, 4, socket.inet_aton(PUBLIC))
            made.sendto(reply, peer)

    threading.Thread(target=answer, daemon=True).start()


def far_network(hits: Hits) -> None:
    """A second namespace behind a veth pair, held by a thread of this process."""
    made, joined = threading.Event(), threading.Event()
    ready = threading.Event()
    thread_id: list[int] = []

    def run() -> None:
        assert ctypes.CDLL(None).unshare(0x40000000) == 0
        thread_id.append(threading.get_native_id())
        made.set()
        joined.wait()
        ip("link set lo up", "addr add 10.1.1.1/24 dev far0", "link set far0 up")
        ip("-6 addr add 2001:db8:1::1/64 dev far0 nodad", f"-6 addr add {PUBLIC6}/128 dev lo nodad")
        ip(f"-6 addr add {METADATA6}/128 dev lo nodad", "route add default via 10.1.1.2")
        for address in FAR:
            ip(f"addr add {address}/32 dev lo")
        serve("public", socket.create_server(("0.0.0.0", PORT)), hits)
        serve("public", socket.create_server(("::", PORT), family=socket.AF_INET6), hits)
        for address in FAR:
            serve("public", datagram_socket(address), hits)
        ready.set()
        threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    made.wait()
    ip("link add near0 type veth peer name far0", f"link set far0 netns {thread_id[0]}")
    ip("addr add 10.1.1.2/24 dev near0", "link set near0 up")
    ip("-6 addr add 2001:db8:1::2/64 dev near0 nodad")
    joined.set()
    assert ready.wait(60)
    ip("route add default via 10.1.1.1", "-6 route add default via 2001:db8:1::1")


def fake_host(hits: Hits) -> None:
    """Interfaces, servers, resolver and device nodes of a host like many."""
    ip("link set lo up")
    far_network(hits)
    ip("link add docker0 type veth peer name idle0", "addr add 192.168.77.1/24 dev docker0")
    ip("link set docker0 up", "link set idle0 up", "route add local 203.0.113.0/24 dev lo")
    serve("host", socket.create_server(("0.0.0.0", PORT)), hits)
    serve("host", socket.create_server(("::", PORT), family=socket.AF_INET6), hits)
    serve("host", socket.create_server(("127.0.0.1", PORT + 1)), hits)
    serve("host", datagram_socket("0.0.0.0"), hits)
    serve_names(datagram_socket("127.0.0.53", 53))
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind(ABSTRACT)
    hidden.listen()
    serve("host", hidden, hits)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/dev/net"], check=True)


def hosts(tool: str, who: str, scenario: str, folder: str) -> None:
    """Lay out the fake host, let the operator work, print what it found."""
    hits = Hits()
    fake_host(hits)
    # Root must cope with a device that only root may open, other users need it open.
    mode = "600" if who == "root" else "666"
    subprocess.run(["mknod", "-m", mode, "/dev/net/tun", "c", "10", "200"], check=True)
    resolver = Path(folder, "host-resolv.conf")
    resolver.write_text("nameserver 127.0.0.53\n")
    resolver.chmod(0o644)
    subprocess.run(["mount", "--bind", str(resolver), "/etc/resolv.conf"], check=True)
    state = Path(folder, "state")
    state.mkdir()
    argv = [sys.executable, __file__, "operator", tool, who, scenario, str(state)]
    if who == "user":
        os.chown(state, NOBODY, NOBODY)
        step_down = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --bounding-set -all --"
        argv = [*step_down.split(), *argv]
    operator = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert operator.stdin and operator.stdout
    for line in operator.stdout:
        said = json.loads(line)
        answer: Any = True
        if "done" in said:
            print(json.dumps(said["done"]), flush=True)
        elif "control" in said:
            answer = probe({"wait": 30.0, **said["control"]})
        elif "gain" in said:
            ip(f"addr add {said['gain']}/24 dev docker0")
        elif "arrived" in said:
            answer = hits.all() if hits.wait_for(said["arrived"]) else ["nothing arrived"]
        elif "kill_me" in said:
            print(json.dumps({"left": kill_operator(operator, said["kill_me"])}), flush=True)
            return
        try:
            operator.stdin.write(json.dumps(answer) + "\n")
            operator.stdin.flush()
        except BrokenPipeError:
            break
    sys.exit(operator.wait())


def kill_operator(operator: subprocess.Popen[str], pids: dict[str, int]) -> list[str]:
    """Kill -9 the operator; which of the processes outlived it."""
    watched = {name: os.pidfd_open(pid) for name, pid in pids.items()}
    operator.kill()
    operator.wait()
    return [name for name, pidfd in watched.items() if not select.select([pidfd], [], [], 5)[0]]


# The one who makes sandboxes.


def tell(message: dict[str, Any]) -> Any:
    """Ask the hosts."""
    print(json.dumps(message), flush=True)
    return json.loads(sys.stdin.readline())


def shifted_userns() -> int:
    """A user namespace like the provider's: 65,536 ids from 1,000,000."""
    holder = subprocess.Popen(["unshare", "-U", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1)
    assert holder.stdin and holder.stdout
    holder.stdout.readline()
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{holder.pid}/{name}").write_text("0 1000000 65536")
    fd = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
    holder.stdin.close()
    holder.wait()
    holder.stdout.close()
    return fd


class Jail:
    """A bubblewrap sandbox with an agent in it."""

    def __init__(self, who: str, resolv_conf: Path) -> None:
        info, theirs = os.pipe()
        argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
        argv += ["--ro-bind", str(resolv_conf), "/etc/resolv.conf", "--new-session"]
        argv += ["--cap-drop", "ALL", "--cap-add", "CAP_NET_RAW", "--info-fd", str(theirs)]
        fds = [theirs]
        if who == "root":
            userns = shifted_userns()
            fds.append(userns)
            argv = ["nsenter", f"--user=/proc/self/fd/{userns}", *argv]
            argv += ["--unshare-net", "--unshare-pid", "--unshare-ipc"]
        elif who == "plain-root":
            argv += ["--unshare-net", "--unshare-pid", "--unshare-ipc"]
        else:
            argv += ["--unshare-all"]
        argv += ["--", sys.executable, "-I", __file__, "agent"]
        self.process = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, pass_fds=fds)
        for fd in fds:
            os.close(fd)
        with os.fdopen(info) as file:
            self.init_pid: int = json.load(file)["child-pid"]

    def ask(self, how: str, **more: Any) -> str:
        return self.ask_all([{"how": how, **more}])[0]

    def reach(self, how: str, **more: Any) -> str:
        """The same where a reply is due: also a busy machine gives it in the end."""
        for wait in (WAIT, 10.0, 30.0):
            found = self.ask(how, wait=wait, **more)
            if found != "TIMEOUT":
                break
        return found

    def ask_all(self, asks: list[dict[str, Any]]) -> list[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asks) + "\n")
        self.process.stdin.flush()
        return [str(outcome) for outcome in json.loads(self.process.stdout.readline())]

    def kill(self) -> None:
        os.kill(self.init_pid, signal.SIGKILL)
        self.process.wait()


def left_over(before: set[int], patience: float = 30) -> int:
    """How many processes have come since `before` and do not go."""
    staying = 0
    for pid in children() - before:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        staying += not select.select([pidfd], [], [], patience)[0]
        os.close(pidfd)
    return staying


def children() -> set[int]:
    """Every living child of this process, adopted ones among them."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(pid))
    return found


async def reach(tool: Any, who: str, state: Path) -> dict[str, Any]:
    """Everything an agent tries, each with its control from the host itself."""
    from sandboxes.local.network import RESOLV_CONF, NetworkSettings, attach

    resolv_conf = state / "resolv.conf"
    resolv_conf.write_text(RESOLV_CONF)
    jail, other, alone, wide = (Jail(who, resolv_conf) for _ in range(4))
    plain = NetworkSettings(tool=tool)
    attachment, second, third = await asyncio.gather(
        attach(jail.init_pid, None, state, plain),
        attach(other.init_pid, None, state, plain),
        attach(
            wide.init_pid,
            None,
            state,
            NetworkSettings(deny=["10.200.0.0/16"], allow=["10.0.0.0/8", "100.64.0.0/10"], tool=tool),
        ),
    )
    assert attachment.resolv_conf == RESOLV_CONF
    found: dict[str, Any] = {"allowed": {}, "denied": {}, "alone": {}, "control": {}}

    def control(name: str, ask: dict[str, Any]) -> None:
        found["control"][name] = tell({"control": ask})

    tries: dict[str, dict[str, Any]] = {}

    def denied(name: str, how: str, **more: Any) -> None:
        tries[name] = {"how": how, **more}

    allowed = found["allowed"]
    for protocol in ("tcp", "udp"):
        allowed[f"{protocol} {PUBLIC}"] = jail.reach(protocol, to=PUBLIC)
        for to in ("10.9.9.9", "100.64.9.9"):
            allowed[f"wide {protocol} {to}"] = wide.reach(protocol, to=to)
        found["alone"][f"{protocol} {PUBLIC}"] = alone.ask(protocol, to=PUBLIC)
    allowed["tcp mapped"] = jail.reach("tcp", to=f"::ffff:{PUBLIC}")
    allowed["resolve"] = jail.reach("resolve", to="public.test")
    allowed["second tcp"] = other.reach("tcp", to=PUBLIC)
    allowed["wide tcp"] = wide.reach("tcp", to=PUBLIC)
    allowed["wide tcp 10.1.1.1"] = wide.reach("tcp", to="10.1.1.1")
    found["alone"]["resolve"] = alone.ask("resolve", to="public.test")
    found["alone"]["abstract"] = alone.ask("abstract")
    closed = ("10.200.0.9", "172.16.5.5", "192.168.99.9", "169.254.169.254", "100.100.100.200", *HOST)
    asks = [{"how": "tcp", "to": to, "device": device} for to in closed for device in (False, True)]
    answers = zip(asks, wide.ask_all(asks), strict=True)
    found["denied"].update({f"wide {ask}": answer for ask, answer in answers})

    for to in [*FAR[1:], *HOST]:
        for protocol in ("tcp", "udp"):
            control(f"{protocol} {to}", {"how": protocol, "to": to})
            denied(f"{protocol} {to}", protocol, to=to)
            denied(f"{protocol} bound to device {to}", protocol, to=to, device=True)
        denied(f"tcp by interface {to}", "tcp", to=to, unicast_if=True)
        denied(f"tcp mapped {to}", "tcp", to=f"::ffff:{to}")
    control("tcp 127.0.0.1:8001", {"how": "tcp", "to": "127.0.0.1", "port": PORT + 1})
    for to in ("127.0.0.1", "127.0.0.53", "0.0.0.0", "192.0.0.130", "192.0.0.131", "192.0.0.200"):
        denied(f"tcp {to}", "tcp", to=to)
        denied(f"udp {to}", "udp", to=to)
        denied(f"tcp bound to device {to}", "tcp", to=to, device=True)
        denied(f"tcp {to}:8001", "tcp", to=to, port=PORT + 1)
    for to in ("10.1.1.255", "192.168.77.255", "255.255.255.255", "224.0.0.1", "239.1.2.3"):
        denied(f"udp {to}", "udp", to=to)
        denied(f"udp bound to device {to}", "udp", to=to, device=True)
    for to in ("::1", PUBLIC6, METADATA6, "2001:db8:1::2"):
        control(f"tcp {to}", {"how": "tcp", "to": to})
        denied(f"tcp {to}", "tcp", to=to)
        denied(f"udp {to}", "udp", to=to)
    control("abstract", {"how": "abstract"})
    denied("abstract", "abstract")
    denied("nested user namespace", "nested")

    assert other.ask("listen") == "reached listening"
    for to in ("192.0.0.200", "192.0.0.201", "192.0.0.202", "10.1.1.2", "10.1.1.1", PUBLIC):
        denied(f"other sandbox by {to}", "tcp", to=to, port=9000)
    found["denied"].update(zip(tries, jail.ask_all(list(tries.values())), strict=True))
    for to in ("127.0.0.1", "10.1.1.2", "192.0.0.201"):
        inbound = {"how": "tcp", "to": to, "port": 9000, "wait": WAIT}
        found["denied"][f"sandbox from host by {to}"] = tell({"control": inbound})

    found["frames"] = [jail.ask("frame", to=to, say=f"frame to {to}") for to in [*FAR[1:], *HOST]]
    for to in ("127.0.0.1", "192.0.0.130", "192.0.0.131", "255.255.255.255"):
        found["frames"].append(jail.ask("frame", to=to, say=f"frame to {to}"))
    for source in ("192.0.0.200", "10.1.1.2", "127.0.0.1"):
        found["frames"].append(jail.ask("frame", to=PUBLIC, source=source, say=f"frame from {source}"))
    found["frames"].append(jail.ask("frame", to=PUBLIC, say="frame control"))
    jail.ask("udp", to=PUBLIC, say="end of frames")
    found["arrived"] = tell({"arrived": "end of frames"})

    tell({"gain": GAINED})
    control(f"tcp {GAINED}", {"how": "tcp", "to": GAINED})
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(jail.ask, "tcp", to=GAINED)).startswith("reached"):
            pass
    found["denied"][f"tcp {GAINED}"] = jail.ask("tcp", to=GAINED)
    allowed["tcp at the end"] = jail.reach("tcp", to=PUBLIC)

    for plugged in (attachment, second, third):
        await plugged.close()
    found["after close"] = jail.ask("tcp", to=PUBLIC)
    for made in (jail, other, alone, wide):
        made.kill()
    return found


async def live_and_end(tool: Any, who: str, state: Path) -> dict[str, Any]:
    """Closing, the sandbox's end, cancellation at any moment, and what each leaves."""
    from sandboxes.errors import SandboxError
    from sandboxes.local.network import NetworkSettings, NetworkTool, attach

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # adopt orphans, so that `children` sees every process left
    resolv_conf = state / "resolv.conf"
    resolv_conf.touch()
    settings = NetworkSettings(tool=tool)
    jail = Jail(who, resolv_conf)
    before, fds = children(), len(os.listdir("/proc/self/fd"))
    found: dict[str, Any] = {}

    attachment = await attach(jail.init_pid, None, state, settings)
    found["during"] = left_over(before, patience=2)
    await attachment.close()
    await attachment.close()
    found["after close"] = left_over(before)

    broken = NetworkSettings(tool=NetworkTool(tool.name, "/bin/false"))
    for _ in range(10):
        try:
            await attach(jail.init_pid, None, state, broken)
        except SandboxError as error:
            found["broken"] = str(error)
    found["after failure"] = left_over(before)

    cancelled = 0
    for step in range(30):
        task = asyncio.create_task(attach(jail.init_pid, None, state, settings))
        await asyncio.sleep(step / 500)  # not to wait for anything: to be somewhere else each time
        task.cancel()
        try:
            await (await task).close()
        except asyncio.CancelledError:
            cancelled += 1
        found["after cancellation"] = found.get("after cancellation", 0) + left_over(before)
    found["cancelled"] = cancelled
    found["leaked fds"] = len(os.listdir("/proc/self/fd")) - fds

    attachment = await attach(jail.init_pid, None, state, settings)
    pidfd = os.pidfd_open(attachment.pid)
    jail.kill()
    found["ends with the sandbox"] = bool((await asyncio.to_thread(select.select, [pidfd], [], [], 60))[0])
    await attachment.close()
    found["alive"] = attachment.alive
    return found


async def be_killed(tool: Any, who: str, state: Path) -> dict[str, Any]:
    """Attach, and then die without a word."""
    from sandboxes.local.network import NetworkSettings, attach

    resolv_conf = state / "resolv.conf"
    resolv_conf.touch()
    jail = Jail(who, resolv_conf)
    attachment = await attach(jail.init_pid, None, state, NetworkSettings(tool=tool))
    tell({"kill_me": {"tool": attachment.pid, "sandbox": jail.init_pid}})
    raise AssertionError("still alive")


def operator(tool_name: str, who: str, scenario: str, state: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    from sandboxes.local.network import find_tool

    tool = find_tool("pasta" if tool_name == "pasta" else "slirp4netns")
    run = {"reach": reach, "live_and_end": live_and_end, "be_killed": be_killed}[scenario]
    print(json.dumps({"done": asyncio.run(run(tool, who, Path(state)))}), flush=True)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"hosts": hosts, "operator": operator, "agent": agent}
    roles[sys.argv[1]](*sys.argv[2:])
