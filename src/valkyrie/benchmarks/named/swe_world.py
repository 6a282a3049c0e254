"""What tasks on a repository with an issue share: its image, its history, its test files, its gold patch."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from valkyrie.benchmarks.named import records
from valkyrie.benchmarks.named.drafts import Files
from valkyrie.benchmarks.named.graders import swe_logs
from valkyrie.benchmarks.named.records import Record
from valkyrie.benchmarks.named.texts import fill
from valkyrie.errors import UsageError

COMMIT = re.compile(r"[0-9a-f]{40}")
_IMAGE = re.compile(r"[a-z0-9][\w./:-]{0,250}")
_CHANGED = re.compile(r"^diff --git a/(?P<old>.*) b/(?P<new>.*)$", re.MULTILINE)

STRIP_HISTORY = r"""#!/bin/bash
# Leaves the repository at one commit: nothing that came later, and no way to fetch it.
set -e
cd "$1"
base=$2
HOME=$(mktemp -d)
export HOME GIT_CONFIG_NOSYSTEM=1
printf '[safe]\n\tdirectory = *\n\tdirectory = %s\n' "$1" > "$HOME/.gitconfig"
git() { command git -c core.hooksPath=/dev/null -c gc.auto=0 "$@"; }
git merge-base --is-ancestor "$base" HEAD || { echo "$1 does not stand on $base"; exit 1; }
git checkout --quiet --detach HEAD
git remote | while read -r name; do git remote remove "$name"; done
git for-each-ref --format='delete %(refname)' | git update-ref --stdin
rm -rf .git/logs .git/FETCH_HEAD .git/ORIG_HEAD .git/MERGE_HEAD .git/packed-refs.lock
git stash clear || true
git reflog expire --expire=now --expire-unreachable=now --all
git gc --quiet --prune=now
rm -r "$HOME"
"""

PLACE_TESTS = r"""
# The published tests take their places. git reads the objects of the repository the agent worked in, but not
# its settings, hooks or index: those are the agent's.
verdict() { printf '{"reward": %s}\n' "$1" > /logs/verifier/reward.json; }
scratch=$(mktemp -d)
outside_git() {
    HOME=$scratch GIT_CONFIG_NOSYSTEM=1 command git --git-dir="$scratch/git" --work-tree="$repository" \
        -c core.hooksPath=/dev/null -c core.autocrlf=false "$@"
}
HOME=$scratch GIT_CONFIG_NOSYSTEM=1 command git init --quiet --bare --template= "$scratch/git" || exit 1
mkdir -p "$scratch/git/objects/info"
echo "$repository/.git/objects" > "$scratch/git/objects/info/alternates"
if ! cd "$repository" || ! outside_git cat-file -e "$base^{commit}"; then
    echo "the repository is gone, or no longer has the commit the task starts from: nothing to grade"
    verdict 0
    exit 0
fi
known=()
for file in "${files[@]}"; do
    folder=$(dirname "$file")
    while [ "$folder" != . ]; do
        if [ -L "$folder" ] || { [ -e "$folder" ] && [ ! -d "$folder" ]; }; then rm -rf -- "$folder"; fi
        folder=$(dirname "$folder")
    done
    rm -rf -- "./$file"
    if outside_git cat-file -e "$base:$file" 2>/dev/null; then known+=("$file"); fi
done
if [ ${#known[@]} -gt 0 ]; then outside_git checkout --quiet "$base" -- "${known[@]}" || exit 1; fi
if [ -s /tests/test.patch ]; then
    outside_git apply --verbose --whitespace=nowarn /tests/test.patch || {
        echo "the published test patch does not apply: no verdict"
        exit 1
    }
fi
python=
for found in /usr/bin/python3 /opt/miniconda3/bin/python3 "$(command -v python3)" "$(command -v python)"; do
    if [ -z "$python" ] && [ -x "$found" ]; then python=$found; fi
done
"""

_SOLVE = r"""#!/bin/bash
# The published solution.
set -e
cd @FOLDER@
patch=$(dirname "$0")/gold.patch
HOME=$(mktemp -d)
export HOME
printf '[safe]\n\tdirectory = *\n\tdirectory = %s\n' "$PWD" > "$HOME/.gitconfig"
git apply --whitespace=nowarn "$patch" ||
    patch --batch --forward --fuzz=5 -p1 -i "$patch"
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One file of a patch."""

    old: str
    new: str
    deleted: bool


def changes_of(patch: str, record: Record, field: str) -> list[Change]:
    """The files a patch touches, in its order."""
    starts = list(_CHANGED.finditer(patch))
    found = []
    for at, match in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(patch)
        head = patch[match.end() : end].split("\n@@", 1)[0]
        old, new = match["old"].rstrip("\r"), match["new"].rstrip("\r")
        for name in (old, new):
            if not inside(name):
                raise record.problem(f"names {name[:100]!r} in {field!r}, which is no path of a repository")
        found.append(Change(old, new, "\ndeleted file mode" in head))
    return found


def inside(name: str) -> bool:
    """Whether a name is a path inside a repository and nothing else."""
    path = PurePosixPath(name)
    odd = path.is_absolute() or ".." in path.parts or ".git" in path.parts or not path.parts
    return not odd and name.isprintable() and not name.startswith(("-", '"'))


def without_binary(patch: str) -> str:
    """A patch without the parts that only say that binary files differ: git cannot apply those."""
    starts = [match.start() for match in _CHANGED.finditer(patch)]
    if not starts:
        return ended(patch)
    parts = [patch[start:end] for start, end in zip(starts, [*starts[1:], len(patch)], strict=True)]
    kept = [part for part in parts if not re.search(r"^Binary files .* differ$", part, re.MULTILINE)]
    return ended(patch[: starts[0]] + "".join(kept))


def ended(patch: str) -> str:
    """The patch with a line end behind its last line, without which git does not take it."""
    return patch if not patch or patch.endswith("\n") else patch + "\n"


def solution(patch: str, folder: str) -> Files:
    """The gold patch and how to apply it; nothing when the data has none."""
    if not patch.strip():
        return {}
    return {"solve.sh": fill(_SOLVE, folder=shlex.quote(folder)), "gold.patch": ended(patch)}


def words(values: Sequence[str]) -> str:
    """Values as words of a shell."""
    return " ".join(map(shlex.quote, values))


def listed(record: Record, *names: str) -> list[str]:
    """A field that is a list, or a list written as text: JSON, or as Python writes it."""
    value = record.get(*names)
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text) if text else []
        except ValueError:
            try:
                value = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                raise record.problem(f"{names[0]!r} should be a list of names") from None
    if value is None:
        raise record.problem(f"has no field {names[0]!r}", names[0])
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise record.problem(f"{names[0]!r} should be a list of names")
    return list(value)


def commit_of(record: Record) -> str:
    """The commit the task starts from."""
    commit = record.text("base_commit").strip()
    if not COMMIT.fullmatch(commit):
        raise record.problem(f"'base_commit' should be a whole commit, not {commit[:60]!r}")
    return commit


def image_of(record: Record, image: str) -> str:
    """An image's name that can stand in a Dockerfile."""
    if not _IMAGE.fullmatch(image):
        raise record.problem(f"leads to the image {image[:100]!r}, which is no image's name")
    return image


def log_reader() -> str:
    """The program that reads the log, for the tests folder."""
    return Path(swe_logs.__file__).read_text(encoding="utf-8")


def read_one(source: Path) -> Iterator[Record]:
    """The records of the file that was named, or of the only one in the folder that was."""
    found = records.files_of(source)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UsageError(f"{source} should hold one file of records; it has {names}. Name the one you mean.")
    return records.read(found[0])
