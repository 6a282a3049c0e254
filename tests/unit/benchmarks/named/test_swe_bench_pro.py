"""SWE-Bench Pro: records and run scripts to tasks. Records are written here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.issue_repository import put_scripts
from valkyrie.benchmarks.named import conversion, swe_bench
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft
from valkyrie.benchmarks.named.graders import swe_logs
from valkyrie.errors import UsageError

GOLD = "b" * 40
INSTANCE = f"instance_NodeBB__NodeBB-{GOLD}-vnan"
TEST_PATCH = f"""diff --git a/test/a.js b/test/a.js
--- a/test/a.js
+++ b/test/a.js
@@ -1 +1 @@
-a
+b
diff --git a/test/x.png b/test/x.png
Binary files a/test/x.png and b/test/x.png differ
diff --git a/test/b.js b/test/b.js
--- a/test/b.js
+++ b/test/b.js
@@ -1 +1 @@
-{GOLD}
+b"""


def record(**more: Any) -> dict[str, Any]:
    return {
        "instance_id": INSTANCE,
        "repo": "NodeBB/NodeBB",
        "repo_language": "js",
        "base_commit": "a" * 40,
        "problem_statement": "It breaks.",
        "requirements": "- It must not.",
        "interface": "",
        "patch": "diff --git a/x.js b/x.js\n--- a/x.js\n+++ b/x.js\n@@ -1 +1 @@\n-a\n+b",
        "test_patch": TEST_PATCH,
        "fail_to_pass": "['test/a.js | it\\'s one']",
        "pass_to_pass": '["test/b.js | two"]',
        "before_repo_set_cmd": f"git reset --hard {'a' * 40}\ngit clean -fd \n"
        f"git checkout {'a' * 40} \ngit checkout {GOLD} -- test/a.js test/other.js",
        "selected_test_files_to_run": '["test/a.js", "test/b.js"]',
        **more,
    }


def convert(folder: Path, row: dict[str, Any]) -> TaskDraft:
    (folder / "test.jsonl").write_text(json.dumps(row) + "\n")
    if not (folder / "code").exists():
        put_scripts(folder, row["instance_id"])
    [draft] = swe_bench.convert_pro(folder, ConverterOptions("swe-bench-pro"))
    return draft


def test_a_record_becomes_a_task(tmp_path: Path) -> None:
    draft = convert(tmp_path, record())
    assert draft.id == INSTANCE.lower()
    dockerfile = str(draft.environment["Dockerfile"])
    assert dockerfile.startswith(
        f"FROM jefzda/sweap-images:nodebb.nodebb-NodeBB__NodeBB-{GOLD}\nENTRYPOINT []\n"
    )
    assert "\nENV COLOUR=none      LEVEL=1\nWORKDIR /app\n" in dockerfile
    assert GOLD not in str(draft.environment["prepare.sh"]), "the tests of the fix are not checked out"
    test = str(draft.tests["test.sh"])
    assert "files=(test/a.js test/b.js test/other.js)" in test
    assert "run_script.sh test/a.js,test/b.js" in test
    assert "x.png" not in str(draft.tests["test.patch"]) and str(draft.tests["test.patch"]).endswith("\n")
    required = json.loads(str(draft.tests["expected.json"]))["required"]
    assert required == ["test/a.js | it's one", "test/b.js | two"]
    assert "Requirements:\n- It must not." in draft.instruction
    assert "New interfaces" not in draft.instruction
    conversion.write_tasks([draft], tmp_path / "tasks", "swe-bench-pro")
    for script in (tmp_path / "tasks").rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize(
    ("instance", "repo", "tag"),
    [
        (f"instance_a__b-{GOLD}-v{GOLD}", "A/b", f"a.b-a__b-{GOLD}-v{GOLD}"),
        (
            f"instance_element-hq__element-web-{GOLD}-vnan",
            "element-hq/element-web",
            f"element-hq.element-element-hq__element-web-{GOLD}",
        ),
        (
            "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan",
            "element-hq/element-web",
            "element-hq.element-web-element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan",
        ),
        (f"instance_q__{'q' * 80}-{GOLD}", f"q/{'q' * 80}", f"q.{'q' * 80}-q__{'q' * 80}-{GOLD}"[:128]),
    ],
)
def test_images_by_rule(instance: str, repo: str, tag: str, tmp_path: Path) -> None:
    draft = convert(tmp_path, record(instance_id=instance, repo=repo))
    assert str(draft.environment["Dockerfile"]).startswith(f"FROM jefzda/sweap-images:{tag}\n")


def test_a_record_may_name_its_image(tmp_path: Path) -> None:
    draft = convert(tmp_path, record(dockerhub_tag="own.Tag-1"))
    assert str(draft.environment["Dockerfile"]).startswith("FROM jefzda/sweap-images:own.Tag-1\n")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fail_to_pass": "nonsense"}, "should be a list"),
        ({"fail_to_pass": "[]", "pass_to_pass": "[]"}, "no test that must pass"),
        ({"dockerhub_tag": "a b"}, "no image's name"),
        ({"before_repo_set_cmd": f"git checkout {GOLD} -- ../x"}, "no path"),
        ({"instance_id": "x"}, "instance_<owner>"),
    ],
)
def test_records_that_are_none(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    put_scripts(tmp_path, INSTANCE)
    with pytest.raises(UsageError, match=says):
        convert(tmp_path, record(**changes))


def test_the_scripts_must_be_there(tmp_path: Path) -> None:
    source = tmp_path / "test.jsonl"
    source.write_text(json.dumps(record()) + "\n")
    with pytest.raises(UsageError, match=r"no folder run_scripts.*code repository"):
        list(swe_bench.convert_pro(source, ConverterOptions("swe-bench-pro")))
    put_scripts(tmp_path, "instance_a__b-c")
    with pytest.raises(UsageError, match=r"no run_script\.sh"):
        list(swe_bench.convert_pro(source, ConverterOptions("swe-bench-pro")))


def test_every_required_test_must_have_passed(tmp_path: Path) -> None:
    output = tmp_path / "output.json"
    output.write_text(
        json.dumps({"tests": [{"name": "a", "status": "PASSED"}, {"name": "b", "status": "FAILED"}]})
    )
    assert swe_logs.judge_names(str(output), ["a"])["reward"] == 1.0
    assert swe_logs.judge_names(str(output), ["a", "b"]) == {"reward": 0.0, "required": 0.5}
    assert swe_logs.judge_names(str(output), ["a", "c"])["reward"] == 0.0
