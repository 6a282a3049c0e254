"""What a probe prints, and which packages fit."""

from __future__ import annotations

import pytest

from valkyrie.agents.packages import RootKind, filled, read_kind
from valkyrie.errors import InfrastructureError, UserError

pytestmark = pytest.mark.slow

DEBIAN = "machine=x86_64\nlibc=glibc 2.36\npython=3.11\nnode=v20.20.2\n"


def test_a_full_root_is_read() -> None:
    assert read_kind(DEBIAN) == RootKind("x86_64", "glibc", "2.36", python="3.11", node=20)


def test_a_bare_musl_root_is_read() -> None:
    found = read_kind("machine=aarch64\nlibc=musl 1.2\npython=\nnode=\n")
    assert found == RootKind("aarch64", "musl", "1.2")


def test_an_old_node_is_none() -> None:
    assert read_kind(DEBIAN.replace("v20", "v12")).node is None


def test_a_root_that_does_not_say_its_libc_is_taken_for_an_old_one() -> None:
    found = read_kind("machine=x86_64\npython=3.9\n")
    assert (found.libc, found.libc_version) == ("glibc", "2.17")


@pytest.mark.parametrize("said", ["", "node=v20.1.1\n", "rubbish" * 1000])
def test_a_sandbox_without_a_shell_says_so(said: str) -> None:
    with pytest.raises(InfrastructureError, match="printed nothing"):
        read_kind(said)


def test_other_machines_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="riscv64"):
        read_kind("machine=riscv64\n")


def test_what_an_image_prints_is_never_taken_as_it_is() -> None:
    found = read_kind(DEBIAN.replace("3.11", "3.11; rm -rf /").replace("2.36", "2.36'\"$(x)"))
    assert found.python is None
    assert found.libc_version in ("2.36", "2.17")


@pytest.mark.parametrize(
    ("root", "names"),
    [
        (RootKind("x86_64", "glibc", "2.36"), ["a-linux-x64@1", "b-linux-x64@1"]),
        (RootKind("aarch64", "musl", "1.2"), ["a-linux-arm64-musl@1", "b-linuxmusl-arm64@1"]),
    ],
)
def test_package_names_follow_the_root(root: RootKind, names: list[str]) -> None:
    assert filled(["a-linux-{cpu}{musl}@1", "b-{linux}-{cpu}@1"], root) == names
