"""`doctor`: what this machine can do, one check at a time; each that fails names the way out."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmark_runner.terminal import pad, safe, wrapped
from benchmark_service.http_client import is_loopback
from sandboxes import cgroups
from sandboxes.docker import DockerProvider
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.local import provider as probe
from sandboxes.protocol import MOST_OPEN_FILES
from sandboxes.registry import open_provider
from sandboxes.types import SandboxCreateRequest
from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_watch import DETACHED, watch
from valkyrie.compare.tables import interval_notes
from valkyrie.config.values import config_path, data_folder, database_url, effective, load
from valkyrie.errors import AccessError, ValkyrieError
from valkyrie.report.formats import plural, short_id, size
from valkyrie.report.tables import score_table
from valkyrie.schedule.scheduler import trials_by_files
from valkyrie.store import upkeep
from valkyrie.store.layout import DataFolder
from valkyrie.views import RunFilter, RunRequest, to_json

if TYPE_CHECKING:
    from sandboxes.types import Capabilities
    from valkyrie.views import RunView


Mark = Literal["ok", "warn", "fail"]
LOW_DISK_BYTES = 2 * 1024**3
FEW_TRIALS = 100
_EXTRAS = {
    "aws": "boto3",
    "daytona": "daytona",
    "docker": "aiodocker",
    "hosted": "descope",
    "postgres": "psycopg",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    mark: Mark
    found: str
    way_out: str = ""


@dataclass(frozen=True, slots=True)
class LocalSandboxProof:
    """Whether `local` works here, proven by making one, and what it can do."""

    works: bool
    problem: str = ""
    capabilities: Capabilities | None = None


@lru_cache(maxsize=1)
def local_sandbox() -> LocalSandboxProof:
    """Make a sandbox in a scratch folder, run `true` in it, end it."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-doctor-") as scratch:
        try:
            found = asyncio.run(_prove_local(Path(scratch)))
        except (SandboxError, OSError) as error:
            return LocalSandboxProof(False, str(error))
    _keep_for_plans(found)
    return LocalSandboxProof(True, capabilities=found)


def _keep_for_plans(found: Capabilities) -> None:
    """Write down what was found, so that `--dry-run` can say it without trying it again."""
    folder = data_folder() / "sandboxes" / "local"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        cgroups.write_capabilities(folder, found)


async def _prove_local(scratch: Path) -> Capabilities:
    async with open_provider("local", scratch) as provider:
        sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
        try:
            result = await sandbox.exec("true", timeout=20)
        finally:
            await provider.delete_sandbox(sandbox.id)
        if result.exit_code != 0:
            raise SandboxUnsupportedError(
                f"`true` ended {result.exit_code} in a sandbox: {result.output.strip()}"
            )
        return provider.capabilities()


def all_checks() -> Iterator[Check]:
    """Every check, in the order a newcomer cares about."""
    yield _python()
    yield _bubblewrap()
    yield _user_namespaces()
    yield from _local()
    yield _docker()
    yield _disk()
    yield _open_files()
    yield _data_folder()
    config = _config()
    if config.mark != "fail":
        yield from tracker_checks() or _store()
    yield config
    yield _extras()


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _bubblewrap() -> Check:
    if sys.platform != "linux":
        return Check(
            "bubblewrap", "fail", f"needs Linux, this is {platform.system()}", "Use --provider process."
        )
    program = shutil.which("bwrap")
    if program is None:
        return Check(
            "bubblewrap", "fail", "not installed", "sudo apt install bubblewrap (or scripts/setup-system)"
        )
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return Check("bubblewrap", "ok", f"{said.stdout.strip() or 'version unknown'} ({program})")


def _user_namespaces() -> Check:
    if os.geteuid() == 0:
        return Check("user namespaces", "ok", "running as root")
    found = probe.userns_restrictions()
    if not found:
        return Check("user namespaces", "ok", f"open to user {os.geteuid()}")
    switches = ", ".join(f"{name}={value}" for name, value, _ in found)
    if local_sandbox().works:
        return Check("user namespaces", "ok", f"open to bubblewrap (and restricted by {switches})")
    return Check("user namespaces", "warn", f"restricted by {switches}", "; ".join(way for *_, way in found))


def _local() -> Iterator[Check]:
    """The provider's own word on isolation, limits and network."""
    local = local_sandbox()
    if not local.works or local.capabilities is None:
        yield Check(
            "local sandbox", "fail", local.problem, "Until then: --provider process (nothing is isolated)."
        )
        return
    can = local.capabilities
    yield Check("local sandbox", "ok", can.isolation)
    for limit, mechanism in can.enforcement.items():
        enforced = not mechanism.startswith(("not ", "none"))
        yield Check(
            f"limit: {limit}",
            "ok" if enforced else "warn",
            mechanism,
            "" if enforced else _advice(can, limit),
        )
    public = "public" in can.networks
    way_out = "" if public else _advice(can, "network") or "sudo apt install passt (or slirp4netns)"
    yield Check(
        "network: public", "ok" if public else "warn", "available" if public else "not available", way_out
    )
    for what, how in can.missing:
        yield Check("missing", "warn", what, how)


def _docker() -> Check:
    """Whether a container engine answers; `local` works without."""
    can = DockerProvider(data_folder() / "sandboxes" / "docker").capabilities()
    if can.problem:
        return Check("docker", "ok", f"optional, and not there: {can.problem}")
    return Check("docker", "ok", f"{can.isolation}; disk: {can.enforcement['disk']}")


def _advice(can: Capabilities, word: str) -> str:
    return next((how for what, how in can.missing if word in what), "")


def _disk() -> Check:
    free = shutil.disk_usage(_existing(data_folder())).free
    if free < LOW_DISK_BYTES:
        return Check("disk space", "warn", f"{size(free)} free", "valk disk shows what can go.")
    return Check("disk space", "ok", f"{size(free)} free")


def _open_files() -> Check:
    """Say how many trials at once the limit on open files allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    trials = trials_by_files(limit)
    found = f"{limit:,}: enough for {trials:,} trials at once"
    if trials < FEW_TRIALS:
        return Check("open files", "warn", found, "Raise the hard limit: ulimit -Hn, or limits.conf.")
    return Check("open files", "ok", found)


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data_folder() -> Check:
    folder = data_folder()
    above = _existing(folder)
    if above.is_dir() and os.access(above, os.W_OK):
        return Check("data folder", "ok", str(folder))
    why = "cannot be written" if above.is_dir() else "cannot be made" if above != folder else "is no folder"
    return Check("data folder", "fail", f"{folder} {why}", "Set VALKYRIE_HOME to a folder of yours.")


def tracker_checks() -> list[Check]:
    """The tracker that is configured: whether it answers, and whether it knows us; nothing when none is."""
    try:
        url = str(effective("tracker_url").value or "")
        if not url:
            return []
        checks = asyncio.run(_ask_tracker())
    except ValkyrieError as error:
        return [Check("tracker", "fail", str(error))]
    if url.startswith("http:") and not is_loopback(url):
        found = f"{url} is not encrypted: the key and all secrets can be read on their way"
        checks.append(Check("tracker", "warn", found, "Put TLS before it and use https."))
    return checks


async def _ask_tracker() -> list[Check]:
    from valkyrie.client import ValkyrieClient

    async with ValkyrieClient.from_config() as client:
        said = await client.health()
        version = said.get("version", "unknown")
        checks = [Check("tracker", "ok", f"{client.url}, version {version}, database {said.get('database')}")]
        try:
            me = await client.me()
        except AccessError as error:
            way_out = "valk config set api_key KEY, or export VALKYRIE_API_KEY"
            return [*checks, Check("API key", "fail", str(error), way_out)]
    return [
        *checks,
        Check("API key", "ok", f"{me.person or 'somebody'} of organisation {me.org} ({me.mode})"),
    ]


def _store() -> Iterator[Check]:
    """The database, read; and who works on it."""
    try:
        found = upkeep.standing(database_url() or DataFolder(data_folder()).database)
        if found.revision is None:
            yield Check("database", "ok", f"{found.place} (none yet)")
            return
        if not found.current and not found.newer:
            behind = f"{found.place} has schema {found.revision}, this program needs {found.needed}"
            yield Check("database", "warn", behind, "valkyrie db upgrade")
            return
        with tracker() as opened:
            total, status = opened.list(RunFilter(limit=1)).total, opened.executor_status()
    except ValkyrieError as error:
        yield Check("database", "fail", str(error))
        return
    yield Check("database", "ok", f"{found.place}, {plural(total, 'run')}")
    told = ("pid", "version", "active", "kept_sandboxes")
    working = ", ".join(f"{name} {(status or {})[name]}" for name in told if name in (status or {}))
    yield Check("executor", "ok", working or "none at work; `run start` and `run resume` start one")


def _config() -> Check:
    path = config_path()
    if not path.exists():
        return Check("config file", "ok", f"{path} (none yet)")
    try:
        load(path)
    except ValkyrieError as error:
        return Check("config file", "fail", str(error), f"Edit {path}.")
    if path.stat().st_mode & 0o077:
        return Check("config file", "warn", f"{path} can be read by others", f"chmod 600 {path}")
    return Check("config file", "ok", str(path))


def _extras() -> Check:
    installed = [extra for extra, module in _EXTRAS.items() if find_spec(module) is not None]
    rest = [extra for extra in _EXTRAS if extra not in installed]
    found = f"installed: {', '.join(installed) or 'none'}; optional: {', '.join(rest) or 'none left'}"
    return Check("extras", "ok", found)


# `doctor`.


_NAME_CELLS = 16
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@verb("doctor", examples="valk doctor")
def doctor(output: Output) -> int:
    """Say what this machine can do, and how to get the rest.

    ✓ is fine, ! works with less, ✗ does not work; each with the way out. Whether the `local` sandbox works
    is proven by making one. Exit 1 when something marked ✗ was found.
    """

    checks = list(all_checks())
    failed = [check for check in checks if check.mark == "fail"]
    output.emit("doctor", healthy=not failed, checks=[asdict(check) for check in checks])
    if output.json:
        return 1 if failed else 0
    for check in checks:
        output.lines(_check_lines(check, output))
    ways_out = [(check.name, safe(check.way_out)) for check in checks if check.way_out]
    if ways_out:
        output.panel("To get the rest", ways_out)
    output.line(
        "Runs with --provider local work here."
        if not failed
        else f"{plural(len(failed), 'thing')} must be put right."
    )
    return 1 if failed else 0


def _check_lines(check: Check, output: Output) -> Iterator[str]:
    mark, style = _MARKS[check.mark]
    found = wrapped(safe(check.found), output.width and output.width - _NAME_CELLS - 4)
    yield f"{output.ink.paint(mark, style)} {pad(check.name, _NAME_CELLS)}  {found[0]}"
    yield from (" " * (_NAME_CELLS + 4) + line for line in found[1:])


# `demo`: the whole platform in one command.

BENCHMARK = "quickstart"
AGENTS = ("oracle", "nop")


@verb("demo", examples="valk demo\nvalk run list --label demo")
def demo(output: Output) -> int:
    """Run oracle and nop on quickstart, end with a score table.

    The oracle runs each task's own solution and must pass all of them; nop does nothing and must pass none.
    Exit 1 when either is otherwise: then a task, its grader or this machine is broken. Where the `local`
    sandbox cannot work, nothing is isolated and the demo says so.
    """
    provider = _provider(output)
    with tracker() as opened:
        refs = []
        for agent in AGENTS:
            request = RunRequest(agent=agent, benchmark=BENCHMARK, provider=provider, label="demo")
            started = opened.start(request)
            output.notices(started.notices)
            refs.append(started.run.id)
        try:
            runs = watch(opened, refs, output)
        except KeyboardInterrupt:
            output.line("Detached; both runs go on. See them: valk run list --label demo")
            return DETACHED
    wrong = _wrong(runs)
    output.emit("demo", passed=not wrong, reasons=wrong, runs=[to_json(run) for run in runs])
    if not output.json:
        output.table(score_table(runs, output.ink))
        found = [(run.agent, run.score.interval, run.score.interval_method) for run in runs]
        output.lines(output.ink.paint(note, "dim") for note in interval_notes(found))
        output.panel(
            "Next", [("Look closer", f"valk run tasks {short_id(runs[0].id)}"), ("All runs", "valk run list")]
        )
    for reason in wrong:
        output.note(f"Not as it should be: {reason}.")
    return 1 if wrong else 0


def _provider(output: Output) -> str:

    local = local_sandbox()
    if local.works:
        return "local"
    output.note(f"NOTHING IS ISOLATED in this demo: the local sandbox cannot work here ({local.problem}).")
    output.note("It uses plain processes; `valk doctor` says how to get the sandbox.")
    return "process"


def _wrong(runs: list[RunView]) -> list[str]:
    wrong = []
    for run, should_pass in zip(runs, (True, False), strict=True):
        wanted = run.score.planned if should_pass else 0
        if run.score.passed != wanted or run.score.graded != run.score.planned:
            count = f"{run.score.passed} of {run.score.planned} passed, {run.score.graded} graded"
            wrong.append(f"{run.agent} should pass {wanted}, but {count} (valk run tasks {short_id(run.id)})")
    return wrong
