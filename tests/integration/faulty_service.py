"""A benchmark service, spoken raw, whose tasks fail the way their names say."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

TASK = {
    "docker_image": "",
    "problem_path": "/tmp/problem.txt",
    "cwd": "/workspace",
    "agent_timeout": 60.0,
    "resources": {"vcpu": 1, "memory": 1, "disk": 1},
}
MEBIBYTE = "x" * (1 << 20)


class FaultyService:
    """`kind-number` tasks: `setup-…` and `grade-…` say where it goes wrong, `ok` where nothing does."""

    def __init__(self, tasks: list[str], *, eval_mode: str | None = None, key: str | None = None) -> None:
        self.tasks = tasks
        self.eval_mode = eval_mode
        self.key = key
        self.asked: Counter[tuple[str, str]] = Counter()
        """(what, task id) → how often."""
        self.responses: dict[str, list[str]] = {}
        self.scored: list[dict[str, Any]] = []
        self.seen_headers: list[dict[str, str]] = []
        self.stream_headers: list[dict[str, str]] = []
        self.listing: Response | None = None
        self.task: dict[str, Any] = TASK

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda _: JSONResponse({"status": "ok"})),
                Route("/version", self._version),
                Route("/verify-task-ids", self._verify, methods=["GET", "POST"]),
                Route("/retrieve-task/", self._retrieve),
                Route("/evaluate-response/", self._evaluate_response, methods=["POST"]),
                Route("/final-score/", self._score, methods=["POST"]),
                WebSocketRoute("/ws/setup-task", self._setup),
                WebSocketRoute("/ws/evaluate-instance", self._evaluate),
                WebSocketRoute("/ws/evaluate-response", self._resume),
            ]
        )

    def _denied(self, headers: Any) -> bool:
        self.seen_headers.append(dict(headers))
        return self.key is not None and headers.get("authorization") != self.key

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"framework_version": "9", "service_version": "1.2", "eval_mode": self.eval_mode})

    async def _verify(self, request: Request) -> Response:
        if self._denied(request.headers):
            return JSONResponse({"detail": "Unauthorized"}, 401)
        if self.listing is not None:
            return self.listing
        if request.query_params.get("dataset") not in (None, "", "default"):
            return JSONResponse({"detail": "Dataset 'x' not found. Available: ['default']"}, 400)
        return JSONResponse({"task_ids": self.tasks})

    async def _retrieve(self, request: Request) -> Response:
        kind = request.query_params["task_id"].rpartition("-")[0]
        if kind == "image":
            return JSONResponse({**self.task, "docker_image": "python:3.12-slim"})
        if kind == "gpu":
            return JSONResponse({**self.task, "resources": {"vcpu": 1, "memory": 1, "disk": 1, "gpu": 1}})
        return JSONResponse(self.task)

    async def _setup(self, socket: WebSocket) -> None:
        task, kind = await self._begin(socket, "setup")
        if await self._go_wrong(socket, kind.removeprefix("setup-") if kind.startswith("setup-") else ""):
            return
        await socket.send_json({"type": "message", "data": f"setting up {task}"})
        await socket.send_json({"type": "result", "data": {"status": "success"}})

    async def _evaluate(self, socket: WebSocket) -> None:
        task, kind = await self._begin(socket, "evaluate")
        wrong = kind.removeprefix("grade-") if kind.startswith("grade-") else ""
        if wrong == "drop-once" and self.asked["evaluate", task] > 1:
            wrong = ""
        if wrong in ("checkpoint", "checkpoint-lost"):
            await socket.send_json({"type": "eval_resume_state", "data": {"task": task, "lost": wrong}})
            await socket.close(1011)
            return
        if await self._go_wrong(socket, wrong):
            return
        await socket.send_json({"type": "result", "data": {"resolved": True, "by": "evaluate"}})

    async def _resume(self, socket: WebSocket) -> None:
        await socket.accept()
        body = json.loads(await socket.receive_text())
        self.asked["resume", body["task_id"]] += 1
        state = body["eval_resume_state"]
        assert body["sandbox_provider"]["DAYTONA_API_URL"].startswith("http://127.0.0.1:")
        if state["lost"] == "checkpoint-lost" and self.asked["resume", body["task_id"]] <= 2:
            await socket.close(1011)
            return
        await socket.send_json({"type": "result", "data": {"resolved": True, "by": "resume"}})

    async def _begin(self, socket: WebSocket, what: str) -> tuple[str, str]:
        await socket.accept()
        assert {"x-api-key", "x-api-url", "x-target"} <= set(socket.headers)
        self.stream_headers.append(dict(socket.headers))
        body = json.loads(await socket.receive_text())
        task: str = body["task_id"]
        self.asked[what, task] += 1
        return task, task.rpartition("-")[0]

    async def _go_wrong(self, socket: WebSocket, how: str) -> bool:
        match how:
            case "error":
                await socket.send_json({"type": "error", "data": "the dataset's checksum is wrong"})
                await socket.close()
            case "recovered":
                await socket.send_json({"type": "error", "data": "a hiccup, going on"})
                return False
            case "drop" | "drop-once":
                await socket.send_json({"type": "message", "data": "about to break"})
                await socket.close(1012)
            case "malformed":
                await socket.send_text("{this is not json")
            case "big":
                await socket.send_json({"type": "message", "data": MEBIBYTE * 50})
                return False
            case "huge":
                await socket.send_json({"type": "message", "data": MEBIBYTE * 70})
            case "nan":
                await socket.send_text('{"type": "result", "data": {"score": NaN}}')
            case "forever":
                await self._stream_forever(socket)
            case "":
                return False
        return True

    async def _stream_forever(self, socket: WebSocket) -> None:
        try:
            while True:
                await socket.send_json({"type": "message", "data": "still at it"})
                await asyncio.sleep(0.01)
        except WebSocketDisconnect:
            return

    async def _evaluate_response(self, request: Request) -> Response:
        body = await request.json()
        task = body["task_id"]
        self.asked["response", task] += 1
        self.responses.setdefault(task, []).append(body["response"])
        kind = task.rpartition("-")[0]
        if kind == "html":
            return HTMLResponse("<html><title>A proxy's page</title></html>")
        failures = {"fails": 1000, "fails-once": 1}.get(kind, 0)
        if self.asked["response", task] <= failures:
            return JSONResponse({"detail": "the judge crashed"}, 500)
        return JSONResponse({"correct": True})

    async def _score(self, request: Request) -> Response:
        body = await request.json()
        results = body["evaluation_results"]
        self.scored.append(results)
        good = sum(bool(one and (one.get("resolved") or one.get("correct"))) for one in results.values())
        return JSONResponse(
            {
                "tasks_evaluated": list(results),
                "final_score": 100 * good / len(results),
                "metadata": {"good": good},
            }
        )
