"""The agent mock: an echo, or what a fixture says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandboxes.null import NullProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest
from valkyrie.agents import CATALOG, open_agent, open_frozen
from valkyrie.agents.library import AgentLibrary
from valkyrie.agents.mock import FixtureError, Mock, read_fixture
from valkyrie.agents.protocol import AgentExit, AgentOptions, AgentTrial
from valkyrie.domain import ExitReason, TaskSpec, Timeouts
from valkyrie.errors import AgentError, UsageError
from valkyrie.trajectory.transcript import Transcript


class Stage:
    """A workspace in which the agent is run."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder

    async def run(self, fixture: Any = ..., *, k: int = 0, attempt: int = 1, **task: Any) -> AgentExit:
        metadata = {} if fixture is ... else {"mock_fixture": fixture}
        spec = TaskSpec("greet", "d", "Say hello.", cwd="/workspace", metadata=metadata, **task)
        trial = AgentTrial(
            spec, self.sandbox, {}, lambda _s, _t: None, kept=self.folder / "kept", k=k, attempt=attempt
        )
        self.ended = await Mock(AgentOptions("some-model")).run(trial)
        return self.ended

    @property
    def told(self) -> Transcript:
        assert self.ended.told is not None
        return self.ended.told


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    return Stage(await NullProvider().create_sandbox(SandboxCreateRequest()), tmp_path)


async def test_it_says_what_it_was_told(stage: Stage) -> None:
    ended = await stage.run()
    assert (ended.exit_code, ended.usage, ended.trouble) == (0, None, None)
    assert (stage.told.output, stage.told.model, stage.told.executor) == ("Say hello.", "some-model", "mock")
    kinds = [event.type for event in stage.told.events]
    assert kinds == ["turn_start", "user_message", "assistant_message", "turn_end"]
    assert stage.told.measures.turn_count == 1


async def test_each_turn_has_an_answer(stage: Stage) -> None:
    await stage.run({"turns": ["Hi.", {"output": "Ho."}]}, turns=("a", "b", "c"))
    said = [event.data["content"] for event in stage.told.of_type("assistant_message")]
    assert (said, stage.told.output) == (["Hi.", "Ho.", "c"], "c")


async def test_a_fixture_of_the_workspace_is_found(stage: Stage) -> None:
    await stage.sandbox.upload_file("/workspace/.mock-executor/greet.json", b'{"output": "Hello."}')
    await stage.run()
    assert stage.told.output == "Hello."


async def test_the_benchmarks_word_wins(stage: Stage) -> None:
    await stage.sandbox.upload_file("/workspace/.mock-executor/greet.json", b'{"output": "Hello."}')
    await stage.run({"output": "Good day."})
    assert stage.told.output == "Good day."
    await stage.run(None)
    assert stage.told.output == "Hello."


async def test_it_does_what_the_fixture_says(stage: Stage) -> None:
    call: Any = {"type": "tool_call", "data": {"toolName": "bash", "arguments": {"command": "ls"}}}
    fixture = {
        "output": "Done.",
        "events": [call, {"type": "skill_activation", "data": {"name": "tidy"}}],
        "metrics": {"tokenUsage": {"inputTokens": 10, "outputTokens": 5}, "turnCount": 7},
        "files": {"out/a.txt": "made"},
        "exit_code": 3,
    }
    ended = await stage.run(fixture)
    assert ended.exit_code == 3
    assert ended.usage is not None and (ended.usage.input_tokens, ended.usage.steps) == (10, 7)
    assert await stage.sandbox.download_file("/workspace/out/a.txt") == b"made"
    measures = stage.told.measures
    assert (measures.tool_call_count, measures.skill_activation_count, measures.total_tokens) == (1, 1, 15)
    (found,) = stage.told.of_type("tool_call")
    assert found.data == {**call["data"], "turnId": "0"}


async def test_trials_differ(stage: Stage) -> None:
    fixture = {"output": "all", "trials": [{"output": "first"}, {}, {"turns": ["last"]}]}
    said = []
    for k in range(4):
        await stage.run(fixture, k=k)
        said.append(stage.told.output)
    assert said == ["first", "all", "last", "last"]


async def test_errors_that_pass_are_the_models(stage: Stage) -> None:
    fixture = {"output": "x", "error": {"message": "429", "retryable": True, "times": 2}}
    found = [await stage.run(fixture, attempt=attempt) for attempt in (1, 2, 3)]
    causes = [ended.trouble.cause if ended.trouble else None for ended in found]
    assert causes == ["model_unreachable", "model_unreachable", None]


async def test_errors_that_stay_end_the_trial(stage: Stage) -> None:
    with pytest.raises(AgentError, match="no such model"):
        await stage.run({"error": {"message": "no such model"}})


async def test_it_is_late_like_others(stage: Stage) -> None:
    ended = await stage.run({"delay": 60, "output": "x"}, timeouts=Timeouts(agent=0.01))
    assert ended.reason is ExitReason.TIMEOUT
    assert stage.told.end_reason == "timeout"


@pytest.mark.parametrize(
    ("fixture", "message"),
    [
        ({"outputs": "x"}, "f: no field is called 'outputs'. Did you mean 'output'"),
        ({"output": 3}, "f.output: text is expected"),
        ({"output": "x", "turns": []}, "stand in each of its turns"),
        ({"turns": [{"outptu": ""}]}, r"f.turns\[0\]: no field is called"),
        ({"events": [{"data": {}}]}, r"f.events\[0\].type"),
        ({"events": {}}, "f.events: a list"),
        ({"files": {"../a": ""}}, "no path below the workspace"),
        ({"files": {"/a": ""}}, "no path below the workspace"),
        ({"delay": "1s"}, "seconds are expected"),
        ({"delay": float("nan")}, "seconds are expected"),
        ({"error": {"retryable": 1}}, "true or false"),
        ({"error": {"times": 0}}, "whole number from 1"),
        ({"exit_code": 256}, "exit code of 0 to 255"),
        ({"trials": []}, "at least one trial"),
        ({"trials": [{"trials": []}]}, r"f.trials\[0\]: no field is called 'trials'"),
        ([], "f: an object"),
    ],
)
def test_wrong_fixtures_are_told(fixture: Any, message: str) -> None:
    with pytest.raises(FixtureError, match=message):
        read_fixture(fixture, "f")


async def test_no_json_is_told(stage: Stage) -> None:
    await stage.sandbox.upload_file("/workspace/.mock-executor/greet.json", b"{")
    with pytest.raises(FixtureError, match=r"\.mock-executor/greet\.json: no JSON"):
        await stage.run()


def test_it_is_in_the_catalogue_and_needs_nothing(tmp_path: Path) -> None:
    entry = CATALOG["mock"]
    assert (entry.keys, entry.needs_model, entry.version) == ((), False, None)
    prepared = open_agent("mock", model="anything/at-all", library=AgentLibrary(tmp_path))
    again = open_frozen(prepared.frozen, tmp_path, tmp_path)
    assert (again.name, again.digest) == ("mock", prepared.digest)
    with pytest.raises(UsageError, match="takes no parameters"):
        open_agent("mock", kwargs={"a": "b"}, library=AgentLibrary(tmp_path))
