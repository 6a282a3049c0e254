"""A service on real sandboxes, reached the way services reach them: through the Daytona SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_service.schemas import StreamChunk
from benchmark_service.utils import stream_command
from tests.integration.benchmark_service.conftest import live_app
from tests.integration.benchmark_service.test_sockets import hear
from tests.integration.benchmark_service.toy_service import ToyService, chunk
from tests.integration.sandbox_serving import Serving, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving("process", tmp_path / "state") as served:
        yield served


async def lines_of(*args: Any, **kwargs: Any) -> list[str]:
    return [line async for line in stream_command(*args, **kwargs)]


async def test_over_the_sdk_s_own_sandbox(served: Serving) -> None:
    sandbox = await served.sandbox()
    assert await lines_of(sandbox, "mkdir -p 'it is/here' && pwd", "/tmp") != []
    where = await lines_of(sandbox, "echo out; echo err >&2; printf 'é%.0s' 1 2 3; pwd", "/tmp/it is/here")
    assert {"out", "err"} <= set(where)
    assert any(line.startswith("ééé") and line.endswith("it is/here") for line in where)
    with pytest.raises(ValueError, match="Command failed with exit code 3"):
        await lines_of(sandbox, "exit 3", "/tmp")
    assert await lines_of(sandbox, "echo bye; exit 3", "/tmp", ignore_error=True) == ["bye"]
    assert await sandbox.process.list_sessions() == []


class OnSandboxes(ToyService):
    """Seed-era setup, through the vendor's `fs`; grading through the protocol and `stream_command`."""

    async def setup_task(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        await sandbox.fs.upload_file(b"echo prepared; echo $0\n", "/tmp/setup.sh")
        async for line in stream_command(sandbox, "sh /tmp/setup.sh", "/tmp"):
            yield chunk("message", line)
        yield chunk("result", {"status": "ok"})

    async def evaluate_instance(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        raw = sandbox._sandbox
        async for line in stream_command(raw, "cat setup.sh | wc -l", "/tmp"):
            yield chunk("message", line.strip())
        yield chunk("result", {"run": raw.labels["Id"], "script": (await sandbox.exec("ls /tmp")).exit_code})


async def test_a_service_on_a_real_sandbox(served: Serving) -> None:
    grant = served.grant(run="run-7")
    sandbox = await served.sandbox(await served.client(grant))
    headers = {"x-api-key": grant.api_key, "x-api-url": grant.api_url, "x-target": grant.target}
    request = {"task_id": "t1", "instance_id": sandbox.id}
    with live_app(OnSandboxes) as live:
        setup = await hear(live, "/ws/setup-task", request, headers)
        assert setup.chunks[0] == {"type": "message", "data": "prepared"}
        assert setup.chunks[-1] == {"type": "result", "data": {"status": "ok"}}
        graded = await hear(live, "/ws/evaluate-instance", request, headers)
        assert graded.chunks == [
            {"type": "message", "data": "1"},
            {"type": "result", "data": {"run": "run-7", "script": 0}},
        ]
        gone = await hear(live, "/ws/setup-task", {**request, "instance_id": "no-such"}, headers)
        assert [each["type"] for each in gone.chunks] == ["error"] and grant.api_key not in gone.errors[0]
