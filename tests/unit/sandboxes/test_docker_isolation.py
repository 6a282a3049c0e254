"""What containers are made with so that an agent that is root in one cannot reach out of it."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sandboxes.docker import container_config, shared_resources
from sandboxes.docker.changes import ContainerChange, ContainerListing, WantedMembers, folders_above
from sandboxes.docker.container_config import ContainerPlan, container
from sandboxes.docker.engine import Engine
from sandboxes.protocol import ImageDefaults
from sandboxes.static_programs import PROCESSORS, assemble
from sandboxes.types import SandboxCreateRequest

LOCAL = Engine("unix:///run/x.sock", {"NCPU": 2, "MemTotal": 16 << 30})


@pytest.mark.parametrize(
    "address",
    [
        *("10.1.2.3", "172.16.0.1", "172.31.255.1", "192.168.1.1", "100.64.0.1", "100.100.100.200"),
        *("169.254.169.254", "224.0.0.1", "255.255.255.255", "168.63.129.16", "198.18.0.1", "192.0.0.8"),
    ],
)
@pytest.mark.parametrize("url", ["unix:///run/x.sock", "tcp://elsewhere:2375"])
def test_addresses_that_are_not_public_are_refused(address: str, url: str) -> None:
    assert any(IPv4Address(address) in one for one in shared_resources.denied(Engine(url)))


def test_public_addresses_are_not_refused() -> None:
    refused = shared_resources.denied(Engine("tcp://elsewhere:2375"))
    for address in ("1.1.1.1", "9.9.9.9", "172.32.0.1", "100.128.0.1", "192.169.0.1"):
        assert not any(IPv4Address(address) in one for one in refused)


def test_limits_and_protections_are_always_there() -> None:
    programs = {"Type": "bind", "Source": "/x", "Target": "/.valkyrie", "ReadOnly": True}
    body = container(
        SandboxCreateRequest(),
        ContainerPlan("image", ImageDefaults("/app"), LOCAL, programs=programs, seccomp="{}"),
    )
    host = body["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 2 << 30
    assert host["PidsLimit"] == 4096
    assert "/proc/1" in host["ReadonlyPaths"]
    assert "/proc/kcore" in host["MaskedPaths"]
    assert host["SecurityOpt"] == ["no-new-privileges", "seccomp={}"]
    assert programs in host["Mounts"]
    assert body["Entrypoint"] == ["/.valkyrie/init"]
    assert body["User"] == ""
    labelled = Engine("unix:///x", {"SecurityOptions": ["name=selinux"]})
    body = container(SandboxCreateRequest(), ContainerPlan("image", ImageDefaults("/app", "app"), labelled))
    assert "/proc/1/oom_score_adj" in body["HostConfig"]["ReadonlyPaths"]
    assert "/proc/1" not in body["HostConfig"]["ReadonlyPaths"]
    assert body["User"] == "0"


def test_the_filter_of_system_calls_is_given_as_the_engine_takes_it(tmp_path: Path) -> None:
    text = container_config.seccomp_for_engine(LOCAL, tmp_path)
    assert text is not None
    allowed = {
        name
        for rule in json.loads(text)["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule["args"]
        for name in rule["names"]
    }
    assert {"read", "execve", "ptrace", "openat2", "futex"} <= allowed
    assert not {"socket", "socketcall", "io_uring_setup", "unshare", "mount", "bpf", "clone3"} & allowed
    podman = Engine("unix:///x", {"Name": "podman"})
    path = container_config.seccomp_for_engine(podman, tmp_path)
    assert path is not None
    assert json.loads(Path(path).read_text()) == json.loads(text)
    assert container_config.seccomp_for_engine(Engine("tcp://x", {"Name": "podman"}), tmp_path) is None


@pytest.mark.parametrize("name", ["init", "kill", "remove"])
@pytest.mark.parametrize("machine", sorted(PROCESSORS))
def test_programs_are_small_static_files(name: str, machine: str) -> None:
    program = assemble(name, PROCESSORS[machine])  # type: ignore[arg-type]
    assert program.startswith(b"\x7fELF\x02\x01\x01")
    assert int.from_bytes(program[18:20], "little") == PROCESSORS[machine].elf_machine
    assert len(program) < 400


def test_neighbours_are_fetched_together() -> None:
    wanted = WantedMembers({f"/app/{n}" for n in range(10)} | {"/srv/a", "/srv/b"})
    assert wanted.requests() == [("/app", True), ("/srv/a", False), ("/srv/b", False)]
    wanted.single.add("/app")
    assert len(wanted.requests()) == 12
    spread = WantedMembers({f"/app/{n}/x/y" for n in range(10)})
    assert spread.requests() == [("/app", True)]
    system = WantedMembers({f"/usr/{n}/x" for n in range(10)})
    assert len(system.requests()) == 10, "never all of /usr"
    whole = WantedMembers({"/made", "/made/deep/x", "/made/y"}, whole={"/made"})
    assert whole.requests() == [("/made", True)]


@pytest.mark.parametrize(("path", "above"), [("/a/b/c", ["/a/b", "/a"]), ("/a", []), ("/", []), ("//", [])])
def test_folders_above_end_at_the_root(path: str, above: list[str]) -> None:
    assert list(folders_above(path)) == above


def test_what_is_in_an_added_folder_was_added() -> None:
    listing = ContainerListing(
        {"/app": ContainerChange("/app", "added", "d"), "/etc/x": ContainerChange("/etc/x", "changed")}, True
    )
    assert listing.is_added("/app")
    assert listing.is_added("/app/sub/x")
    assert not listing.is_added("/etc/x/y")
    assert not listing.is_added("/apple")
