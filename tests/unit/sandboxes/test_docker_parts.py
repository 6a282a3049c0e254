"""What of the Docker provider needs no engine."""

from __future__ import annotations

import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from sandboxes.docker import DockerProvider
from sandboxes.docker.container_config import LABELS, ContainerPlan, container, container_name, shown_folders
from sandboxes.docker.engine import Engine, find_engine
from sandboxes.docker.execution import ExitCodeReader
from sandboxes.docker.images import context_digest, tag_of
from sandboxes.docker.sandbox import moment
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.folder_contents import LEFTOVERS, Dockerignore, FolderDigests, folder_digest
from sandboxes.protocol import ImageDefaults
from sandboxes.registry import open_provider
from sandboxes.scripted_sandbox import pack_context
from sandboxes.types import BuildSource, Mount, Resources, SandboxCreateRequest, SandboxLimits

HERE = Engine("unix:///run/engine.sock", {"NCPU": 4})
AWAY = Engine("tcp://engine:2375", {"NCPU": 4})


def body(engine: Engine = HERE, **fields: object) -> dict:
    request = SandboxCreateRequest.model_validate(fields)
    return container(request, ContainerPlan("image", ImageDefaults("/app"), engine))


@pytest.mark.parametrize("cut", range(1, 22))
def test_the_end_is_found_however_it_is_cut(cut: int) -> None:
    ending = ExitCodeReader("0123456789abcdef")
    told = b"out\x1eput\x1e0123456789abcdef:42\x1elate"
    pieces = [told[at : at + cut] for at in range(0, len(told), cut)]
    assert b"".join(ending.feed(piece) for piece in pieces) == b"out\x1eput"
    assert ending.code == 42


def test_what_looks_like_an_end_is_output() -> None:
    ending = ExitCodeReader("0123456789abcdef")
    said = ending.feed(b"a\x1e0123456789abcdef:x\x1e") + ending.feed(b"b" * 100) + ending.rest()
    assert said == b"a\x1e0123456789abcdef:x\x1e" + b"b" * 100
    assert ending.code is None


def test_limits_and_privileges() -> None:
    limits = SandboxLimits(cpus=64, memory_mb=100, disk_mb=10)
    host = body(limits=limits, network="none")["HostConfig"]
    assert host["NanoCpus"] == 4_000_000_000
    assert host["Memory"] == host["MemorySwap"] == 100 << 20
    assert host["PidsLimit"] == 256
    assert host["NetworkMode"] == "none"
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges"])
    assert not {"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE", "MKNOD"} & set(host["CapAdd"])
    assert "StorageOpt" not in host
    quota = Engine("tcp://x", {"Driver": "btrfs"})
    assert body(quota, limits=limits)["HostConfig"]["StorageOpt"] == {"size": str(10 << 20)}


def test_gpus_are_passed_on_as_they_were_asked_for() -> None:
    asked = [{"Count": 2, "Capabilities": [["gpu"]]}]
    assert body(limits=SandboxLimits(gpus=2))["HostConfig"]["DeviceRequests"] == asked
    resources = Resources(vcpu=1, memory=1, disk=1, gpu=2)
    assert body(resources=resources)["HostConfig"]["DeviceRequests"] == asked
    assert "DeviceRequests" not in body(limits=SandboxLimits(cpus=1))["HostConfig"]


def test_labels_of_an_image_cannot_pass_for_the_requests() -> None:
    labels = body(labels={"Home": "mine"})["Labels"]
    assert labels["Home"] == "mine"
    assert json.loads(labels[LABELS]) == {"Home": "mine"}


def test_what_is_asked_for_in_vain() -> None:
    with pytest.raises(SandboxUnsupportedError, match="another machine"):
        shown_folders(SandboxCreateRequest(mounts=(Mount(source="/srv", target="/x"),)), AWAY)
    with pytest.raises(SandboxUnsupportedError, match="gpu_type"):
        body(resources=Resources(vcpu=1, memory=1, disk=1, gpu=1, gpu_type="H100"))
    with pytest.raises(SandboxError, match="environment variable"):
        body(env_vars={"NOT OK": "x"})


def test_names_are_what_engines_take() -> None:
    request = SandboxCreateRequest(name="../a b/ü-1")
    assert container_name(request, "ff") == "valkyrie-a-b--1-ff"
    assert tag_of("ab" * 32) == "valkyrie-build:" + "ab" * 32


def test_variables_of_an_image_that_are_refused_are_taken_away() -> None:
    names = ("PATH", "MODEL_URL", "GIVEN")
    request = SandboxCreateRequest(env_vars={"GIVEN": "1"}, refused_image_env=lambda name: name != "PATH")
    made = container(request, ContainerPlan("image", ImageDefaults("/app"), HERE, image_env=names))
    assert made["Env"] == ["GIVEN=1", "MODEL_URL"]
    assert (
        container(
            SandboxCreateRequest(), ContainerPlan("image", ImageDefaults("/app"), HERE, image_env=names)
        )["Env"]
        == []
    )
    assert "refused_image_env" not in request.model_dump()


def test_an_image_is_kept_under_the_digest_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    known, digest = FolderDigests(), folder_digest(tmp_path)
    assert context_digest(BuildSource(context=str(tmp_path), digest=f"sha256:{digest}"), known) == digest
    for named in ("ab" * 32, "sha256:../../etc", ""):
        with pytest.raises(SandboxUnsupportedError, match="not what was planned"):
            context_digest(BuildSource(context=str(tmp_path), digest=named), known)
    (tmp_path / "more").write_text("")
    with pytest.raises(SandboxUnsupportedError, match="start a new run"):
        context_digest(BuildSource(context=str(tmp_path), digest=digest), known)
    (tmp_path / "Other").write_text("FROM scratch\n")
    source = BuildSource(context=str(tmp_path), digest=folder_digest(tmp_path), dockerfile="Other")
    assert context_digest(source, known) not in (digest, source.digest)
    with pytest.raises(SandboxUnsupportedError, match="has no Dockerfile"):
        context_digest(BuildSource(context=str(tmp_path / "none"), digest=digest), known)


def test_a_build_is_given_nothing_its_digest_leaves_out(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "__pycache__").mkdir(parents=True)
    (context / "__pycache__" / "x.pyc").write_text("other code")
    (context / "private").write_text("x")
    (context / "private").chmod(0o600)
    (context / "program").write_text("x")
    (context / "program").chmod(0o4711)
    with (tmp_path / "packed.tar").open("wb") as packed:
        pack_context(context, packed, LEFTOVERS, Dockerignore.of(context))
    with tarfile.open(tmp_path / "packed.tar") as tar:
        assert {member.name: member.mode for member in tar} == {"private": 0o644, "program": 0o755}


def test_times_with_nanoseconds() -> None:
    assert moment("2026-01-02T03:04:05.123456789Z").isoformat() == "2026-01-02T03:04:05+00:00"
    assert moment("2026-01-02T03:04:05.123456789+02:00").isoformat() == "2026-01-02T03:04:05+02:00"


def test_without_an_engine_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_engine({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert found.problem is not None
    assert f"{tmp_path}/none.sock" in found.problem
    assert "setup-system --docker" in found.problem
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert open_provider("docker", tmp_path).capabilities().problem == found.problem
    for address in ("ssh://somewhere", "nonsense"):
        assert "DOCKER_HOST" in str(find_engine({"DOCKER_HOST": address}).problem)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b'{"NCPU": 2, "OSType": "linux", "Driver": "overlay2"}', None),
        (b'{"OSType": "windows"}', "switch it to Linux"),
        (b"not json", "no container engine"),
        (b"[]", "no container engine"),
    ],
)
def test_an_engine_is_known_by_its_answer(tmp_path: Path, answer: bytes, problem: str | None) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def address_string(self) -> str:
            return "test"

        def log_message(self, *words: object) -> None: ...

    with UnixStreamServer(str(tmp_path / "s"), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        found = find_engine({"DOCKER_HOST": f"unix://{tmp_path}/s"})
        thread.join()
    assert (found.problem is None) if problem is None else (problem in str(found.problem))


async def test_the_image_of_a_task_without_one_may_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    monkeypatch.delenv("VALKYRIE_DOCKER_IMAGE", raising=False)
    said = [
        provider.capabilities().enforcement["image"]
        for provider in (
            DockerProvider(tmp_path),
            open_provider("docker", tmp_path, {"docker_image": "mine:1"}),
        )
    ]
    assert [words.split()[0] for words in said] == ["python:3.12", "mine:1"]
