"""Grades one exported task. It and what it imports are copied into `tests/`, and need Python 3.10 only.

Reads checks.json beside it, looks at the workspace and the answer, and writes reward.json and graders.json.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from valkyrie.specs.globs import TooManyFilesError, WorkspaceGlob

Json = dict[str, Any]

MOST_BYTES = 16 << 20


class CannotTellError(Exception):
    """A file that is there cannot be read as text."""


def text_of(path: Path) -> str:
    """A file's text, within bounds."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise CannotTellError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotTellError(f"{path} cannot be read as text: {error}") from None


def holds(text: str, check: Json) -> bool:
    """Return whether a text has what a check looks for."""
    if "pattern" in check:
        return re.search(check["pattern"], text, check["flags"]) is not None
    sought: str = check["contains"]
    if check["case_sensitive"]:
        return sought in text
    return sought.lower() in text.lower()


def look_at_output(check: Json, answer: str) -> tuple[bool, str]:
    """An answer that is there, or says (or does not say) something."""
    if check.get("only_there"):
        return bool(answer.strip()), "there is an answer" if answer.strip() else "the answer is empty"
    found = holds(answer, check)
    return found is check["wanted"], "in the answer" if found else "not in the answer"


def look_at_files(check: Json, workspace: Path) -> tuple[bool, str]:
    """Files that are there, or have (or do not have) something in them."""
    matched = list(WorkspaceGlob(check["glob"]).find(workspace))
    if check.get("only_there"):
        return bool(matched) is check["wanted"], f"{len(matched)} match {check['glob']}"
    looked = 0
    problem = None
    for path in matched:
        if not path.is_file():
            continue
        try:
            if holds(text_of(path), check):
                return check["wanted"], f"in {path.name}"
            looked += 1
        except CannotTellError as error:
            problem = str(error)
    if problem:
        return False, f"cannot tell: {problem}"
    return not check["wanted"], f"in none of {looked} files"


def run_command(check: Json, workspace: Path) -> tuple[bool, str]:
    """In a copy of the workspace, so that no check sees what another one did."""
    with tempfile.TemporaryDirectory(prefix="grading-") as scratch:
        copy = Path(scratch, "workspace")
        shutil.copytree(workspace, copy, symlinks=True)
        code, stdout, stderr = run_bounded(check, copy)
    if code is None:
        return False, f"did not end within {check['timeout']:g} s"
    problems = [f"exit code {code}, not {check['exit_code']}"] if code != check["exit_code"] else []
    for stream, text in (("stdout", stdout), ("stderr", stderr)):
        for condition in check[stream]:
            if holds(text, condition) is not condition["wanted"]:
                problems.append(f"{stream}: {condition['says']}")
    return not problems, "; ".join(problems) or f"exit code {code}"


def run_bounded(check: Json, copy: Path) -> tuple[int | None, str, str]:
    """Exit code (None after its time was up), stdout, stderr; what it started is ended with it."""
    process = subprocess.Popen(
        check["argv"],
        cwd=copy / check["sub_path"],
        env={**os.environ, **check["env"], "EVALUATE_WORKSPACE": str(copy)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=check["timeout"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, "", ""
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def look(check: Json, workspace: Path, answer: str) -> Json:
    """Return what one check found."""
    try:
        if check["about"] == "output":
            passed, evidence = look_at_output(check, answer)
        elif check["about"] == "files":
            passed, evidence = look_at_files(check, workspace)
        else:
            passed, evidence = run_command(check, workspace)
    except (TooManyFilesError, OSError) as error:
        passed, evidence = False, f"cannot tell: {error}"
    return {"name": check["name"], "passed": passed, "weight": check["weight"], "evidence": evidence}


def rewards_of(plan: Json, found: list[Json]) -> Json:
    """Return what all checks say together."""
    total = sum(one["weight"] for one in found)
    score = sum(one["weight"] for one in found if one["passed"]) / total if total else 0.0
    threshold = plan["threshold"]
    # A mean of tenths must not miss a threshold of tenths by the last bit.
    passed = all(one["passed"] for one in found) if threshold is None else score >= threshold - 1e-9
    return {"reward": score if plan["reward"] == "score" else float(passed), "score": score}


def answer_of(path: Path) -> str:
    """Return what the agent answered; none is an empty one."""
    try:
        return text_of(path) if path.is_file() and not path.is_symlink() else ""
    except CannotTellError:
        return ""


def main(tests: Path, verdicts: Path) -> None:
    """Grade, and leave the verdict."""
    plan = json.loads((tests / "checks.json").read_text(encoding="utf-8"))
    workspace = Path(plan["workspace"])
    workspace.mkdir(parents=True, exist_ok=True)
    if (tests / "files").is_dir():
        shutil.copytree(tests / "files", workspace, symlinks=True, dirs_exist_ok=True)
    answer = answer_of(Path(plan["answer"])) if plan["answer"] else ""
    found = [look(check, workspace, answer) for check in plan["checks"]]
    for one in found:
        sys.stdout.write(f"{'ok  ' if one['passed'] else 'FAIL'} {one['name']}: {one['evidence']}\n")
    for name, content in (("graders.json", found), ("reward.json", rewards_of(plan, found))):
        (verdicts / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).resolve().parent, Path(sys.argv[1] if len(sys.argv) > 1 else "/logs/verifier"))
