"""Where a text-graded benchmark takes an agent's answer from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxes.null import NullSandbox
from valkyrie.benchmarks.service.benchmark import ANSWER_LIMIT, read_answer
from valkyrie.errors import AgentOutputError

OUT = "/out/results"


async def answer(files: dict[str, str], final_output: str | None = OUT) -> tuple[str, str]:
    """The answer, and what was noted about it."""
    sandbox, noted = NullSandbox("1", "one", {}), []
    for path, text in files.items():
        await sandbox.upload_file(path, text.encode())
    return await read_answer(sandbox, final_output, lambda _stream, text: noted.append(text)), "".join(noted)


def generation(**fields: Any) -> dict[str, str]:
    """What a benchmark runner leaves."""
    kept = {"task_id": "one", "status": "success", **fields}
    return {
        f"{OUT}/run_config.json": "{}",
        f"{OUT}/one/generation.json": json.dumps(kept),
        f"{OUT}/one/agent_logs/chat.jsonl": "{}\n",
    }


async def test_a_file_is_the_answer_as_it_is() -> None:
    assert await answer({OUT: "four\n"}) == ("four\n", "")
    assert await answer({f"{OUT}/any.txt": "four"}) == ("four", "")
    # Named outright it is what the agent wants to say, whatever it is called.
    assert await answer({f"{OUT}/generation.json": "{"}, f"{OUT}/generation.json") == ("{", "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": "four", "answer": "four"}, "four"),
        ({"data": "four"}, "four"),
        ({"answer": "four"}, "four"),
        ({"data": {"rows": [1]}}, '{"rows": [1]}'),
        ({"data": None}, ""),
        ({"status": "max_time", "data": ""}, ""),
    ],
)
async def test_of_a_runners_folder_it_is_the_generation(fields: dict[str, Any], said: str) -> None:
    assert (await answer(generation(**fields)))[0] == said


async def test_a_generation_that_failed_is_not_graded() -> None:
    with pytest.raises(AgentOutputError, match="The runner could not answer: no such model"):
        await answer(generation(status="error", error="no such model", data=""))


async def test_a_runner_that_came_to_no_generation_said_nothing() -> None:
    said, noted = await answer({f"{OUT}/run_config.json": "{}", f"{OUT}/one/agent_logs/x": ""})
    assert said == "" and "graded as empty" in noted
    assert "graded as empty" in (await answer({}))[1]
    assert "graded as empty" in (await answer({}, None))[1]


@pytest.mark.parametrize("text", ["", "[]", "{", '"four"', "[" * 100_000])
async def test_a_generation_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AgentOutputError, match="no JSON object"):
        await answer({f"{OUT}/one/generation.json": text})


async def test_several_files_and_large_ones_are_refused() -> None:
    for files in ({f"{OUT}/a": "", f"{OUT}/b": ""}, {f"{OUT}/{n}/generation.json": "{}" for n in "ab"}):
        with pytest.raises(AgentOutputError, match="holds 2 files"):
            await answer(files)
    with pytest.raises(AgentOutputError, match="more than 4 MiB"):
        await answer({OUT: "x" * (ANSWER_LIMIT + 1)})
