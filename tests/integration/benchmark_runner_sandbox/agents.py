"""Agents as people write them: a folder with a contract and a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OUT = "/out"
ANSWERING = """
import json, os, pathlib, sys
task, model, problem = sys.argv[1:4]
question = pathlib.Path(problem).read_text()
known = {"spider": "Eight", "symbol of gold": "Au", "planet": "Jupiter"}
answer = next((text for words, text in known.items() if words in question), "no idea")
out = pathlib.Path("/out") / task
out.mkdir(parents=True)
(out / "generation.json").write_text(json.dumps({
    "task_id": "another", "status": "success", "data": answer, "model": "a lie", "total_turns": 3,
    "log_dir": "/etc", "question": "a lie"}))
"""
RUN = "python3 /bundle/{name}/agent.py {{task_id}} {{model}} {{problem_statement_path}}"


def agent(folder: Path, program: str = ANSWERING, name: str = "quizzer", **contract: Any) -> Path:
    """An agent's folder; what the contract says is overridden by name."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "agent.py").write_text(program)
    values = {"name": name, "run_cmd": RUN.format(name=name), "final_output": OUT, **contract}
    (place / "contract.yaml").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return place


def shell_agent(folder: Path, script: str, **contract: Any) -> Path:
    """An agent that is one line of shell."""
    return agent(folder, run_cmd=f": {{problem_statement_path}}; {script}", **contract)
