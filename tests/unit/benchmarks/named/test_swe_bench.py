"""SWE-bench Verified: records to tasks, and logs to verdicts. Logs and records are written here."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from valkyrie.benchmarks.named import conversion, swe_bench
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft
from valkyrie.benchmarks.named.graders import swe_logs
from valkyrie.errors import UsageError

PATCH = "diff --git a/src/x.py b/src/x.py\n--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-a\n+b"
TEST_PATCH = """diff --git a/tests/forms/test_x.py b/tests/forms/test_x.py
--- a/tests/forms/test_x.py
+++ b/tests/forms/test_x.py
@@ -1 +1 @@
-a
+b
diff --git a/tests/forms/gone.py b/tests/forms/gone.py
deleted file mode 100644
--- a/tests/forms/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-a
diff --git a/tests/old name.py b/tests/data/it's new.py
similarity index 90%
rename from tests/old name.py
rename to tests/data/it's new.py
diff --git a/tests/data/sample.json b/tests/data/sample.json
--- a/tests/data/sample.json
+++ b/tests/data/sample.json
@@ -1 +1 @@
-1
+2
"""


def record(**more: Any) -> dict[str, Any]:
    return {
        "instance_id": "Pallets__flask-12",
        "repo": "pallets/flask",
        "base_commit": "a" * 40,
        "version": "2.0",
        "problem_statement": "It breaks.",
        "hints_text": "Look in x.py",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": '["tests/test_x.py::test_a[1]"]',
        "PASS_TO_PASS": [],
        **more,
    }


def convert(folder: Path, *rows: dict[str, Any]) -> list[TaskDraft]:
    source = folder / "test.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(swe_bench.convert(source, ConverterOptions("swe-bench-verified")))


def test_a_record_becomes_a_task(tmp_path: Path) -> None:
    [draft] = convert(tmp_path, record())
    assert draft.id == "Pallets__flask-12"
    dockerfile = str(draft.environment["Dockerfile"])
    assert dockerfile.startswith("FROM swebench/sweb.eval.x86_64.pallets_1776_flask-12:latest\n")
    assert f"strip-history.sh /testbed {'a' * 40} " in dockerfile
    test = str(draft.tests["test.sh"])
    assert "pytest -rA tests/forms/test_x.py" in test
    assert "gone.py" not in test.split("bash -c")[1] and "sample.json" not in test.split("bash -c")[1]
    listed = test.split("files=(")[1].split(")\n")[0]
    for name in ("tests/forms/gone.py", "'tests/old name.py'", "it'\"'\"'s new.py", "sample.json"):
        assert name in listed, "every file of the patch is put back first"
    assert json.loads(str(draft.tests["expected.json"])) == {
        "parser": "pytest",
        "fail_to_pass": ["tests/test_x.py::test_a[1]"],
        "pass_to_pass": [],
    }
    assert str(draft.solution["gold.patch"]).endswith("+b\n")
    everything = draft.instruction + "".join(map(str, draft.environment.values()))
    assert "Look in x.py" not in everything and PATCH not in everything and "test_x" not in everything


def test_scripts_are_what_bash_reads(tmp_path: Path) -> None:
    conversion.write_tasks(convert(tmp_path, record()), tmp_path / "tasks", "swe-bench-verified")
    task = tmp_path / "tasks" / "Pallets__flask-12"
    for script in ("tests/test.sh", "solution/solve.sh", "environment/strip-history.sh"):
        subprocess.run(["bash", "-n", task / script], check=True)
    assert "@" not in (task / "tests" / "test.sh").read_text().replace("[@]", "").replace("$@", "")
    environment = tomllib.loads((task / "task.toml").read_text())["environment"]
    assert (environment["workdir"], environment["network_mode"]) == ("/testbed", "no-network")


@pytest.mark.parametrize(
    ("repo", "version", "command", "parser"),
    [
        ("django/django", "4.1", "--settings=test_sqlite --parallel 1 forms.test_x", "django"),
        ("django/django", "1.9", "./tests/runtests.py --verbosity 2 forms.test_x", "django"),
        ("astropy/astropy", "1.3", "console_output_style=classic", "pytest-plain"),
        ("astropy/astropy", "5.1", "pytest -rA tests/forms", "pytest-plain"),
        ("sympy/sympy", "1.4", "bin/test -C --verbose tests/forms", "sympy"),
        ("sphinx-doc/sphinx", "3.1", "tox --current-env -epy39 -v -- tests", "pytest-plain"),
        ("psf/requests", "2.0", "pytest -rA tests/forms", "pytest-paths"),
    ],
)
def test_commands(repo: str, version: str, command: str, parser: str, tmp_path: Path) -> None:
    [draft] = convert(tmp_path, record(repo=repo, version=version))
    assert command in str(draft.tests["test.sh"]).replace("'\"'\"'", "'")
    assert json.loads(str(draft.tests["expected.json"]))["parser"] == parser


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"repo": "pallets/flusk"}, r"none of the 12 repositories.*pallets/flask"),
        ({"base_commit": "abc"}, r"whole commit"),
        ({"instance_id": "../x"}, r"<owner>__<repository>-<number>"),
        ({"FAIL_TO_PASS": "[]"}, r"nothing would have to be repaired"),
        ({"FAIL_TO_PASS": "__import__('os')"}, r"should be a list"),
        ({"test_patch": "diff --git a/../../x b/../../x\n"}, r"no path of a repository"),
        ({"test_patch": "diff --git a/x.json b/x.json\n"}, r"changes no file of tests"),
        ({"image": "x\nRUN evil"}, r"no image's name"),
        ({"patch": None}, r"no field 'patch'"),
    ],
)
def test_records_that_are_none(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        convert(tmp_path, record(**changes))


def test_a_folder_with_two_files_is_ambiguous(tmp_path: Path) -> None:
    for name in ("dev.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(json.dumps(record()) + "\n")
    with pytest.raises(UsageError, match=r"dev\.jsonl, test\.jsonl"):
        list(swe_bench.convert(tmp_path, ConverterOptions("swe-bench-verified")))


PYTEST_LOG = """\
collected 6 items
tests/test_a.py .F.s
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_words[a b]
XFAIL tests/test_a.py::test_hoped
SKIPPED [1] tests/test_a.py:9: not here
FAILED tests/test_a.py::test_two - AssertionError: no
ERROR tests/test_b.py - ImportError
PASSED tests/test_a.py::test_two
"""


def parse(name: str, text: str) -> dict[str, str]:
    return swe_logs.PARSERS[name](text.splitlines())


def test_pytest_logs() -> None:
    found = parse("pytest", PYTEST_LOG)
    assert found["tests/test_a.py::test_one"] == found["tests/test_a.py::test_words[a"] == "PASSED"
    assert found["tests/test_a.py::test_hoped"] == "XFAIL"
    assert found["tests/test_b.py"] == "ERROR"
    assert found["tests/test_a.py::test_two"] == "FAILED", "a line printed later does not undo it"


def test_plain_pytest_logs() -> None:
    log = (
        "\x1b[32mPASSED\x1b[0m a.py::one\nb.py::two PASSED\nb.py::three FAILED\n[31mFAILED[0m c.py::x - no\n"
    )
    assert parse("pytest-plain", log) == {
        "a.py::one": "PASSED",
        "b.py::two": "PASSED",
        "b.py::three": "FAILED",
        "c.py::x": "FAILED",
    }


def test_paths_in_parameters() -> None:
    log = "PASSED a.py::t[/tmp/x/y.py]\nPASSED a.py::t[//h/y]\nPASSED a.py::t[/a/*]\nPASSED a.py::u\n"
    assert list(parse("pytest-paths", log)) == [
        "a.py::t[/y.py]",
        "a.py::t[//h/y]",
        "a.py::t[/a/*]",
        "a.py::u",
    ]


def test_matplotlib_seaborn_and_sympy_logs() -> None:
    assert list(parse("matplotlib", "PASSED a.py::t[MouseButton.LEFT-MouseButton.RIGHT]")) == ["a.py::t[1-3]"]
    log = "FAILED a.py::x - no\na.py::y PASSED [ 10%]\nPASSED a.py::z\nnothing PASSEDx\n"
    assert parse("seaborn", log) == {"a.py::x": "FAILED", "a.py::y": "PASSED", "a.py::z": "PASSED"}
    log = "test_a ok\ntest_b F\ntest_c E\n____ sympy/x.py:test_b ____\nnot test_d ok\n"
    assert parse("sympy", log) == {
        "test_a": "PASSED",
        "test_b": "FAILED",
        "test_c": "ERROR",
        "sympy/x.py:test_b": "FAILED",
    }


DJANGO_LOG = """\
test_a (forms.tests.A) ... ok
A docstring says it. ... ok
test_b (forms.tests.A) ... FAIL
test_c (forms.tests.A) ... skipped 'no database'
test_d (forms.tests.A) ... ERROR
test_e (forms.tests.A) ... Internal Server Error: /x/
ok
test_f (forms.tests.A) ... Testing against Django installed in '/x'
System check identified no issues (0 silenced).
ok
Applying sites.0002_x...test_g (forms.tests.A) ... ok
test_h (forms.tests.A) ...  OK
FAIL: test_i (forms.tests.B)
ERROR: test_j (forms.tests.B)
"""


def test_django_logs() -> None:
    found = parse("django", DJANGO_LOG)
    by_status: dict[str, list[str]] = {}
    for name, status in found.items():
        by_status.setdefault(status, []).append(name.split()[0])
    assert by_status == {
        "PASSED": ["test_a", "A", "test_e", "test_f", "test_g", "test_h"],
        "FAILED": ["test_b", "test_i"],
        "SKIPPED": ["test_c"],
        "ERROR": ["test_d", "test_j"],
    }


@pytest.mark.parametrize(
    ("results", "exit_code", "reward"),
    [
        ({"f": "PASSED", "p": "PASSED"}, 0, 1),
        ({"f": "XFAIL", "p": "SKIPPED"}, 0, 1),
        ({"f": "SKIPPED", "p": "PASSED"}, 0, 0),
        ({"f": "PASSED"}, 0, 0),
        ({"f": "PASSED", "p": "PASSED", "other": "FAILED"}, 1, 1),
        ({"f": "PASSED", "p": "PASSED"}, 1, 0),
    ],
)
def test_when_an_issue_is_resolved(results: dict[str, str], exit_code: int, reward: float) -> None:
    assert swe_logs.judge(results, exit_code, ["f"], ["p"])["reward"] == reward


def test_names_that_were_cut_off() -> None:
    results = {"a.py::t[x-1]": "PASSED", "a.py::t[x-2]": "PASSED", "a.py::t[y-1]": "FAILED"}
    assert swe_logs.status_of("a.py::t[x", results) == "PASSED"
    assert swe_logs.status_of("a.py::t[", results) is None, "they do not agree"
    assert swe_logs.status_of("a.py::t", results) is None


def run_reader(tmp_path: Path, log: str, exit_code: int = 0) -> tuple[int, dict[str, Any] | None]:
    """The program as a task runs it."""
    expected, reward = tmp_path / "expected.json", tmp_path / "reward.json"
    expected.write_text(json.dumps({"parser": "pytest", "fail_to_pass": ["a.py::x"], "pass_to_pass": []}))
    (tmp_path / "log").write_text(log)
    words = ["log", str(expected), str(tmp_path / "log"), str(exit_code), str(reward)]
    ended = subprocess.run([sys.executable, "-I", swe_logs.__file__, *words], check=False)
    return ended.returncode, json.loads(reward.read_text()) if reward.exists() else None


RUN = f"{swe_logs.START}\nPASSED a.py::x\n{swe_logs.END}\n"


def test_no_markers_no_verdict(tmp_path: Path) -> None:
    assert run_reader(tmp_path, "PASSED a.py::x\n") == (1, None)
    assert run_reader(tmp_path, f"{swe_logs.START}\nPASSED a.py::x\n") == (1, None)
    assert run_reader(tmp_path, f"PASSED a.py::x\n{swe_logs.START}\n{swe_logs.END}\n")[1] == {
        "reward": 0.0,
        "fail_to_pass": 0.0,
        "pass_to_pass": 1.0,
    }


def test_a_run_that_was_cut_short_fails(tmp_path: Path) -> None:
    code, reward = run_reader(tmp_path, RUN, exit_code=swe_logs.TIMED_OUT)
    assert code == 0 and reward is not None and reward["reward"] == 0.0


def test_the_reader_is_written_for_old_pythons() -> None:
    """It runs on whatever an image has: nothing that Python 3.6 cannot parse or evaluate."""
    tree = ast.parse(Path(swe_logs.__file__).read_text(), feature_version=(3, 6))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(imported) == {"pathlib", "typing"}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    annotations = [node.returns for node in functions] + [
        argument.annotation for node in functions for argument in node.args.args
    ]
    written = " ".join(ast.unparse(annotation) for annotation in annotations if annotation)
    assert "|" not in written and "list[" not in written and "dict[" not in written
