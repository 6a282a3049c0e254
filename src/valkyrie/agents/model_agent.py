"""An agent in plain Python: a model says which shell commands to run until it has nothing more to run.

Called as: python3 agent.py INSTRUCTION_FILE MODEL TURNS LOG_FOLDER, in the task's folder. The model is asked
by OpenAI's Chat Completions at VALKYRIE_MODEL_URL (what `--model-url` becomes in a sandbox), else at
OPENAI_BASE_URL, else at OpenAI, with the key in OPENAI_API_KEY if there is one. It needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

COMMAND_SECONDS = 120
MOST_CHARACTERS = 20_000
TRIES = 5
SYSTEM = (
    "You work in a Linux sandbox, in the task's folder. Use the tool `shell` to look around and to change "
    "files. When the task is done, answer in one sentence without calling a tool."
)
SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command with bash and return what it printed and its exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def main() -> int:
    """Run the agent on one task; return its exit code."""
    instruction, model, turns, logs = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    logs.mkdir(parents=True, exist_ok=True)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": Path(instruction).read_text()},
    ]
    tokens = {"input": 0, "output": 0}
    try:
        for _ in range(turns):
            answer = ask(model, messages)
            used = answer.get("usage") or {}
            tokens["input"] += used.get("prompt_tokens", 0)
            tokens["output"] += used.get("completion_tokens", 0)
            message = answer["choices"][0]["message"]
            messages.append(message)
            print(message.get("content") or "", flush=True)
            calls = message.get("tool_calls") or []
            if not calls:
                return 0
            messages += [{"role": "tool", "tool_call_id": one["id"], "content": run(one)} for one in calls]
        print(f"gave up after {turns} answers", file=sys.stderr)
        return 1
    finally:
        (logs / "messages.json").write_text(json.dumps(messages, indent=2))
        (logs / "metrics.json").write_text(json.dumps({"tokens": tokens}))


def ask(model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's answer; try again when its server is busy, exit when it refuses."""
    base = (
        os.environ.get("VALKYRIE_MODEL_URL") or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
    )
    url = f"{base.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps({"model": model, "messages": messages, "tools": [SHELL]}).encode()
    for number in range(TRIES):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=600) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if (error.code != 429 and error.code < 500) or number == TRIES - 1:
                sys.exit(f"the model's server answered {error.code}: {said[:2000]}")
            asked = error.headers.get("Retry-After") or ""
            wait = float(asked) if asked.isdecimal() else 2.0**number
        except OSError as error:
            if number == TRIES - 1:
                sys.exit(f"the model's server cannot be reached at {url}: {error}")
            wait = 2.0**number
        time.sleep(min(wait, 60))
    raise AssertionError("the last try returns or exits")


def run(call: dict[str, Any]) -> str:
    """Run the command of a tool call; return what to tell the model."""
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, KeyError, TypeError):
        return "not run: the arguments must be an object with a string `command`"
    print(f"$ {command}", flush=True)
    try:
        done = subprocess.run(
            ["bash", "-c", str(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {COMMAND_SECONDS} seconds"
    print(done.stdout, flush=True)
    return f"{done.stdout[-MOST_CHARACTERS:]}\nexit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
