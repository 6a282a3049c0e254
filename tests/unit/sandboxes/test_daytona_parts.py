"""The parts of the Daytona provider that need no sandbox."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxes import scripted_sandbox
from sandboxes.daytona import sandbox as egress
from sandboxes.daytona import sdk
from sandboxes.daytona.provider import IDLE_MINUTES, MADE_LABEL, creation_parameters
from sandboxes.daytona.sandbox import DaytonaSandbox, Report
from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxFullError,
    SandboxUnsupportedError,
)
from sandboxes.retry import LONGEST_ASKED_S
from sandboxes.scripted_sandbox import MAX_FIND_BYTES, FindPattern, wrapped
from sandboxes.types import (
    Command,
    ComposeSource,
    CopyLimits,
    CopyReport,
    HostSource,
    ImageSource,
    Resources,
    SandboxCreateRequest,
    SandboxLimits,
    SnapshotSource,
    TargetedSnapshotSource,
)


@pytest.mark.parametrize(
    ("pattern", "listed", "found"),
    [
        ("/a/*.txt", ["x.txt", "y.md", ".h.txt", "b/z.txt"], ["/a/x.txt"]),
        ("/a/.*", [".h", "x"], ["/a/.h"]),
        ("/a/**/x", ["x", "b/x", "b/c/x", ".hidden/x", "b/y"], ["/a/b/c/x", "/a/b/x", "/a/x"]),
        ("/a/**", ["x", "b/c/y"], ["/a/b/c/y", "/a/x"]),
        ("/a/[xy]?", ["x1", "y2", "z3", "x"], ["/a/x1", "/a/y2"]),
        ("/a/x", ["x", "b/x"], ["/a/x"]),
        ("a/x", ["x"], ["/a/x"]),
        ("/*", ["top"], ["/top"]),
        ("/a/**", ["../out", "b/../../out"], []),
        ("/a/*", ["bad\ufffdname", "line\nbreak"], ["/a/line\nbreak"]),
    ],
)
def test_patterns(pattern: str, listed: list[str], found: list[str]) -> None:
    output = "".join(f"./{name}\0" for name in listed)
    assert FindPattern(pattern).matches(output) == found


def test_a_pattern_that_is_too_wide_is_refused() -> None:
    with pytest.raises(SandboxError, match="narrower"):
        FindPattern("/**").matches("x" * MAX_FIND_BYTES)


def test_egress_rules() -> None:
    assert egress.egress_settings(["https://pypi.org/simple", "*.Example.com"]) == {
        "domain_allow_list": "pypi.org,*.example.com"
    }
    assert egress.egress_settings(["10.0.0.0/8", "http://1.2.3.4:80/x"]) == {
        "network_allow_list": "10.0.0.0/8,1.2.3.4/32"
    }


@pytest.mark.parametrize(
    "rules", [[], ["pypi.org", "10.0.0.0/8"], ["::1"], ["http://[::1]/"], ["a b"], ["x:1"]]
)
def test_egress_rules_that_cannot_be(rules: list[str]) -> None:
    with pytest.raises(SandboxError):
        egress.egress_settings(rules)


class Failure(Exception):
    def __init__(self, status: int | None = None, text: str = "it said", **fields: Any) -> None:
        super().__init__(text)
        self.status_code = status
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(404), SandboxFileNotFoundError),
        (Failure(None, code="FILE_NOT_FOUND"), SandboxFileNotFoundError),
        (Failure(429), SandboxCapacityError),
        (Failure(502), SandboxConnectionError),
        (Failure(507), SandboxFullError),
        (Failure(400, "write: no space left on device"), SandboxFullError),
        (ConnectionResetError("reset"), SandboxConnectionError),
        (TimeoutError(), SandboxConnectionError),
        (Failure(400), SandboxError),
        (Failure(None), SandboxError),
    ],
)
def test_failures_in_our_own_terms(failure: Exception, kind: type[SandboxError]) -> None:
    assert type(sdk.translated(failure, "do it")) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3),
        ({"retry-after-anonymous": "7", "Retry-After": "3"}, 7),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"Retry-After": "2", "Retry-After-Sandbox": "Fri, 01 Jan 2100 00:00:00 GMT"}, LONGEST_ASKED_S),
        ({"X-Retry-After": "3"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert sdk.retry_after(Failure(429, headers=headers)) == seconds


def test_values_are_no_arguments() -> None:
    text = wrapped(Command.shell("env", env={"KEY": "se'cret"}, cwd="/a b"), "mark")
    assert text.startswith("( cd '/a b' || exit 126; ")
    assert "se" not in text[text.index("exec ") :]


def request(**fields: Any) -> SandboxCreateRequest:
    return SandboxCreateRequest(**fields)


def test_images_come_with_whole_resources() -> None:
    made: Any = creation_parameters(
        request(
            source=ImageSource(image="debian:12"),
            resources=Resources(vcpu=2, memory=4, disk=10, gpu=1, gpu_type="H100"),
            limits=SandboxLimits(memory_mb=1500),
            auto_stop_interval=7,
            network_block_all=True,
            labels={"Id": "r"},
            env_vars={"A": "1"},
        ),
        "unique",
    )
    assert made.image == "debian:12"
    assert (made.resources.cpu, made.resources.memory, made.resources.disk) == (2, 2, 10)
    assert (made.resources.gpu, made.resources.gpu_type.value) == (1, "H100")
    assert (made.auto_stop_interval, made.auto_delete_interval, made.network_block_all) == (7, 0, True)
    assert made.labels == {"Id": "r", MADE_LABEL: "unique"}
    assert made.env_vars == {"A": "1"}


def test_other_sources() -> None:
    snapshot: Any = creation_parameters(request(source=SnapshotSource(snapshot="s")), "u")
    assert (snapshot.snapshot, snapshot.target, snapshot.auto_stop_interval) == ("s", None, IDLE_MINUTES)
    targeted: Any = creation_parameters(
        request(source=TargetedSnapshotSource(snapshot="s", target="eu")), "u"
    )
    assert (targeted.snapshot, targeted.target) == ("s", "eu")
    outer: Any = creation_parameters(
        request(source=ComposeSource(outer=SnapshotSource(snapshot="dind"))), "u"
    )
    assert outer.snapshot == "dind"
    plain: Any = creation_parameters(request(), "u")
    assert (plain.snapshot, plain.network_block_all) == (None, False)
    assert creation_parameters(request(network="allowlist"), "u").network_block_all is True
    with pytest.raises(SandboxUnsupportedError, match="root"):
        creation_parameters(request(source=HostSource(rootfs="/srv")), "u")
    with pytest.raises(SandboxError, match="H100"):
        creation_parameters(
            request(
                source=ImageSource(image="x"),
                resources=Resources(vcpu=1, memory=1, disk=1, gpu=1, gpu_type="none-such"),
            ),
            "u",
        )


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def unpacked(
    members: list[tuple[tarfile.TarInfo, bytes]], destination: Path, limits: CopyLimits | None = None
) -> CopyReport:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive.seek(0)
    report = CopyReport()
    scripted_sandbox.FolderUnpacker(destination, limits or CopyLimits(), report, cut=False).run(archive)
    return report


def test_an_archive_from_a_sandbox_leads_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    members = [
        (member("../up"), b"x"),
        (member("a/../../up"), b"x"),
        (member("link", tarfile.SYMTYPE, str(outside)), b""),
        (member("hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (member("null", tarfile.CHRTYPE), b""),
        (member("fifo", tarfile.FIFOTYPE), b""),
        (member(f"{outside}/absolute"), b"inside after all"),
        (member("link/through"), b"a folder of its own"),
        (member("good"), b"good"),
        (member("good/below"), b"x"),
    ]
    report = unpacked(members, tmp_path / "out")
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "outside"]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert kept == {"absolute": b"inside after all", "through": b"a folder of its own", "good": b"good"}
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (report.files, report.skipped_count) == (3, 7)


def test_garbage_instead_of_an_archive(tmp_path: Path) -> None:
    unpacking = scripted_sandbox.FolderUnpacker(tmp_path / "out", CopyLimits(), CopyReport(), cut=False)
    with pytest.raises(SandboxError, match="packed"):
        unpacking.run(io.BytesIO(b"no archive at all" * 100))


def test_an_archive_that_was_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name in ("first", "second"):
            tar.addfile(member(name, size=5000), io.BytesIO(b"x" * 5000))
    report = CopyReport()
    cut = io.BytesIO(whole.getvalue()[:7000])
    scripted_sandbox.FolderUnpacker(tmp_path / "out", CopyLimits(), report, cut=True).run(cut)
    assert (tmp_path / "out/first").stat().st_size == 5000
    assert any("rest" in reason for _, reason in report.skipped)


def test_packing_keeps_modes_and_links_inside(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/run").write_text("x")
    (tmp_path / "in/run").chmod(0o4755)
    (tmp_path / "in/sub/link").symlink_to(tmp_path / "in/run")
    archive = io.BytesIO()
    scripted_sandbox.pack_folder(tmp_path / "in", archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert sorted(tar.getnames()) == ["run", "sub", "sub/link"]
        assert tar.getmember("run").mode == 0o755
        assert tar.getmember("sub/link").linkname == "../run"
    (tmp_path / "in/out").symlink_to("/etc")
    with pytest.raises(SandboxError, match="link"):
        scripted_sandbox.pack_folder(tmp_path / "in", io.BytesIO())


@pytest.mark.parametrize("before", ["", "oops\n", "\036", "\036abc\036", "x\036\036"])
@pytest.mark.parametrize("cut", range(0, 24, 3))
def test_a_report_is_taken_out_of_stderr(before: str, cut: int) -> None:
    report = Report()
    text = f"{before}\036{report.token}:7:1\036"
    handed_on = report.feed(text[:cut]) + report.feed(text[cut:])
    assert (handed_on, report.read()) == (before, (7, True))


def test_a_report_of_nonsense_is_none() -> None:
    report = Report()
    assert report.feed("plain") == "plain"
    assert report.feed(f"\036{report.token}:{'9' * 200}")
    assert report.read() is None


def test_a_sandbox_of_a_services_test_needs_no_labels() -> None:
    sandbox = DaytonaSandbox(SimpleNamespace(id="s1", name="one"))  # type: ignore[arg-type]
    assert (sandbox.id, sandbox.labels, sandbox.created_at) == ("s1", {}, None)
