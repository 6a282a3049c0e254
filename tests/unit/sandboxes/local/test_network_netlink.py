from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from sandboxes.local.routes import Netlink, attribute, attributes, open_socket


def test_attributes_are_padded_and_read_back() -> None:
    row = attribute(3, "eth0") + attribute(4, 1500)
    row += attribute(1, IPv4Address("192.0.2.1")) + attribute(9, b"x")
    assert len(row) % 4 == 0
    assert list(attributes(row)) == [
        (3, b"eth0\0"),
        (4, (1500).to_bytes(4, "little")),
        (1, bytes([192, 0, 2, 1])),
        (9, b"x"),
    ]


@pytest.mark.parametrize("row", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\0\0\0\0"])
def test_broken_attributes_end_the_row(row: bytes) -> None:
    assert list(attributes(row)) == []


def test_the_kernel_answers() -> None:
    netlink = Netlink(open_socket())
    try:
        assert netlink.link_index("lo") == 1
        assert IPv4Network("127.0.0.0/8") in netlink.local_networks()
        with pytest.raises(OSError, match="No such device"):
            netlink.link_index("no-such-link")
    finally:
        netlink.close()
