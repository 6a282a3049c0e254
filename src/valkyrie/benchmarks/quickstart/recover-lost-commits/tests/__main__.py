"""Grades what was brought back in /app/repo. One third each; nothing counts if something else was damaged."""

from pathlib import Path

from checks import APP, FILES, Checks, read_file, run, same

REPO = APP / "repo"
GIT = next((path for path in ("/usr/bin/git", "/usr/local/bin/git") if Path(path).exists()), "/usr/bin/git")
MAIN = "dc1d6c32475f11d385cbd8c9458aeb2bf4f10a03"
EXPORT = "786dd0078f908441a92cf242d164f0d34b4f0509"
MAINTENANCE = "fc20d0a4e5bbd48634fde0c3bea6d0b75e518b4f"
BRANCHES = {"feature/export", "main", "maintenance"}
HARMLESS = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*"]


def git(*arguments):
    ran = run([GIT, "--no-pager", *HARMLESS, "-C", REPO, *arguments])
    same(ran.code, 0, f"git {' '.join(arguments)} ({ran.stderr.strip()[-200:]})")
    return ran.stdout.strip()


def nothing_else_changed():
    listed = git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
    tips = dict(line.split() for line in listed.splitlines())
    same(tips.get("maintenance"), MAINTENANCE, "maintenance")
    assert set(tips) <= BRANCHES, f"unexpected branches: {sorted(set(tips) - BRANCHES)}"


checks = Checks()
with checks.check("main is back"):
    nothing_else_changed()
    same(git("rev-parse", "--verify", "refs/heads/main"), MAIN, "main")
with checks.check("feature/export is back"):
    nothing_else_changed()
    same(git("rev-parse", "--verify", "refs/heads/feature/export"), EXPORT, "feature/export")
with checks.check("the stashed draft is back"):
    nothing_else_changed()
    same(read_file(APP / "pricing.md"), FILES["pricing.md"], "pricing.md")
checks.reward(partial=True)
