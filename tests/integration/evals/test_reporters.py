"""Whoever is told of an eval besides people: plugins, and a collector of traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.evals.commands import Valk, valk
from tests.integration.evals.test_eval_command import SAYS_BYE, fixture, spec, stimulus

__all__ = ["valk"]

REPORTER = """
import json, pathlib
class Told:
    name = "told"
    def write(self, *words):
        with pathlib.Path("told.jsonl").open("a") as file:
            print(json.dumps(words), file=file)
    def on_run_start(self, run):
        self.write("start", run)
    def on_trial_result(self, trial):
        self.write("trial", trial)
    def on_run_complete(self, summary, artifacts, status):
        self.write("end", summary, artifacts, status)
"""


def told(tmp_path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]


def test_a_reporter_is_told_of_everything(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REPORTER)
    file = spec(tmp_path, stimulus("a"), stimulus("b", SAYS_BYE), scoring={"threshold": 0})
    assert valk("eval", "-e", file, "--reporter-plugin", "mine.py", "--run-id", "r7").code == 0
    start, first, second, end = told(tmp_path)
    assert (start[1]["runId"], start[1]["evals"][0]["threshold"]) == ("r7", 0)
    assert [one[1]["result"]["gradeResult"]["score"] for one in (first, second)] == [1, 0]
    assert first[1]["item"]["id"] == first[1]["result"]["itemId"]
    assert (end[1]["type"], end[3]) == ("run-summary", "passed")
    assert Path(end[2]["results"]).is_file()


def test_a_reporter_that_fails_changes_nothing(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "class Bad:\n    def on_trial_result(self, trial): raise OSError('gone')\n"
    )
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a"), stimulus("b")), "--reporter-plugin", "bad.py")
    assert ended.code == 0
    assert ended.err.count("The reporter Bad failed in on_trial_result") == 1
    refused = valk("eval", "-e", "eval.yaml", "--reporter-plugin", "gone.py")
    assert refused.code == 2 and "gone.py" in refused.err
    (tmp_path / "none.py").write_text("x = 1\n")
    assert "has no reporter" in valk("eval", "-e", "eval.yaml", "--reporter-plugin", "none.py").err


def test_a_projects_reporters_are_loaded_from_trusted_projects_only(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REPORTER)
    (tmp_path / ".vally.yaml").write_text("plugins: {reporters: [./mine.py]}\nmetadata: {team: blue}\n")
    file = spec(tmp_path, stimulus("a"))
    refused = valk("eval", "-e", file)
    assert refused.code == 2 and "valk trust" in refused.err, refused.err
    assert valk("eval", "-e", file, "--dry-run").code == 0
    assert not (tmp_path / "told.jsonl").exists()
    assert valk("eval", "-e", file, "--trust").code == 0
    assert told(tmp_path)[0][1]["metadata"] == {"team": "blue"}


@contextmanager
def collecting() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector of traces on loopback."""
    taken: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_traces_reach_a_collector(valk: Valk, tmp_path: Path) -> None:
    call = {"type": "tool_call", "data": {"toolName": "bash", "toolCallId": "c", "arguments": {}}}
    fixture(tmp_path, "a", output="hello", events=[call])
    fixture(tmp_path, "broken", error="the model is gone")
    file = spec(tmp_path, stimulus("a"), stimulus("broken"))
    with collecting() as (url, taken):
        valk("eval", "-e", file, "--otlp-endpoint", url, "--run-id", "traced", "--model", "m")
    spans = {
        span.name: span
        for request in taken
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert set(spans) == {"trial a", "execute_tool bash", "trial broken"}
    trial, tool = spans["trial a"], spans["execute_tool bash"]
    assert (tool.trace_id, tool.parent_span_id) == (trial.trace_id, trial.span_id)
    said = {one.key: one.value for one in trial.attributes}
    assert said["valkyrie.run.id"].string_value == "traced"
    assert said["valkyrie.passed"].bool_value is True
    assert said["gen_ai.request.model"].string_value == "m"
    assert spans["trial broken"].status.code == 2


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x"])
def test_an_address_that_is_none(valk: Valk, tmp_path: Path, url: str) -> None:
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a")), "--otlp-endpoint", url)
    assert ended.code == 2 and "begins with http:// or https://" in ended.err
