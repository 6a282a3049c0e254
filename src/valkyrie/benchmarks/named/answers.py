"""Tasks whose answer is one short line in a file, graded by comparing it."""

from __future__ import annotations

from valkyrie.benchmarks.named.drafts import Files
from valkyrie.benchmarks.named.texts import fill

ANSWER = "/app/answer.txt"
# Only builtins of bash, for the agent may have replaced any program. A link is refused: it could lead to
# the expected value, which is there by now.
_TEST = """\
#!/bin/bash
# Compares /app/answer.txt with the expected value. No answer, or one of another form, earns 0; when the
# expected value cannot be read there is no verdict.
LC_ALL=C
out=${VERIFIER_DIR:-/logs/verifier}
answer=@ANSWER@
expected=
IFS= read -r expected < "${0%/*}/expected.txt"
if [ -z "$expected" ]; then
    printf 'the expected value cannot be read\\n' >&2
    exit 1
fi
given=
if [ -f "$answer" ] && [ ! -L "$answer" ]; then
    IFS= read -r -d '' -n 1000 given < "$answer"
fi
given=${given#"${given%%[![:space:]]*}"}
given=${given%"${given##*[![:space:]]}"}
reward=0
@RULE@
printf '%s\\n' "$reward" > "$out/reward.txt"
"""
_SOLVE = """\
#!/bin/bash
set -eu
mkdir -p "$(dirname @ANSWER@)"
cp "$(dirname "$0")/answer.txt" @ANSWER@
"""


def answer_tests(expected: str, rule: str) -> Files:
    """`rule` is bash that sets `reward=1` when `$given` (trimmed) is as good as `$expected`."""
    script = fill(_TEST, answer=ANSWER, rule=rule.strip())
    return {"test.sh": script, "expected.txt": f"{expected}\n"}


def answer_solution(expected: str) -> Files:
    """Writes the gold answer."""
    return {"solve.sh": fill(_SOLVE, answer=ANSWER), "answer.txt": f"{expected}\n"}
