"""SWE-bench Verified and SWE-Bench Pro: an issue of a repository, graded by the tests of its fix."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import ConverterOptions, Files, PublishedRecord, TaskDraft, fill
from valkyrie.benchmarks.named.graders import swe_logs
from valkyrie.errors import UsageError
from valkyrie.text import did_you_mean

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
class PatchedFile:
    """One file of a patch."""

    old: str
    new: str
    deleted: bool


def changes_of(patch: str, record: PublishedRecord, field: str) -> list[PatchedFile]:
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
        found.append(PatchedFile(old, new, "\ndeleted file mode" in head))
    return found


def inside(name: str) -> bool:
    """Return whether a name is a path inside a repository and nothing else."""
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


def listed(record: PublishedRecord, *names: str) -> list[str]:
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


def commit_of(record: PublishedRecord) -> str:
    """The commit the task starts from."""
    commit = record.text("base_commit").strip()
    if not COMMIT.fullmatch(commit):
        raise record.problem(f"'base_commit' should be a whole commit, not {commit[:60]!r}")
    return commit


def image_of(record: PublishedRecord, image: str) -> str:
    """An image's name that can stand in a Dockerfile."""
    if not _IMAGE.fullmatch(image):
        raise record.problem(f"leads to the image {image[:100]!r}, which is no image's name")
    return image


def log_reader() -> str:
    """The program that reads the log, for the tests folder."""
    return Path(swe_logs.__file__).read_text(encoding="utf-8")


def read_one(source: Path) -> Iterator[PublishedRecord]:
    """The records of the file that was named, or of the only one in the folder that was."""
    found = conversion.files_of(source)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UsageError(f"{source} should hold one file of records; it has {names}. Name the one you mean.")
    return conversion.read_records(found[0])


# SWE-bench Verified: an issue of a Python repository, graded by the tests that came with its fix.

FOLDER = "/testbed"
TEST_TIMEOUT_S = 1800
_PYTEST = "pytest -rA"
_OLD_ASTROPY = "pytest -rA -vv -o console_output_style=classic --tb=no"
_SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"
_DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
COMMANDS = {
    "astropy/astropy": (_PYTEST, "pytest-plain"),
    "django/django": (_DJANGO, "django"),
    "matplotlib/matplotlib": (_PYTEST, "matplotlib"),
    "mwaskom/seaborn": ("pytest --no-header -rA", "seaborn"),
    "pallets/flask": (_PYTEST, "pytest"),
    "psf/requests": (_PYTEST, "pytest-paths"),
    "pydata/xarray": (_PYTEST, "pytest"),
    "pylint-dev/pylint": (_PYTEST, "pytest-paths"),
    "pytest-dev/pytest": (_PYTEST, "pytest"),
    "scikit-learn/scikit-learn": (_PYTEST, "pytest-plain"),
    "sphinx-doc/sphinx": ("tox --current-env -epy39 -v --", "pytest-plain"),
    "sympy/sympy": (_SYMPY, "sympy"),
}
"""Repository → (its test command, what reads its log)."""
_NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*__[\w.-]+-\d+")

_DOCKERFILE = """FROM @IMAGE@
WORKDIR /testbed
COPY strip-history.sh /tmp/strip-history.sh
RUN bash /tmp/strip-history.sh /testbed @BASE@ && rm /tmp/strip-history.sh
"""

_TEST = r"""#!/bin/bash
repository=/testbed
base=@BASE@
files=(@FILES@)
log=/logs/verifier/test-output.log
if [ -f /opt/miniconda3/bin/activate ]; then
    source /opt/miniconda3/bin/activate
    conda activate testbed
fi
@PLACE@
if [ -d /opt/miniconda3 ]; then
    outside_git read-tree "$base"
    if [ -n "$(outside_git diff --name-only "$base" -- '*.pyx' '*.pxd' '*.c' '*.cc' '*.cpp' '*.h')" ]; then
        # What is compiled must be what was written; nothing is fetched for it.
        python -m pip install --quiet --no-deps --no-build-isolation -e . || echo "could not be built again"
    fi
fi
@BEFORE@
{
    echo '@START@'
    timeout --kill-after=10 @TIMEOUT@ bash -c @COMMAND@
    code=$?
    echo '@END@'
} > "$log" 2>&1
tail -n 40 "$log"
"$python" -I /tests/swe_logs.py log /tests/expected.json "$log" "$code" /logs/verifier/reward.json
"""
_BEFORE_DJANGO = """export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 LANGUAGE=en_US:en PYTHONIOENCODING=utf8
if [ -d /opt/miniconda3 ] && [ -f /etc/locale.gen ]; then
    sed -i '/en_US.UTF-8/s/^# //' /etc/locale.gen && locale-gen > /dev/null
fi"""


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One task per instance."""
    _ = options
    for record in read_one(source):
        yield _draft(record)


def _draft(record: PublishedRecord) -> TaskDraft:
    instance, base = record.text("instance_id").strip(), commit_of(record)
    if not _ID.fullmatch(instance):
        raise record.problem(f"has the instance_id {instance[:80]!r}, not <owner>__<repository>-<number>")
    image = image_of(record, _image(record, instance))
    difficulty = record.get("difficulty")
    return TaskDraft(
        id=instance,
        source_id=instance,
        record_sha256=record.sha256,
        instruction=record.text("problem_statement"),
        tests=_tests(record, base),
        solution=solution(record.text("patch"), FOLDER),
        environment={
            "Dockerfile": fill(_DOCKERFILE, image=image, base=base),
            "strip-history.sh": STRIP_HISTORY,
        },
        config={
            "agent": {"timeout_sec": 3000.0},
            "verifier": {"timeout_sec": 3000.0},
            "environment": {
                "workdir": FOLDER,
                "build_timeout_sec": 1800.0,
                "memory_mb": 4096,
                "storage_mb": 10240,
                # The fix is on the web; only the tests of one repository ask for more than themselves.
                "network_mode": "public" if record.text("repo") == "psf/requests" else "no-network",
            },
        },
        keywords=(record.text("repo"), *([difficulty] if isinstance(difficulty, str) else [])),
        metadata={"family": record.text("repo")},
    )


def _image(record: PublishedRecord, instance: str) -> str:
    """Newer records name their image; the rule for the others is the harness's."""
    named = record.get("image")
    if isinstance(named, str) and named.strip():
        return named.strip()
    return f"swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest".lower()


def _tests(record: PublishedRecord, base: str) -> Files:
    patch = record.text("test_patch")
    changes = changes_of(patch, record, "test_patch")
    repository = record.text("repo").strip()
    command, parser = _command(record, repository)
    tested = directives([change.new for change in changes if not change.deleted], repository)
    if not tested:
        raise record.problem("has a 'test_patch' that changes no file of tests")
    files = dict.fromkeys(name for change in changes for name in (change.old, change.new))
    expected = {
        "parser": parser,
        "fail_to_pass": listed(record, "FAIL_TO_PASS", "fail_to_pass"),
        "pass_to_pass": listed(record, "PASS_TO_PASS", "pass_to_pass"),
    }
    if not expected["fail_to_pass"]:
        raise record.problem("has an empty 'FAIL_TO_PASS': nothing would have to be repaired")
    script = fill(
        _TEST,
        place=PLACE_TESTS.strip(),
        before=_BEFORE_DJANGO if repository == "django/django" else "",
        base=base,
        files=words(list(files)),
        start=swe_logs.START,
        end=swe_logs.END,
        timeout=str(TEST_TIMEOUT_S),
        command=words([f"{command} {words(tested)}"]),
    )
    return {
        "test.sh": script,
        "test.patch": ended(patch),
        "expected.json": json.dumps(expected, indent=1),
        "swe_logs.py": log_reader(),
    }


def _command(record: PublishedRecord, repository: str) -> tuple[str, str]:
    known = COMMANDS.get(repository)
    if known is None:
        raise record.problem(
            f"is about {repository!r}, which is none of the {len(COMMANDS)} repositories of the benchmark."
            f"{did_you_mean(repository, COMMANDS)}"
        )
    command, parser = known
    version = str(record.get("version") or "")
    if repository == "astropy/astropy" and re.match(r"v?[01]\.", version):
        command = _OLD_ASTROPY
    if repository == "django/django" and version == "1.9":
        command = "./tests/runtests.py --verbosity 2"
    return command, parser


def directives(files: Sequence[str], repository: str) -> list[str]:
    """Return what the test command is told to run."""
    found = [name for name in files if not name.endswith(_NOT_TESTS)]
    if repository != "django/django":
        return found
    return [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in found]


# SWE-Bench Pro: long changes in eleven repositories, graded by the scripts of its code repository.

PRO_FOLDER = "/app"
PRO_TEST_TIMEOUT_S = 3600
IMAGES = "jefzda/sweap-images"
_PRO_ID = re.compile(r"instance_[A-Za-z0-9][\w.-]*__[\w.-]+")
_LONGEST_TAG = 128
_KEEPS_ITS_NAME = "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
"""The one image of element-web that is not called after the repository's shorter name."""
_GOLD_TESTS = re.compile(r"git checkout [0-9a-f]{7,40} -- (?P<files>.+)")

_PRO_DOCKERFILE = """FROM @IMAGE@
ENTRYPOINT []
@ENV@
WORKDIR /app
COPY prepare.sh strip-history.sh /tmp/valkyrie/
RUN bash /tmp/valkyrie/prepare.sh && bash /tmp/valkyrie/strip-history.sh /app @BASE@ && rm -r /tmp/valkyrie
"""

_PRO_TEST = r"""#!/bin/bash
out=/logs/verifier
repository=/app
base=@BASE@
files=(@FILES@)
@PLACE@
timeout --kill-after=10 @TIMEOUT@ bash /tests/run_script.sh @TESTS@ \
    > "$out/stdout.log" 2> "$out/stderr.log"
code=$?
tail -n 40 "$out/stdout.log"
if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    echo "the tests did not end in time, or were killed"
    verdict 0
    exit 0
fi
cp /tests/parser.py "$scratch/parser.py"
"$python" "$scratch/parser.py" "$out/stdout.log" "$out/stderr.log" "$out/output.json"
"$python" -I /tests/swe_logs.py names /tests/expected.json "$out/output.json" "$out/reward.json"
"""


@dataclass(frozen=True, slots=True)
class _Scripts:
    """The clone of the benchmark's code repository."""

    folder: Path

    def of(self, instance: str, record: PublishedRecord) -> Files:
        """Return how this instance's tests are run and read."""
        found = {}
        for name in ("run_script.sh", "parser.py"):
            path = self.folder / "run_scripts" / instance / name
            if not path.is_file():
                raise record.problem(
                    f"has no {name} in {path.parent}: update the clone of its code repository"
                )
            found[name] = path.read_bytes()
        return found

    def environment(self, instance: str) -> list[str]:
        """The ENV instructions of the image's two Dockerfiles, where the clone has them."""
        lines: list[str] = []
        for kind in ("base_dockerfile", "instance_dockerfile"):
            path = self.folder / "dockerfiles" / kind / instance / "Dockerfile"
            if path.is_file():
                joined = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8", errors="replace"))
                lines += [line.strip() for line in joined.splitlines() if re.match(r"\s*ENV\s", line)]
        return lines


def convert_pro(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One task per instance."""
    _ = options
    scripts = _find_scripts(source)
    for record in read_one(source):
        yield _pro_draft(record, scripts)


def _find_scripts(source: Path) -> _Scripts:
    """The folder `run_scripts`: in the folder that was named, beside the file, or in a clone there."""
    folder = source if source.is_dir() else source.parent
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if (place / "run_scripts").is_dir():
            return _Scripts(place)
    raise UsageError(
        f"{folder} holds no folder run_scripts: the tests of this benchmark are run by scripts of its code "
        "repository (scaleapi/SWE-bench_Pro-os). Put a clone of it beside the file of records."
    )


def _pro_draft(record: PublishedRecord, scripts: _Scripts) -> TaskDraft:
    instance, base = record.text("instance_id").strip(), commit_of(record)
    if not _PRO_ID.fullmatch(instance):
        raise record.problem(
            f"has the instance_id {instance[:80]!r}, not instance_<owner>__<repository>-<sha>"
        )
    image = image_of(record, f"{IMAGES}:{_tag(record, instance)}")
    env = "\n".join(scripts.environment(instance))
    commands = str(record.get("before_repo_set_cmd") or "").splitlines()
    before = [line.strip() for line in commands if line.strip()]
    return TaskDraft(
        id=instance.lower(),
        source_id=instance,
        record_sha256=record.sha256,
        instruction=_instruction(record),
        tests=_pro_tests(record, base, before, scripts.of(instance, record)),
        solution=solution(without_binary(record.text("patch")), PRO_FOLDER),
        environment={
            "Dockerfile": fill(_PRO_DOCKERFILE, image=image, base=base, env=env),
            "prepare.sh": _prepare(before, base),
            "strip-history.sh": STRIP_HISTORY,
        },
        config={
            "agent": {"timeout_sec": 3000.0},
            "verifier": {"timeout_sec": float(PRO_TEST_TIMEOUT_S + 600)},
            "environment": {
                "workdir": PRO_FOLDER,
                "build_timeout_sec": 1800.0,
                "cpus": 2,
                "memory_mb": 8192,
                "storage_mb": 20480,
            },
        },
        keywords=(record.text("repo"), str(record.get("repo_language") or "unknown")),
        metadata={"family": record.text("repo")},
    )


def _tag(record: PublishedRecord, instance: str) -> str:
    named = record.get("dockerhub_tag")
    if isinstance(named, str) and named.strip():
        return named.strip()
    owner, _, name = record.text("repo").strip().lower().partition("/")
    plain = instance.removeprefix("instance_")
    if instance != _KEEPS_ITS_NAME:
        plain = plain.removesuffix("-vnan")
        if name == "element-web":
            name = "element"
    return f"{owner}.{name}-{plain}"[:_LONGEST_TAG]


def _instruction(record: PublishedRecord) -> str:
    parts = [
        "The repository in /app needs a change. Make it in the files that are not tests: those for it are "
        "already taken care of.",
        record.text("problem_statement").strip(),
    ]
    for title, name in (("Requirements:", "requirements"), ("New interfaces introduced:", "interface")):
        text = record.get(name)
        if isinstance(text, str) and text.strip():
            parts.append(f"{title}\n{text.strip()}")
    return "\n\n".join(parts)


def _prepare(before: list[str], base: str) -> str:
    """Everything but the last line, which would bring in the tests the agent must not see."""
    lines = before[:-1] if before and _GOLD_TESTS.match(before[-1]) else before
    script = "\n".join(lines or [f"git reset --hard {base}", "git clean -fd", f"git checkout {base}"])
    return f"#!/bin/bash\nset -e\ncd /app\ngit config --global --add safe.directory /app\n{script}\n"


def _pro_tests(record: PublishedRecord, base: str, before: list[str], scripts: Files) -> Files:
    patch = without_binary(record.text("test_patch"))
    changes = changes_of(patch, record, "test_patch")
    files = dict.fromkeys(name for change in changes for name in (change.old, change.new))
    files.update(dict.fromkeys(_gold_tests(record, before)))
    required = {*listed(record, "fail_to_pass"), *listed(record, "pass_to_pass")}
    if not required:
        raise record.problem("names no test that must pass")
    script = fill(
        _PRO_TEST,
        place=PLACE_TESTS.strip(),
        base=base,
        files=words(list(files)),
        timeout=str(PRO_TEST_TIMEOUT_S),
        tests=shlex.quote(",".join(listed(record, "selected_test_files_to_run"))),
    )
    return {
        **scripts,
        "test.sh": script,
        "test.patch": patch,
        "expected.json": json.dumps({"required": sorted(required)}, indent=1),
        "swe_logs.py": log_reader(),
    }


def _gold_tests(record: PublishedRecord, before: list[str]) -> list[str]:
    """Files the last line would check out: those the test patch does not change are restored as they were."""
    match = _GOLD_TESTS.match(before[-1]) if before else None
    try:
        names = shlex.split(match["files"]) if match else []
    except ValueError:
        names = []
    if bad := [name for name in names if not inside(name)]:
        raise record.problem(
            f"names {bad[0][:100]!r} in 'before_repo_set_cmd', which is no path of a repository"
        )
    return names
