from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.local.network import RESOLV_CONF, NetworkTool, find_tool, why_unavailable
from sandboxes.local.routes import ALWAYS_DENIED, DNS, GATEWAY, LINK, ROUTER, SANDBOX


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str) -> str:
    path = folder / name
    path.touch(0o755)
    return str(path)


def test_pasta_is_preferred(programs: Path) -> None:
    slirp = install(programs, "slirp4netns")
    assert find_tool() == NetworkTool("slirp4netns", slirp)
    pasta = install(programs, "pasta")
    assert find_tool() == NetworkTool("pasta", pasta)
    assert find_tool("slirp4netns") == NetworkTool("slirp4netns", slirp)


def test_a_machine_without_a_tool_is_told_what_to_install(programs: Path) -> None:
    assert find_tool() is None
    assert "apt install passt" in (why_unavailable() or "")


@pytest.mark.parametrize("join_userns", [True, False])
def test_pasta_forwards_no_port_and_maps_no_host_address(join_userns: bool) -> None:
    argv = NetworkTool("pasta", "/usr/bin/pasta").argv(join_userns=join_userns)
    assert "--no-map-gw" in argv
    for direction in ("-t", "-u", "-T", "-U"):
        assert argv[argv.index(direction) + 1] == "none"
    assert ("--userns" in argv) is join_userns


def test_slirp_refuses_the_hosts_loopback() -> None:
    argv = NetworkTool("slirp4netns", "/usr/bin/slirp4netns").argv(join_userns=False)
    assert {"--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"} <= set(argv)


def test_addresses_fit_slirps_fixed_layout() -> None:
    assert LINK.network_address + 2 == GATEWAY
    assert LINK.network_address + 3 == DNS
    assert {ROUTER, SANDBOX} <= set(LINK.hosts())
    assert not any(network.overlaps(LINK) for network in ALWAYS_DENIED)
    assert RESOLV_CONF == f"nameserver {DNS}\n"
