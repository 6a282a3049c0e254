"""Where messages may be sent to, whatever an address is dressed up as."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie import targets
from valkyrie.targets import TargetError, check_target, refusal, resolve_target, system_resolver

PUBLIC = "203.0.113.7"


def names(**known: Sequence[str]) -> object:
    def resolver(host: str, port: int) -> Sequence[str]:
        try:
            return known[host.rstrip(".").replace(".", "_").replace("-", "_")]
        except KeyError:
            raise OSError("no such name") from None

    return resolver


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("http://127.1.2.3:8080/hook", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://[::ffff:7f00:1]/", "loopback"),
        ("http://[64:ff9b::7f00:1]/", "loopback"),
        ("http://[2002:7f00:1::]/", "loopback"),
        ("http://[::127.0.0.1]/", "loopback"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://[fd00:0ec2:0::0254]/", "metadata"),
        ("http://100.100.100.200/", "metadata"),
        ("http://169.254.170.2/v2/credentials", "link-local"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fe80::1%25eth0]/", "link-local"),
        ("http://0.0.0.0/", "no single machine"),
        ("http://0.1.2.3/", "no single machine"),
        ("http://[::]/", "no single machine"),
        ("http://224.0.0.1/", "no single machine"),
        ("http://[ff02::1]/", "no single machine"),
        ("http://255.255.255.255/", "reserved"),
    ],
)
def test_addresses_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        check_target(url, allow_local=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
    ],
)
def test_what_this_machines_resolver_makes_of_numbers_and_names_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match="loopback"):
        check_target(url, allow_local=False, resolver=system_resolver)


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["::1"], [PUBLIC, "fe80::1%eth0"], ["169.254.169.254"]],
)
@pytest.mark.parametrize("host", ["evil.example", "evil.example."])
def test_a_name_is_refused_when_one_of_its_addresses_is(host: str, addresses: list[str]) -> None:
    with pytest.raises(TargetError, match=r"evil\.example"):
        check_target(f"https://{host}/", False, names(evil_example=addresses))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address", [PUBLIC, "10.1.2.3", "192.168.0.9", "172.16.0.1", "fd12::1", "2606:4700::1"]
)
def test_public_and_private_addresses_are_allowed(address: str) -> None:
    found = resolve_target("https://fine.example/x", False, names(fine_example=[address]))  # type: ignore[arg-type]
    assert found.addresses == [address]


def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    found = resolve_target("https://twice.example/", False, lambda _host, _port: next(answers))
    assert found.addresses == [PUBLIC]


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[fe80::1]/", "http://169.254.169.254/"])
def test_local_addresses_may_be_allowed(url: str) -> None:
    check_target(url, allow_local=True)


@pytest.mark.parametrize("url", ["http://0.0.0.0/", "http://[ff02::1]/", "http://[::ffff:0.0.0.0]/"])
def test_some_are_never_allowed(url: str) -> None:
    with pytest.raises(TargetError):
        check_target(url, allow_local=True)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "example.org",
        "//example.org",
        "http://",
        "https:///path",
        "http://user:hunter2@example.org/",
        "http://token@example.org/",
        "http://[::1",
        "http://0177.0.0.1/",
        "http://example.org:99999/",
        "http://example.org:0/",
        "http://a\r\nHost: b/",
        "http://①②⑦.⓪.⓪.①/",
        "http://x/" + "y" * 3000,
        "",
    ],
)
def test_what_is_no_plain_http_address_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(TargetError) as caught:
        check_target(url, allow_local=True)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_name_nobody_knows_is_no_reason_to_refuse_before() -> None:
    check_target("https://later.example/", False, names())  # type: ignore[arg-type]
    with pytest.raises(OSError):
        resolve_target("https://later.example/", False, names())  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_however_ipv6_writes_it(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    inside = refusal(plain, allow_local=False)
    assert refusal(ipaddress.IPv6Address(f"::ffff:{plain}"), allow_local=False) == inside
    assert refusal(ipaddress.IPv6Address((0x64FF9B << 96) | number), allow_local=False) == inside
    assert refusal(ipaddress.IPv6Address((0x2002 << 112) | (number << 80)), allow_local=False) == inside


PRIVATE = (
    "10.0.0.1",
    "172.16.5.5",
    "192.168.1.10",
    "100.64.0.1",
    "198.18.0.1",
    "fd12::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:c0a8:10a::",
)


@pytest.mark.parametrize("text", PRIVATE)
def test_callers_of_a_tracker_reach_public_addresses_only(text: str) -> None:
    url = f"http://[{text}]:8080" if ":" in text else f"http://{text}:8080"
    check_target(url, allow_local=False)  # on one's own machine
    for local in (False, True):
        for loopback in (False, True):
            with pytest.raises(TargetError, match=r"no public address; .* tracker\.allowed_networks"):
                check_target(url, local, only_loopback=loopback, networks=())
    check_target("http://93.184.216.34", allow_local=False, networks=())


def test_the_operator_allows_networks_by_name() -> None:
    allowed = ("10.1.0.0/16", "127.0.0.0/8", "fd12::/16")
    for url in ("http://10.1.2.3", "http://127.0.0.1:9", "http://[fd12::7]", "http://[::ffff:10.1.0.1]"):
        check_target(url, allow_local=False, only_loopback=True, networks=allowed)
    for url in ("http://10.2.0.1", "http://[::1]", "http://169.254.169.254"):
        with pytest.raises(TargetError):
            check_target(url, allow_local=False, only_loopback=True, networks=allowed)


def test_a_public_address_of_this_machine_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall does not stand between a machine and itself."""
    check_target("http://93.184.216.34", allow_local=False, networks=())
    monkeypatch.setattr("valkyrie.targets._is_own", lambda address: str(address) == "93.184.216.34")
    with pytest.raises(TargetError, match="no public address"):
        check_target("http://93.184.216.34", allow_local=False, networks=())
    check_target("http://93.184.216.34", allow_local=False)


def test_own_addresses_are_known() -> None:
    assert targets._is_own(ipaddress.ip_address("127.0.0.1"))
    assert not targets._is_own(ipaddress.ip_address("93.184.216.34"))


def test_metadata_is_allowed_to_nobody_by_a_hint() -> None:
    with pytest.raises(TargetError) as refused:
        check_target("http://169.254.169.254", allow_local=False, only_loopback=True, networks=())
    assert "allowed_networks" not in str(refused.value)
