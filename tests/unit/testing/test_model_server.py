"""The loopback model server: four APIs, scripts, faults, many conversations at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from valkyrie.errors import UsageError
from valkyrie.testing import Fault, ModelServer, Say, Script, Shell, TokenCounts, ToolRequest

JsonObject = dict[str, Any]
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/some-model:generateContent",
}
APIS = tuple(PATHS)


def asked(api: str, history: list[JsonObject], *, tools: bool = True, tool: str = "bash") -> JsonObject:
    """A request in the API's own form; `history` is in its form as well."""
    offered: JsonObject = {
        "messages": {"tools": [{"name": tool, "input_schema": BASH}]},
        "responses": {"tools": [{"type": "function", "name": tool, "parameters": BASH}]},
        "chat": {"tools": [{"type": "function", "function": {"name": tool, "parameters": BASH}}]},
        "gemini": {"tools": [{"functionDeclarations": [{"name": tool, "parametersJsonSchema": BASH}]}]},
    }[api]
    key = {"responses": "input", "gemini": "contents"}.get(api, "messages")
    return {"model": "some-model", key: history, **(offered if tools else {})}


def user(api: str, text: str) -> JsonObject:
    if api == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    return {"role": "user", "content": text}


def said(api: str, answer: JsonObject) -> tuple[str, JsonObject | None]:
    """The text, and the arguments of the tool that is asked for."""
    if api == "messages":
        blocks = {block["type"]: block for block in answer["content"]}
        return blocks.get("text", {}).get("text", ""), blocks.get("tool_use", {}).get("input")
    if api == "responses":
        items = {item["type"]: item for item in answer["output"]}
        call = items.get("function_call")
        text = items["message"]["content"][0]["text"] if "message" in items else ""
        return text, json.loads(call["arguments"]) if call else None
    if api == "chat":
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls")
        return message["content"] or "", json.loads(calls[0]["function"]["arguments"]) if calls else None
    parts = answer["candidates"][0]["content"]["parts"]
    call = next((part["functionCall"]["args"] for part in parts if "functionCall" in part), None)
    return "".join(part.get("text", "") for part in parts), call


def grown(api: str, history: list[JsonObject], answer: JsonObject) -> list[JsonObject]:
    """The history with the model's answer and the tool's result, as a program sends it next."""
    if api == "messages":
        done: JsonObject = {"type": "tool_result", "tool_use_id": "x", "content": "done"}
        return [
            *history,
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [done]},
        ]
    if api == "responses":
        return [
            *history,
            *answer["output"],
            {"type": "function_call_output", "call_id": "x", "output": "done"},
        ]
    if api == "chat":
        return [*history, answer["choices"][0]["message"], {"role": "tool", "content": "done"}]
    return [*history, answer["candidates"][0]["content"], user("gemini", "done")]


def new_client() -> httpx.AsyncClient:
    # Nothing is encrypted here; loading every certificate takes longer than a test.
    return httpx.AsyncClient(verify=False, trust_env=False)


async def talk(server: ModelServer, api: str, history: list[JsonObject], where: str = "") -> httpx.Response:
    async with new_client() as client:
        return await client.post(server.url + where + PATHS[api], json=asked(api, history))


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_follows_its_script(api: str) -> None:
    script = Script.of(Shell("make it", text="Now."), Say("All done.", tokens=TokenCounts(100, 7, 40)))
    async with ModelServer(script) as server:
        history = [user(api, "Do it.")]
        first = (await talk(server, api, history)).json()
        assert said(api, first) == ("Now.", {"command": "make it"})
        second = (await talk(server, api, grown(api, history, first))).json()
        assert said(api, second) == ("All done.", None)
        usage = second.get("usage") or second["usageMetadata"]
        assert {100 - 40 if api == "messages" else 100, 7} <= {
            count for count in usage.values() if isinstance(count, int)
        }
        spent = server.spent()
        assert (spent.cached, spent.output > 7, spent.input > 100) == (40, True, True)
        assert [(item.api, item.aside) for item in server.requests] == [(api, False)] * 2


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_says_the_same_in_pieces(api: str) -> None:
    text = "A text that is long enough to come in several pieces, one after the other."
    async with ModelServer(Script.of(Shell("make it", text=text))) as server, new_client() as client:
        path = PATHS[api].replace(":generate", ":streamGenerate") + ("?alt=sse" if api == "gemini" else "")
        body = asked(api, [user(api, "Do it.")]) | {"stream": True}
        reply = await client.post(server.url + path, json=body)
        assert reply.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        assert len(events) > 3
        pieces = {
            "messages": lambda e: e.get("delta", {}).get("text", ""),
            "responses": lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "",
            "chat": lambda e: e["choices"][0]["delta"].get("content") or "" if e["choices"] else "",
            "gemini": lambda e: "".join(p.get("text", "") for p in e["candidates"][0]["content"]["parts"]),
        }[api]
        assert "".join(map(pieces, events)) == text
        assert "make it" in reply.text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("rate_limit", 429),
        ("context_overflow", 400),
        ("unauthorized", 401),
        ("unknown_model", 404),
        ("server_error", 500),
        ("overloaded", None),
    ],
)
async def test_faults_are_in_the_apis_own_words(api: str, kind: Any, status: int | None) -> None:
    async with ModelServer(Script.of(Fault(kind, retry_after=3))) as server:
        reply = await talk(server, api, [user(api, "Do it.")])
        assert reply.status_code == (status or (529 if api == "messages" else 503))
        assert reply.headers["retry-after"] == "3"
        error = reply.json()["error"]
        assert error["message"]
        assert set(error) >= {"messages": {"type"}, "gemini": {"code", "status"}}.get(api, {"type", "code"})


@pytest.mark.parametrize("api", APIS)
async def test_a_refusal_is_an_answer(api: str) -> None:
    async with ModelServer(Script.of(Fault("refusal", message="No."))) as server:
        reply = await talk(server, api, [user(api, "Do it.")])
        assert reply.status_code == 200
        mark = {"messages": "refusal", "responses": "refusal", "chat": "content_filter", "gemini": "SAFETY"}[
            api
        ]
        assert mark in reply.text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_breaks_the_connection(api: str, stream: bool) -> None:
    async with ModelServer(Script.of(Fault("cut"))) as server, new_client() as client:
        path = PATHS[api].replace(":generate", ":streamGenerate") if stream else PATHS[api]
        body = asked(api, [user(api, "Do it.")]) | {"stream": stream}
        with pytest.raises(httpx.TransportError):
            await client.post(server.url + path, json=body)
        assert server.spent().output == 0


async def test_a_fault_passes_after_its_times() -> None:
    script = Script.of(Fault("rate_limit", times=2), Shell("go"), Fault("overloaded", times=1), Say("End."))
    async with ModelServer(script) as server:
        history = [user("chat", "Do it.")]
        replies = [await talk(server, "chat", history) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [429, 429, 200]
        history = grown("chat", history, replies[-1].json())
        assert [(await talk(server, "chat", history)).status_code for _ in range(2)] == [503, 200]


async def test_conversations_at_the_same_time_do_not_mix() -> None:
    names = [f"talk{number}" for number in range(40)]
    script = Script({name: [Shell(f"{name} {at}") for at in range(3)] for name in names})

    async def whole(server: ModelServer, name: str, api: str) -> list[str]:
        history, heard = [user(api, "The same for all.")], []
        for _ in range(4):
            answer = (await talk(server, api, history, f"/c/{name}")).json()
            text, call = said(api, answer)
            heard.append(call["command"] if call else text)
            history = grown(api, history, answer)
        return heard

    async with ModelServer(script) as server:
        heard = await asyncio.gather(*(whole(server, name, APIS[at % 4]) for at, name in enumerate(names)))
        assert heard == [[f"{name} {at}" for at in range(3)] + ["Done."] for name in names]
        assert server.spent("talk0").output < server.spent().output
        unknown = await talk(server, "chat", [], "/c/nobody")
        assert unknown.status_code == 404 and "nobody" in unknown.text


@pytest.mark.parametrize(
    ("name", "schema", "arguments"),
    [
        ("Bash", BASH, {"command": "ls"}),
        ("exec_command", {"properties": {"cmd": {"type": "string"}}}, {"cmd": "ls"}),
        ("shell", {"properties": {"command": {"type": "array"}}}, {"command": ["bash", "-lc", "ls"]}),
        (
            "bash",
            {"properties": {"command": {}, "description": {"type": "string"}}, "required": ["description"]},
            {"command": "ls", "description": "run it"},
        ),
        ("run_shell_command", {"properties": {"command": {"type": "STRING"}}}, {"command": "ls"}),
    ],
)
async def test_a_shell_command_takes_the_shell_that_is_offered(
    name: str, schema: JsonObject, arguments: JsonObject
) -> None:
    async with ModelServer(Script.of(Shell("ls"))) as server, new_client() as client:
        tools = [{"name": "Read", "input_schema": {}}, {"name": name, "input_schema": schema}]
        body = {"model": "m", "messages": [user("messages", "x")], "tools": tools}
        answer = (await client.post(f"{server.url}/v1/messages?beta=true", json=body)).json()
        assert said("messages", answer) == ("", arguments)


async def test_requests_beside_the_conversation_take_no_turn() -> None:
    async with ModelServer(Script.of(ToolRequest("Write", {"path": "x"}))) as server, new_client() as client:
        assert (await client.head(server.url)).status_code == 200
        counted = await client.post(f"{server.url}/v1/messages/count_tokens", json={"messages": []})
        assert counted.json()["input_tokens"] > 0
        history = [user("messages", "A title, please.")]
        aside = await client.post(f"{server.url}/v1/messages", json=asked("messages", history, tools=False))
        assert said("messages", aside.json()) == ("ok", None)
        first = await talk(server, "messages", history)
        assert said("messages", first.json()) == ("", {"path": "x"})
        assert [item.aside for item in server.requests] == [True, False]
        assert (await client.post(f"{server.url}/v1/elsewhere", json={})).status_code == 404


async def test_without_a_shell_the_answer_says_so() -> None:
    async with ModelServer(Script.of(Shell("ls"))) as server, new_client() as client:
        body = asked("chat", [user("chat", "x")], tool="read_file")
        answer = (await client.post(f"{server.url}/v1/chat/completions", json=body)).json()
        assert "only: read_file" in said("chat", answer)[0]


async def test_a_slow_answer_comes_late() -> None:
    async with ModelServer(Script.of(Say("x", delay=30))) as server, new_client() as client:
        briefly = httpx.Timeout(60, read=0.1)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{server.url}/v1/messages", json=asked("messages", []), timeout=briefly)


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"\x00"]
)
async def test_what_is_no_request_ends_its_connection_only(sent: bytes) -> None:
    async with ModelServer(Script.of(Say("x"))) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert (await talk(server, "chat", [user("chat", "x")])).status_code == 200


TURNS = [
    {"shell": "ls", "text": "Now."},
    {"fault": "rate_limit", "times": 1, "retry_after": 2},
    {"call": "Write", "arguments": {"a": 1}, "delay": 0.5},
    {"say": "Done.", "tokens": {"input": 5}},
]


def test_a_script_is_read_from_json() -> None:
    turns = [
        Shell("ls", "Now."),
        Fault("rate_limit", 1, 2),
        ToolRequest("Write", {"a": 1}, delay=0.5),
        Say("Done.", tokens=TokenCounts(5)),
    ]
    assert Script.from_json(TURNS) == Script({"default": turns})
    assert Script.from_json({"conversations": {"a": TURNS}}) == Script({"a": turns})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "a script is a list"),
        ([{"says": "x"}], r"default\[0\]: a turn is an object with one of say"),
        ([{"say": "x", "shell": "y"}], r"default\[0\]: a turn is"),
        ([{"say": "x", "dely": 1}], "no field is called 'dely'. Did you mean 'delay'"),
        ([{"fault": "rate_limits"}], "no fault is called 'rate_limits'. Did you mean 'rate_limit'"),
    ],
)
def test_a_wrong_script_is_refused(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Script.from_json(data)


def test_it_runs_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(TURNS))
    command = [sys.executable, "-m", "valkyrie.testing.model_server", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = asked("messages", [user("messages", "x")])
            answer = httpx.post(f"{url}/v1/messages", json=body, verify=False).json()
            assert said("messages", answer) == ("Now.", {"command": "ls"})
        finally:
            process.terminate()
    script.write_text("[{}]")
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "a turn is an object" in refused.stderr


@pytest.mark.parametrize("api", APIS)
async def test_a_fault_may_strike_every_other_request(api: str) -> None:
    script = Script.of(Fault("server_error", every=2), Say("Well."))
    async with ModelServer(script) as server, httpx.AsyncClient(verify=False, base_url=server.url) as client:
        answers = [
            await client.post(PATHS[api], json=asked(api, [user(api, f"Hello {number // 2}.")]))
            for number in range(6)
        ]
    assert [answer.is_success for answer in answers] == [False, True] * 3


async def test_a_text_in_the_request_chooses_the_conversation() -> None:
    data = {
        "conversations": {"default": [{"say": "whatever"}], "a": [{"say": "one"}], "b": [{"say": "two"}]},
        "by_text": {"apples": "a", "berries": "b"},
    }
    async with (
        ModelServer(Script.from_json(data)) as server,
        httpx.AsyncClient(verify=False, base_url=server.url) as client,
    ):
        found = [
            said("chat", (await client.post(path, json=asked("chat", [user("chat", text)]))).json())[0]
            for path, text in [
                (PATHS["chat"], "two apples"),
                (PATHS["chat"], "three berries"),
                (PATHS["chat"], "nothing"),
                (f"/c/b{PATHS['chat']}", "apples"),
            ]
        ]
    assert found == ["one", "two", "whatever", "two"]
