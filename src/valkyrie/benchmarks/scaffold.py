"""`benchmark init NAME`: a small benchmark that works, to start from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from valkyrie.errors import UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_TASK = "count-lines"

_FILES = {
    "benchmark.toml": """\
name = "{name}"
description = "Say here in one line what {name} measures."

# Datasets are named lists of task ids or globs; `default` is every task unless it is listed here.
[datasets]
smoke = ["{task}"]
""",
    "{task}/task.toml": """\
schema_version = "1.4"

[task]
name = "{name}/{task}"
description = "Count the lines of three files."
keywords = ["example", "shell"]

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 60.0

[environment]
cpus = 1
memory_mb = 512
storage_mb = 512
network_mode = "no-network"
workdir = "/app"
""",
    "{task}/instruction.md": """\
The folder `/app/letters` holds text files.

Write `/app/lines.txt` with one line per file: the file's name without its folder, one space, and how many
lines the file has. Sort by name. A file without a newline at its very end still counts its last line.
""",
    # What is here is copied into the working folder; a setup.sh would run there first and be removed.
    "{task}/environment/letters/a.txt": "one\ntwo\nthree\n",
    "{task}/environment/letters/b.txt": "only\n",
    "{task}/environment/letters/c.txt": "first\nlast, and no newline after it",
    "{task}/tests/test.sh": """\
#!/bin/bash
# Runs in the task's working folder after the agent. The exit code means nothing: the number in the reward
# file is the score. It is written last, and whatever happens; no file is an error of the grader, not a 0.
# Programs are called by their full path, and only a plain file is looked at: a link or a pipe is no answer.
reward=0
if [ -f lines.txt ] && [ ! -L lines.txt ] && /usr/bin/diff -u "${{0%/*}}/expected.txt" lines.txt; then
    reward=1
fi
echo "$reward" > "$VERIFIER_DIR/reward.txt"
""",
    "{task}/tests/expected.txt": "a.txt 3\nb.txt 1\nc.txt 2\n",
    "{task}/solution/solve.sh": """\
#!/bin/bash
# Shows that the task can be solved: `valk run start --agent oracle` runs it.
set -euo pipefail
for file in letters/*; do
    printf '%s %s\\n' "$(basename "$file")" "$(grep -c '' "$file")"
done > lines.txt
""",
}


def init_benchmark(name: str, folder: Path) -> Path:
    """Write benchmark `name` to the new folder `folder`/`name` and return that. Refuses an existing one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a benchmark; start with a letter, go on with letters, digits, . _ or -"
        )
    target = folder / name
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{target} already exists; choose another name or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot make {target}: {error.strerror}") from error
    try:
        for path, content in _FILES.items():
            file = target / path.format(task=_TASK)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content.format(name=name, task=_TASK), encoding="utf-8")
            if file.suffix == ".sh":
                file.chmod(0o755)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target
