"""SWE-bench Verified: an issue of a Python repository, graded by the tests that came with its fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from valkyrie.benchmarks.named import swe_world
from valkyrie.benchmarks.named.drafts import Files, Options, TaskDraft
from valkyrie.benchmarks.named.graders import swe_logs
from valkyrie.benchmarks.named.records import Record
from valkyrie.benchmarks.named.texts import fill
from valkyrie.suggest import did_you_mean

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


def convert(source: Path, options: Options) -> Iterator[TaskDraft]:
    """One task per instance."""
    _ = options
    for record in swe_world.read_one(source):
        yield _draft(record)


def _draft(record: Record) -> TaskDraft:
    instance, base = record.text("instance_id").strip(), swe_world.commit_of(record)
    if not _ID.fullmatch(instance):
        raise record.problem(f"has the instance_id {instance[:80]!r}, not <owner>__<repository>-<number>")
    image = swe_world.image_of(record, _image(record, instance))
    difficulty = record.get("difficulty")
    return TaskDraft(
        id=instance,
        source_id=instance,
        record_sha256=record.sha256,
        instruction=record.text("problem_statement"),
        tests=_tests(record, base),
        solution=swe_world.solution(record.text("patch"), FOLDER),
        environment={
            "Dockerfile": fill(_DOCKERFILE, image=image, base=base),
            "strip-history.sh": swe_world.STRIP_HISTORY,
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


def _image(record: Record, instance: str) -> str:
    """Newer records name their image; the rule for the others is the harness's."""
    named = record.get("image")
    if isinstance(named, str) and named.strip():
        return named.strip()
    return f"swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest".lower()


def _tests(record: Record, base: str) -> Files:
    patch = record.text("test_patch")
    changes = swe_world.changes_of(patch, record, "test_patch")
    repository = record.text("repo").strip()
    command, parser = _command(record, repository)
    tested = directives([change.new for change in changes if not change.deleted], repository)
    if not tested:
        raise record.problem("has a 'test_patch' that changes no file of tests")
    files = dict.fromkeys(name for change in changes for name in (change.old, change.new))
    expected = {
        "parser": parser,
        "fail_to_pass": swe_world.listed(record, "FAIL_TO_PASS", "fail_to_pass"),
        "pass_to_pass": swe_world.listed(record, "PASS_TO_PASS", "pass_to_pass"),
    }
    if not expected["fail_to_pass"]:
        raise record.problem("has an empty 'FAIL_TO_PASS': nothing would have to be repaired")
    script = fill(
        _TEST,
        place=swe_world.PLACE_TESTS.strip(),
        before=_BEFORE_DJANGO if repository == "django/django" else "",
        base=base,
        files=swe_world.words(list(files)),
        start=swe_logs.START,
        end=swe_logs.END,
        timeout=str(TEST_TIMEOUT_S),
        command=swe_world.words([f"{command} {swe_world.words(tested)}"]),
    )
    return {
        "test.sh": script,
        "test.patch": swe_world.ended(patch),
        "expected.json": json.dumps(expected, indent=1),
        "swe_logs.py": swe_world.log_reader(),
    }


def _command(record: Record, repository: str) -> tuple[str, str]:
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
    """What the test command is told to run."""
    found = [name for name in files if not name.endswith(_NOT_TESTS)]
    if repository != "django/django":
        return found
    return [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in found]
