"""Programs that are copied into tasks and run there, with nothing but Python's own library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from valkyrie.benchmarks.named.conversion import Files

# -I and -S keep Python files and settings of the agent out of the grader.
_TEST = """\
#!/bin/bash
for python in /usr/local/bin/python3 /usr/bin/python3 python3; do
    command -v "$python" > /dev/null && exec "$python" -ISB "${0%/*}/grade.py"
done
echo "there is no python3 here to grade with" >&2
exit 127
"""


def python_tests(grader: str, files: Mapping[str, Any]) -> Files:
    """Tests that run one of these programs; `files` are the JSON files it reads."""
    program = Path(__file__).with_name(f"{grader}.py").read_text(encoding="utf-8")
    data = {name: json.dumps(value, ensure_ascii=False) + "\n" for name, value in files.items()}
    return {"test.sh": _TEST, "grade.py": program, **data}


def program_tests(
    answer: str, before: str, after: str, *, kind: str, timeout_sec: float, needs: Sequence[str] = ()
) -> Files:
    """Tests that run `before`, the file `answer`, then `after`; `kind` is `script` or `unittest`."""
    plan = {
        "answer": answer,
        "before": before,
        "after": after,
        "kind": kind,
        "timeout_sec": timeout_sec,
        "needs": list(needs),
    }
    return python_tests("program", {"plan.json": plan})


def file_solution(answer: str, content: str) -> Files:
    """Puts the gold file in its place."""
    solve = f'#!/bin/bash\nset -eu\nmkdir -p "$(dirname {answer})"\ncp "$(dirname "$0")/gold" {answer}\n'
    return {"solve.sh": solve, "gold": content}
