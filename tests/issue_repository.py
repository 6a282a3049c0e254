"""A small repository with a bug, its fix and the tests for it, as the SWE-bench family publishes them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.git_repository import git

RUN_TESTS = """#!/usr/bin/env python3
import sys, unittest
sys.path[:0] = [".", "tests"]
names = [word for word in sys.argv[1:] if not word.startswith("-") and not word.isdigit()]
suite = unittest.defaultTestLoader.loadTestsFromNames(names)
sys.exit(not unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite).wasSuccessful())
"""
BUG = "def total(values):\n    return sum(values[1:])\n"
FIXED = "def total(values):\n    return sum(values)\n"
OLD_TEST = """import unittest
import sums


class Totals(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(sums.total([]), 0)
"""
NEW_TEST = OLD_TEST + "\n    def test_all(self):\n        self.assertEqual(sums.total([1, 2]), 3)\n"


@dataclass(frozen=True)
class Issue:
    """Where the repository stands, and what would repair it."""

    folder: Path
    base: str
    gold: str
    patch: str
    test_patch: str

    def put_into(self, task: Path, place: str) -> None:
        """Make the repository part of the task's environment: a stand-in for what its image has."""
        shutil.copytree(self.folder, task / "environment" / "repository", symlinks=True)
        dockerfile = task / "environment" / "Dockerfile"
        first, rest = dockerfile.read_text().split("\n", 1)
        dockerfile.write_text(f"{first}\nCOPY repository {place}\n{rest}")


def make_issue(folder: Path) -> Issue:
    """A repository at the commit before the fix, which lies ahead of it under a branch and a tag."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    files = {"sums.py": BUG, "tests/runtests.py": RUN_TESTS, "tests/totals/test_totals.py": OLD_TEST}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "tests" / "runtests.py").chmod(0o755)
    (folder / "tests" / "totals" / "__init__.py").touch()
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "before")
    base = git(folder, "rev-parse", "HEAD")
    (folder / "sums.py").write_text(FIXED)
    (folder / "tests" / "totals" / "test_totals.py").write_text(NEW_TEST)
    git(folder, "commit", "--quiet", "-am", "the fix")
    gold = git(folder, "rev-parse", "HEAD")
    patch = git(folder, "diff", base, gold, "--", "sums.py")
    test_patch = git(folder, "diff", base, gold, "--", "tests") + "\n"
    git(folder, "tag", "later")
    git(folder, "remote", "add", "origin", folder.as_uri())
    git(folder, "checkout", "--quiet", base)
    return Issue(folder, base, gold, patch, test_patch)


def verified_record(issue: Issue, **more: Any) -> dict[str, Any]:
    """The issue as a record of SWE-bench Verified."""
    return {
        "instance_id": "django__django-1",
        "repo": "django/django",
        "base_commit": issue.base,
        "version": "4.0",
        "problem_statement": "total([1, 2]) is 2, @BASE@ and {braces} included.",
        "hints_text": "a hint nobody may see",
        "patch": issue.patch,
        "test_patch": issue.test_patch,
        "FAIL_TO_PASS": json.dumps(["test_all (totals.test_totals.Totals.test_all)"]),
        "PASS_TO_PASS": ["test_nothing (totals.test_totals.Totals.test_nothing)"],
        "difficulty": "<15 min fix",
        **more,
    }


def pro_record(issue: Issue, **more: Any) -> dict[str, Any]:
    """The issue as a record of SWE-Bench Pro."""
    lines = [
        f"git reset --hard {issue.base}",
        "git clean -fd",
        f"git checkout {issue.base}",
        f"git checkout {issue.gold} -- tests/totals/test_totals.py",
    ]
    return {
        "instance_id": f"instance_Own__Sums-{issue.gold}-vnan",
        "repo": "Own/Sums",
        "repo_language": "python",
        "base_commit": issue.base,
        "problem_statement": "total leaves out the first value.",
        "requirements": "- every value counts",
        "interface": "No new interfaces",
        "patch": issue.patch,
        "test_patch": issue.test_patch,
        "fail_to_pass": "['totals.test_totals.Totals.test_all']",
        "pass_to_pass": '["totals.test_totals.Totals.test_nothing"]',
        "before_repo_set_cmd": "\n".join(lines),
        "selected_test_files_to_run": "['totals.test_totals']",
        **more,
    }


RUN_SCRIPT = '#!/bin/bash\ncd /app && python3 tests/runtests.py $(echo "$1" | tr , " ")\n'
PARSER = r"""import json, re, sys
tests = []
for line in open(sys.argv[1]):
    match = re.match(r"\w+ \((.*)\) \.\.\. (ok|FAIL|ERROR)$", line.strip())
    if match:
        tests.append({"name": match[1], "status": "PASSED" if match[2] == "ok" else "FAILED"})
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""


def put_scripts(folder: Path, instance: str) -> None:
    """A clone of the code repository beside the records, with one instance's scripts."""
    scripts = folder / "code" / "run_scripts" / instance
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text(RUN_SCRIPT)
    (scripts / "parser.py").write_text(PARSER)
    image = folder / "code" / "dockerfiles" / "base_dockerfile" / instance
    image.mkdir(parents=True)
    (image / "Dockerfile").write_text("FROM scratch\nENV COLOUR=none \\\n    LEVEL=1\nRUN true\n")
