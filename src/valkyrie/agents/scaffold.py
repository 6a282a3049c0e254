"""`agent init`: a small agent that runs, to be changed into one's own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmark_runner.agent_bundle.bundle import NAME, NAME_RULE
from benchmark_runner.archive import disk_error
from valkyrie.errors import UsageError

_CONTRACT = """\
# How the agent {name} is installed and run. Every key is explained here; only the first three are required.

# What it is called. Its folder stands in /bundle/{name} in the sandbox.
name: {name}

# Run once per sandbox, as root, in /bundle/{name}.
install_cmd: chmod +x run.sh

# Run in the task's folder, under bash with pipefail. Placeholders are quoted for you, with or without quotes
# around them: {{problem_statement_path}} (required), {{task_id}}, {{model}}, and each parameter below.
run_cmd: /bundle/{name}/run.sh {{problem_statement_path}} {{effort}} /logs/{name}

# A file or folder to archive after the run.
final_output: /logs/{name}

# Up to 10 files to keep by themselves. Looked for below /tmp/valkyrie unless `source` says otherwise.
output_artifacts:
  - path: notes.txt
    source: /logs/{name}/notes.txt
    required: false

# Parameters, set with -k effort high. Types: str, int, float, bool, dict.
kwargs:
  effort:
    type: str
    default: low
    choices: [low, high]
    description: how hard to try

# Predefined parameters. `model` is filled from --model.
# defaults:
#   model:
#     type: str
#     required: true

# Environment variable: name of the secret that fills it (`valk secret set NAME`).
# secrets:
#   OPENAI_API_KEY: OPENAI_API_KEY

# The only addresses the agent may reach while it runs; left out, there is no restriction. No sandbox can
# enforce such a list yet, so a contract with one is refused.
# egress_allowlist:
#   - https://api.openai.com
"""
_RUN = """\
#!/usr/bin/env bash
# Called as: run.sh INSTRUCTION_FILE EFFORT LOG_FOLDER, in the task's folder.
set -euo pipefail

instruction=$1 effort=$2 logs=$3
mkdir -p "$logs"

# Replace this with your agent: read the instruction, change files here, exit 0.
echo "told: $(head -n 1 "$instruction")"
printf 'effort %s, in %s\\n' "$effort" "$PWD" > "$logs/notes.txt"
"""
_README = """\
# {name}

An agent for Valkyrie. `contract.yaml` says how it is installed and run; `run.sh` is the agent.

    valk run start --agent ./{name} --benchmark quickstart --connect
    valk agent push ./{name}
"""
_MODEL_CONTRACT = """\
# How the agent {name} is installed and run: plain Python that calls a model. See README.md.
name: {name}
install_cmd: "true"
run_cmd: python3 /bundle/{name}/agent.py {{problem_statement_path}} {{model}} {{turns}} /logs/{name}

# Kept after the run: messages.json (the conversation) and metrics.json (the tokens it took).
final_output: /logs/{name}

# `model` is filled from --model.
defaults:
  model:
    type: str
    required: true
kwargs:
  turns:
    type: int
    default: 30
    description: Give up after so many answers of the model.

# A vendor's model wants a key. With --model-url none is needed, so it is not asked for here.
# secrets:
#   OPENAI_API_KEY: OPENAI_API_KEY
"""
_MODEL_README = """\
# {name}

An agent for Valkyrie in plain Python. `agent.py` asks an OpenAI-compatible model (Chat Completions) which
shell commands to run in the task's folder, runs them, and tells it what they printed, until it is done.

On a model of your own, without a key or a network in the sandbox:

    valk run start --agent ./{name} --model any --model-url http://127.0.0.1:8000 --benchmark quickstart

At OpenAI, or with `-e OPENAI_BASE_URL URL` at any server of that interface:

    valk run start --agent ./{name} --model MODEL -s OPENAI_API_KEY OPENAI_API_KEY --benchmark quickstart

Try it without either: `valk model-server --script FILE` plays a model by a script.
"""


def init_agent(name: str, parent: Path, *, calls_model: bool = False) -> Path:
    """Write a minimal valid agent as the new folder `parent/name`, or one that calls a model."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be an agent's name: {NAME_RULE}.")
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists already; nothing was written. Choose another name.")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=parent, prefix=".init-"))
        try:
            part.chmod(0o755)
            for file, text in _files(name, calls_model=calls_model).items():
                (part / file).write_text(text, encoding="utf-8")
                (part / file).chmod(0o755 if text.startswith("#!") else 0o644)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise disk_error(f"{folder} cannot be written", error) from None
    return folder


def _files(name: str, *, calls_model: bool) -> dict[str, str]:
    if not calls_model:
        texts = {"contract.yaml": _CONTRACT, "run.sh": _RUN, "README.md": _README}
        return {file: text.format(name=name) for file, text in texts.items()}
    texts = {"contract.yaml": _MODEL_CONTRACT, "README.md": _MODEL_README}
    agent = Path(__file__).with_name("model_agent.py").read_text(encoding="utf-8")
    return {"agent.py": agent, **{file: text.format(name=name) for file, text in texts.items()}}
