"""Every name that services of any era import is where they look for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
from pydantic import ValidationError

from benchmark_service.sandbox import ExecResult, ImageSource, Resources, Sandbox, SandboxProvider
from benchmark_service.schemas import RetrieveTaskResponse

SURFACE = {
    "benchmark_service": """BenchmarkService BenchmarkServiceApp BenchmarkServiceClient
        BenchmarkServiceError __version__ BenchmarkServiceUnauthenticatedError
        BenchmarkServiceStreamClosedError SandboxRecoveryAttempt InflightMiddleware EvalMode
        GradingSubmission TextGradingSubmission ArtifactGradingSubmission SandboxRecoveryPolicy
        DatasetVersion DockerProviderConfig SandboxProviderName SandboxCapacityDomain""",
    "benchmark_service.sandbox": """ImageSource Sandbox SandboxCommandError SandboxCreateRequest
        SandboxError SandboxNotFoundError ExecResult DaytonaProviderConfig SandboxProvider SandboxQuery
        Resources SandboxProviderConfig ComposeSandbox ComposeSource SandboxConnectionError
        MissingSandboxConfigError sandbox_provider_config_from_mapping""",
    "benchmark_service.sandbox.types": """Sandbox SandboxProvider SandboxCreateRequest SandboxQuery
        ExecResult Resources ImageSource SnapshotSource TargetedSnapshotSource ComposeSource
        SandboxError SandboxNotFoundError SandboxCommandError SandboxConnectionError""",
    "benchmark_service.sandbox.daytona": "DaytonaSandbox DaytonaSandboxProvider DaytonaProviderConfig",
    "benchmark_service.utils": "stream_command",
    "benchmark_service.context": "current_sandbox_provider",
    "benchmark_service.client": "BenchmarkServiceClient VerifyTaskIdsResponse",
    "benchmark_service.allowlist": "CatalogAllowlistClient",
    "benchmark_service.auth": """_exchange_descope_access_key _catalog_client clear_allowlist_cache
        clear_auth_cache load_allowlist""",
    "benchmark_service.schemas": """EvaluateResponseRequest FinalScoreResponse FinalScoreResult Resources
        RetrieveTaskResponse SetupTaskResponse StreamChunk StreamErrorChunk StreamEvalResumeStateChunk
        StreamMessageChunk StreamResultChunk TaskFilter""",
    "benchmark_service.v1_schemas": "V1Task V1Payload V1PayloadType V1EvalRequest V1EvalResponse",
}


@pytest.mark.parametrize("module", SURFACE)
def test_names(module: str) -> None:
    missing = [name for name in SURFACE[module].split() if not hasattr(import_module(module), name)]
    assert missing == []


class FakeSandbox(Sandbox):
    """As the tests of services write them: attributes of its own, no `super().__init__`."""

    id = name = "fake"
    state = "started"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        return ExecResult(exit_code=0, output=command)

    async def command(self, command: str, **_: Any) -> AsyncIterator[str]:
        yield command

    async def upload_file(self, path: str, content: bytes) -> None:
        self.files[path] = content

    async def download_file(self, path: str) -> bytes:
        return self.files[path]


class FakeProvider(SandboxProvider):
    async def create_sandbox(self, request: Any) -> Sandbox:
        return FakeSandbox()

    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        return FakeSandbox()

    async def delete_sandbox(self, sandbox_id: str) -> None:
        return

    async def list_sandboxes(self, query: Any = None) -> AsyncIterator[Sandbox]:
        yield FakeSandbox()


async def test_fakes_need_only_the_portable_core() -> None:
    async with FakeProvider() as provider:
        assert await provider.check_admission(ImageSource(image="x"), Resources(vcpu=1, memory=1, disk=1))
        assert await provider.get_capacity() is None and await provider.get_capacity_domains() is None
        sandbox = await provider.create_sandbox(None)
        await sandbox.upload_file("/a", b"b")
        assert [piece async for piece in sandbox.stream_download("/a")] == [b"b"]
        assert sandbox.labels is None and (await sandbox.exec("x")).stdout == "x"


def test_a_kind_of_gpu_needs_a_gpu() -> None:
    size = {"vcpu": 1, "memory": 1, "disk": 1}
    assert Resources.model_validate({**size, "enable_docker": True, "gpu": 1, "gpu_type": "h100"}).gpu == 1
    with pytest.raises(ValidationError, match="gpu_type needs gpu"):
        Resources.model_validate({**size, "gpu_type": "h100"})


@pytest.mark.parametrize(
    ("given", "source", "read"),
    [
        ({"docker_image": "a:1"}, {"type": "image", "image": "a:1"}, "a:1"),
        ({"docker_image": "snapshot:s"}, {"type": "snapshot", "snapshot": "s"}, "snapshot:s"),
        (
            {"source": {"type": "targeted_snapshot", "snapshot": "s", "target": "eu"}},
            {"type": "targeted_snapshot", "snapshot": "s", "target": "eu"},
            "targeted-snapshot+source-required",
        ),
        (
            {"source": {"type": "compose", "outer": {"type": "image", "image": "a"}}},
            {
                "type": "compose",
                "outer": {"type": "image", "image": "a"},
                "service": "main",
                "compose_command": "docker compose",
            },
            "compose+source-required",
        ),
    ],
)
def test_either_era_reads_where_a_task_runs(given: Any, source: Any, read: str) -> None:
    rest = {"problem_path": "/p", "cwd": "/", "resources": {"vcpu": 1, "memory": 1, "disk": 1}}
    written = RetrieveTaskResponse.model_validate({**given, **rest}).model_dump(mode="json")
    assert (written["source"], written["docker_image"]) == (source, read)
    assert written["egress"] == {"setup_task": "*", "run": None, "evaluation": "*"}
    assert written["agent_install_order"] == "before_setup" and written["agent_timeout"] is None
    assert RetrieveTaskResponse.model_validate(written).model_dump(mode="json") == written
