"""Runs every suite and check there is, and says of each: passed, failed, or skipped and why.

    python scripts/test_suites.py               all
    python scripts/test_suites.py lint package  these
    python scripts/test_suites.py --list        their names

Suites run in three lanes beside each other: those that compute, and those that wait for registries and for
a container engine. The last three use the whole machine, one after the other. Output is kept under
.cache/suites/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "suites"
PYTHON = sys.executable
BIN = Path(PYTHON).parent
OTHER_PYTHONS = ("3.12", "3.13")
QUICKSTART_TASKS = 12
SCAFFOLD_TESTS = tuple(f"tests/integration/test_scaffolded_{made}.py" for made in ("service", "runner"))
BOMBS = "tests/hostile/test_hostile_agents.py"
FORGING_TESTS = ("tests/hostile/test_forging.py", BOMBS)
BROWSER_TESTS = ("tests/browser",)
DOCKER_TESTS = ("tests/contract/test_docker_provider.py", "tests/docker")
NEWEST_UNIT_TESTS = tuple(
    f"tests/unit/{name}" for name in ("trial", "schedule", "store", "plan", "specs", "grade")
)
"""What may come out differently on a newer Python: tasks and how they end, dataclasses, types, databases."""
UNPRIVILEGED_CRASH_ROUNDS = 2
"""Few: the crash suite by itself has as many as asked for."""
SAME_FOR_ANY_USER = (
    *("*/contract/test_agent_libraries.py", "*/contract/test_artifact_stores.py"),
    *("*/contract/test_daytona_provider.py", "*/contract/test_store_*.py", "*/hostile/test_api_*.py"),
    *("*/hostile/test_service_client.py", "*/hostile/test_tracker_*.py"),
)
"""Databases, buckets and HTTP: tests that make no sandbox on this machine."""
SLOW_AT_ONCE = "3"
"""They wait for services, sandboxes and databases most of the time."""
CRASHES_AT_ONCE = "2"
"""Each has its own data folder, looks for leftovers of that folder only, and waits more than it works."""


COMPLAINTS = 25
"""So many failed tests of a suite are named."""


class SuiteFailed(Exception):
    """A command of the suite failed, or what it made is not right."""


class SuiteSkipped(Exception):
    """The suite cannot run here; the message says why."""


class Log:
    """Where a suite's commands write, and how it runs them."""

    def __init__(self, name: str) -> None:
        self.path = LOGS / f"{name}.log"
        self.path.write_text("")

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """Run one command from the root of the tree; a non-zero exit fails the suite."""
        argv = [str(word) for word in command]
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        with self.path.open("a") as sink:
            sink.write(f"$ {' '.join(argv)}\n{done.stdout}\n")
        if done.returncode:
            raise SuiteFailed(f"{Path(argv[0]).name} exited with {done.returncode}")
        return done.stdout

    def complaints(self) -> list[str]:
        """What a reader of CI's output needs to know of a failure: tests that failed, else the last lines."""
        lines = self.path.read_text(errors="replace").splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        last = lines[-5:] if failed else lines[-COMPLAINTS:]  # pytest itself can fail after its last test
        return failed[:COMPLAINTS] + [line for line in last if line not in failed]

    def pytest(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        """Run tests; a suite in which all were skipped is itself skipped."""
        output = self.run(PYTHON, "-m", "pytest", "--durations=25", *arguments, env=env)
        check_not_all_skipped(output)


@dataclass(frozen=True, slots=True)
class Suite:
    """A name, what it does, and beside which others it runs."""

    name: str
    body: Callable[[Log], None]
    lane: Literal["computes", "registries", "engine", "alone"] = "computes"


@dataclass(frozen=True, slots=True)
class Report:
    """How one suite ended."""

    suite: Suite
    verdict: str
    detail: str
    seconds: float


def check_not_all_skipped(output: str) -> None:
    last = next((line for line in reversed(output.splitlines()) if re.search(r"\bin [\d.]+s", line)), "")
    if "skipped" in last and "passed" not in last:
        reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", output, re.MULTILINE)
        raise SuiteSkipped(reasons[0] if reasons else "every test was skipped")


def lint(log: Log) -> None:
    log.run(BIN / "ruff", "check", ".")
    log.run(BIN / "ruff", "format", "--check", ".")
    log.run(PYTHON, ROOT / "scripts" / "check_structure.py")


def typecheck(log: Log) -> None:
    log.run(BIN / "mypy")


def layers(log: Log) -> None:
    log.run(BIN / "lint-imports", "--no-cache")


def docs(log: Log) -> None:
    for generator in sorted((ROOT / "scripts").glob("generate_*.py")):
        log.run(PYTHON, generator, "--check")
    log.run(PYTHON, ROOT / "scripts" / "check_links.py")


def package(log: Log) -> None:
    """Build the wheel, install it the way pipx would, and use it where the source tree is not."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-package-") as folder:
        scratch = Path(folder)
        log.run(PYTHON, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch / "dist")
        (wheel,) = (scratch / "dist").glob("*.whl")
        check_wheel(wheel)
        venv = scratch / "venv"
        log.run(PYTHON, "-m", "venv", venv)
        pip = (venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile")
        log.run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "base.txt")
        log.run(*pip, "--no-deps", wheel)
        check_installed(log, venv / "bin", scratch)


def check_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tasks = [n for n in names if n.endswith("/task.toml") and "/quickstart/" in n]
    if len(tasks) != QUICKSTART_TASKS:
        raise SuiteFailed(f"{len(tasks)} quickstart tasks in the wheel, not {QUICKSTART_TASKS}")
    for wanted in ("valkyrie/py.typed", "sandboxes/py.typed"):
        if wanted not in names:
            raise SuiteFailed(f"{wanted} is not in the wheel")
    if not any(n.endswith("licenses/LICENSE") for n in names):
        raise SuiteFailed("the licence is not in the wheel")
    if stray := [n for n in names if n.startswith("tests/") or "__pycache__" in n]:
        raise SuiteFailed(f"stray files in the wheel: {stray[:3]}")


def check_installed(log: Log, bin_folder: Path, scratch: Path) -> None:
    env = {
        "PYTHONPATH": "",
        "VALKYRIE_HOME": str(scratch / "home"),
        "VALKYRIE_CONFIG_PATH": str(scratch / "config.yaml"),
    }
    for program in ("valkyrie", "valk"):
        if "0." not in log.run(bin_folder / program, "--version", env=env):
            raise SuiteFailed(f"{program} --version printed no version")
        for shell in ("bash", "zsh", "fish"):
            variable = f"_{program.upper()}_COMPLETE"
            script = log.run(bin_folder / program, env={**env, variable: f"{shell}_source"})
            if variable not in script:
                raise SuiteFailed(f"no {shell} completion for {program}")
    log.run(bin_folder / "valk", "benchmark", "tasks", "quickstart", env=env)


def scaffold(log: Log) -> None:
    """Generate a benchmark service and a runner; take each through its own install, checks and use."""
    log.pytest(*SCAFFOLD_TESTS, "-m", "slow", "-n", "2", "--dist", "loadfile", "--timeout", "1800")


def unprivileged(log: Log) -> None:
    """What an ordinary user without subordinate ids gets, as `nobody`: demo, contract, attacks, crashes."""
    if os.geteuid() != 0:
        raise SuiteSkipped("not root: `make test` ran these tests as an ordinary user already")
    for program in ("unshare", "setpriv"):
        if not shutil.which(program):
            raise SuiteSkipped(f"{program} is not installed")
    as_user = ROOT / "scripts" / "as-ordinary-user"
    scores = log.run(as_user, BIN / "valkyrie", "demo")
    for agent, passed in (("oracle", QUICKSTART_TASKS), ("nop", 0)):
        if not re.search(rf"^{agent} .* {passed}/{QUICKSTART_TASKS} ", scores, re.MULTILINE):
            raise SuiteFailed(f"{agent} did not pass {passed} of {QUICKSTART_TASKS} tasks")
    pytest = (PYTHON, "-m", "pytest", "--durations=25", "-p", "no:cacheprovider")
    # Crashes alone: they check that the machine is left as it was found. Those of one executor and its
    # sandboxes: what jobs, evals, runners and trackers do then does not depend on who runs the sandboxes.
    crashes = ("-p", "no:xdist", "-m", "not root", "tests/crash/test_crash.py")
    beside = ("-n", "2", "--dist", "loadfile")
    attacks = (*beside, "-m", "not root and not slow", "tests/contract", "tests/hostile")
    apart = [f"--ignore-glob={pattern}" for pattern in SAME_FOR_ANY_USER]
    for chosen in ((*attacks, *apart), ("-p", "no:xdist", BOMBS), crashes):
        output = log.run(as_user, "env", f"CRASH_ROUNDS={UNPRIVILEGED_CRASH_ROUNDS}", *pytest, *chosen)
        check_not_all_skipped(output)


def other_python(version: str) -> Callable[[Log], None]:
    def body(log: Log) -> None:
        """The demo on another interpreter; on the newest every module imported and some unit tests, too."""
        python = find_python(version)
        if python is None:
            raise SuiteSkipped(f"no Python {version} on PATH or in pyenv")
        newest = version == OTHER_PYTHONS[-1]
        venv = ROOT / ".cache" / "venvs" / version
        env = {"VENV": str(venv), "PYTHON": str(python), "COMPILE": ""}
        log.run(ROOT / "scripts" / "make-venv", "dev" if newest else "base", env=env)
        if newest:
            pytest = (venv / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist")
            log.run(*pytest, "tests/unit", "--collect-only", "-q")
            log.run(*pytest, *NEWEST_UNIT_TESTS, "-m", "not slow")
        with tempfile.TemporaryDirectory(prefix="valkyrie-demo-") as home:
            env = {"VALKYRIE_HOME": home, "VALKYRIE_CONFIG_PATH": f"{home}/config.yaml"}
            log.run(venv / "bin" / "valkyrie", "demo", env=env)

    return body


def find_python(version: str) -> Path | None:
    places: list[Path] = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if found := shutil.which(f"python{version}"):
        places.append(Path(found))
    for python in reversed(places):
        answer = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True
        )
        if answer.stdout.decode().strip() == version:
            return python
    return None


def crash(log: Log) -> None:
    rounds = os.environ.get("CRASH_ROUNDS", "50")
    beside = ("-n", CRASHES_AT_ONCE, "--dist", "worksteal")
    log.pytest("tests/crash", *beside, "--timeout", "0", env={"CRASH_ROUNDS": rounds})


def agents(log: Log) -> None:
    """Real public agents, fetched from their registries, on a scripted model."""
    log.pytest("tests/agents", "-m", "slow", "-p", "no:xdist", "--timeout", "1800")


def docker(log: Log) -> None:
    """The provider contract, attacks and runs in containers, on an engine that is started for it."""
    log.pytest(*DOCKER_TESTS, "-p", "no:xdist", "--timeout", "180")


def browser(log: Log) -> None:
    """The dashboard's pages in a real browser."""
    log.pytest(*BROWSER_TESTS, "-m", "slow", "-p", "no:xdist", "--timeout", "300")


def forging(log: Log) -> None:
    """Agents that try to forge a score, or to gain by breaking things. Alone: some of them are bombs."""
    log.pytest(*FORGING_TESTS, "-m", "slow", "-p", "no:xdist", "--timeout", "1800")


def slow(log: Log) -> None:
    """Tests marked slow; the agents, browser, crash, docker, forging and scaffold suites stand alone."""
    listed = ("tests/agents", "tests/crash", *BROWSER_TESTS, *SCAFFOLD_TESTS, *DOCKER_TESTS, *FORGING_TESTS)
    apart = [f"--ignore={path}" for path in listed]
    beside = ("-n", SLOW_AT_ONCE, "--dist", "loadfile", "--no-loadscope-reorder")
    log.pytest("tests", "-m", "slow", *apart, *beside, "--timeout", "1800")


def all_suites() -> list[Suite]:
    """Every suite of this tree, quick ones first."""
    return [
        Suite("lint", lint),
        Suite("typecheck", typecheck),
        Suite("layers", layers),
        Suite("docs", docs),
        Suite("package", package),
        *(Suite(f"python-{version}", other_python(version)) for version in OTHER_PYTHONS),
        Suite("agents", agents, "registries"),
        Suite("docker", docker, "engine"),
        Suite("browser", browser, "engine"),
        Suite("unprivileged", unprivileged),
        Suite("scaffold", scaffold),
        Suite("slow", slow, "alone"),
        Suite("forging", forging, "alone"),
        Suite("crash", crash, "alone"),
    ]


def run_one(suite: Suite) -> Report:
    start = time.monotonic()
    log = Log(suite.name)
    try:
        suite.body(log)
        verdict, detail = "passed", ""
    except SuiteSkipped as skipped:
        verdict, detail = "skipped", str(skipped)
    except SuiteFailed as failed:
        verdict, detail = "failed", f"{failed}; see {log.path.relative_to(ROOT)}"
    report = Report(suite, verdict, detail, time.monotonic() - start)
    print(describe(report), flush=True)
    if verdict == "failed":
        print("".join(f"    {line}\n" for line in log.complaints()), end="", flush=True)
    return report


def describe(report: Report) -> str:
    detail = f" ({report.detail})" if report.detail else ""
    return f"{report.suite.name:<18} {report.verdict}{detail} {report.seconds:.1f} s"


def run_all(suites: Iterable[Suite]) -> list[Report]:
    lanes: dict[str, list[Suite]] = {"computes": [], "registries": [], "engine": [], "alone": []}
    for suite in suites:
        lanes[suite.lane].append(suite)
    alone = lanes.pop("alone")
    with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
        beside = list(pool.map(run_lane, lanes.values()))
    return [*chain.from_iterable(beside), *run_lane(alone)]


def run_lane(suites: Iterable[Suite]) -> list[Report]:
    return [run_one(suite) for suite in suites]


def main(argv: Sequence[str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    suites = all_suites()
    if "--list" in argv:
        print("\n".join(suite.name for suite in suites))
        return 0
    if unknown := set(argv) - {suite.name for suite in suites}:
        print(f"no such suite: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    reports = run_all(suite for suite in suites if not argv or suite.name in argv)
    counts = Counter(report.verdict for report in reports)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("passed", "failed", "skipped")))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
