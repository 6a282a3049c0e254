"""An agent that is installed once as a layer, run headless on a task, and whose log is then read."""

from __future__ import annotations

import asyncio
import json
import posixpath
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from sandboxes.errors import SandboxError
from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox
from sandboxes.types import TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName
from valkyrie.agents.catalog import CatalogAgent
from valkyrie.agents.command import (
    LOG_LIMIT,
    AgentCommandResult,
    Clock,
    Headless,
    LogFile,
    LogSummary,
    append,
    make_home,
    run_in_reach,
    together,
    used_in,
)
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentExit,
    AgentOptions,
    AgentTrial,
    AgentUsage,
    LayerSpec,
    OutputArtifact,
    exit_of,
)
from valkyrie.domain import MAX_TURNS, TaskSpec, content_digest
from valkyrie.errors import AgentInstallError, UsageError
from valkyrie.prices import price
from valkyrie.text import did_you_mean
from valkyrie.trajectory import Trajectory

# $1 has the skills, $3 below $2 is where they go, $4 whose they are then. Prints the names of those it
# copied: what the agent would find there anyway stays as it is. This is root's work in a folder where an
# earlier step's agent may have left links, which would give it what they lead to.
_BRING = """
cd -- "$1" 2>/dev/null || exit 65
to=$2
IFS=/
for part in $3; do
  to=$to/$part
  [ ! -L "$to" ] || exit 66
done
unset IFS
mkdir -p -- "$to" || exit 1
for skill in */; do
  skill=${skill%/}
  [ -f "$skill/SKILL.md" ] && [ ! -e "$to/$skill" ] && [ ! -L "$to/$skill" ] || continue
  cp -R -- "$skill" "$to/$skill" && { [ -z "$4" ] || chown -R -- "$4" "$to/$skill"; } || exit 1
  printf '%s\\n' "$skill"
done
[ -z "$4" ] || chown -- "$4" "$to"
"""
_NO_FOLDER = 65
_LINKED = 66
_TIDY = 'cd -- "$1" && rmdir -p -- "$2" 2>/dev/null; :'


@asynccontextmanager
async def skills_shown(sandbox: Sandbox, task: TaskSpec, at: str, log: OutputSink) -> AsyncIterator[None]:
    """The skills of `task.skills_dir` below its working folder at `at`, gone again before it is graded."""
    names = await _bring(sandbox, task, at, log)
    try:
        yield
    finally:
        for name in names:
            await sandbox.remove(f"{task.cwd}/{at}/{name}")
        if names:
            command = Command(("/bin/sh", "-c", _TIDY, "sh", task.cwd, at), user=task.user)
            await sandbox.run(command, log)


async def _bring(sandbox: Sandbox, task: TaskSpec, at: str, log: OutputSink) -> list[str]:
    source = posixpath.join(task.cwd, task.skills_dir or "")
    printed: list[str] = []

    def listen(stream: StreamName, text: str) -> None:
        if stream == "stdout":
            printed.append(text)
        else:
            log(stream, text)

    words = ("/bin/sh", "-c", _BRING, "sh", source, task.cwd, at, task.user or "")
    code = await sandbox.run(Command(words), listen)
    names = "".join(printed).splitlines()
    if code == _NO_FOLDER:
        log("stderr", f"the task's skills_dir {source} is not there; the agent gets no skills\n")
    elif code == _LINKED:
        log("stderr", f"{task.cwd}/{at} is, or is below, a link; the agent gets no skills there\n")
    elif code != 0:
        log("stderr", f"not all skills of {source} could be copied (exit code {code})\n")
    return names


# An agent that is installed once as a layer, run headless on a task, and whose log is then read.

TRAJECTORY = "trajectory.json"
PLACEHOLDER_KEY = "no-key-needed"
"""For programs that do not start without a key, when the model is served at `--model-url`."""
_VERSION = re.compile(r"\d[0-9A-Za-z.+-]{0,60}")
_FIND = 'for found in {places}; do [ -x "$found" ] && break; done; [ -x "$found" ]'


class InstalledAgent(ABC):
    """What the catalogue's public agents have in common; a subclass says what is its own.

    Made with one AgentOptions. Subclasses set the class attributes and implement `packages`, `headless`
    and `read`.
    """

    name: ClassVar[str]
    entry: ClassVar[CatalogAgent]
    """What the catalogue says of it."""
    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities()
    """One that converses has `resumed`; one that takes MCP servers gives them in `headless`."""
    program: ClassVar[str]
    """Where the executable is below the layer; a shell pattern, as packages name platforms."""
    check: ClassVar[str] = "--version"
    """The word with which the program only says that it runs."""
    parameters: ClassVar[Mapping[str, str]] = {}
    """`-k` words besides `version`, and what each does."""
    vendors: ClassVar[Sequence[str]] = ()
    """Words before a `/` in a model's name that say only whose it is."""
    hosts: ClassVar[Sequence[str]] = ()
    """Reached besides the hosts a task allows."""
    record: ClassVar[str | None] = None
    """The file `bring` keeps of the session's own record, if it grows from turn to turn."""
    behaviour: ClassVar[int] = 1
    """Raised when what is run changes for the same version and parameters."""
    needs_solution = False
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._runs_in: set[str] = set()
        """Root file systems its program was seen to run in."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        for key in options.kwargs:
            if key not in ("version", *self.parameters):
                known = ("version", *self.parameters)
                hint = did_you_mean(key, known) or f" Known: {', '.join(known)}."
                raise UsageError(f"the agent {self.name} has no parameter {key!r}.{hint}")
        self.version = options.kwargs.get("version", self.entry.version or "")
        if not _VERSION.fullmatch(self.version):
            raise UsageError(
                f"{self.name}: {self.version[:60]!r} is no version; an exact version is expected, like "
                f"{self.entry.version}."
            )
        if self.entry.needs_model and not options.model:
            raise UsageError(f"the agent {self.name} needs a model; name one with --model.")

    @abstractmethod
    def packages(self) -> LayerSpec:
        """Return what is installed, for `self.version`."""

    @abstractmethod
    def headless(self, trial: AgentTrial) -> Headless:
        """The command for one task; its first word is `self.program_word`."""

    @abstractmethod
    def read(self, ran: AgentCommandResult) -> LogSummary:
        """Return what the log says. Called in a thread; may raise, which is a note and no usage."""

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        """The command that goes on with the conversation; `headless` began it, `session` is its id."""
        _ = headless, session
        raise UsageError(f"the agent {self.name} cannot hold a conversation of several turns.")

    async def bring(self, trial: AgentTrial, kept: Path) -> None:
        """Bring out what `read` needs besides stdout, with `headless.bring_out`."""
        _ = trial, kept

    program_word = "@program"
    """Stands for the executable in `Headless.argv`."""

    @property
    def model(self) -> str | None:
        """The model's name as its vendor writes it."""
        vendor, slash, rest = (self._options.model or "").partition("/")
        return rest if slash and vendor in self.vendors else self._options.model

    def parameter(self, key: str) -> str | None:
        """The value of a `-k`, if it was given."""
        return self._options.kwargs.get(key)

    def turn_limit(self, key: str, task: TaskSpec) -> str | None:
        """Return how often the model may be asked: a `-k`, else what the task's author allows."""
        own = task.metadata.get(MAX_TURNS)
        return self.parameter(key) or (str(own) if isinstance(own, int) and own > 0 else None)

    @property
    def layer(self) -> LayerSpec:
        """Installed once, seen by every trial."""
        return self.packages()

    @property
    def secrets(self) -> Mapping[str, str]:
        return self._options.secrets

    @property
    def digest(self) -> str:
        kwargs = {key: value for key, value in self._options.kwargs.items() if key != "version"}
        what = ["catalog", self.name, self.version, self._options.model, kwargs, self.behaviour]
        return content_digest(what)

    async def install(self, trial: AgentTrial) -> None:
        """Bring the layer in where it is not shown; see, once per root file system, that its program runs."""
        if trial.layer is not None:
            await trial.sandbox.upload_folder(trial.layer, self.layer.target)
        root = trial.task.source.model_dump_json() if trial.task.source else str(trial.task.image)
        async with self._turns[root]:
            if root not in self._runs_in:
                await self._check(trial)
                self._runs_in.add(root)

    async def _check(self, trial: AgentTrial) -> None:
        """AgentInstallError unless the program runs here."""
        script = f'{self._find()} || exit 66; exec "$found" {self.check} </dev/null'
        timeout = trial.task.timeouts.install
        said: list[str] = []
        command = Command(("/bin/sh", "-c", script), cwd="/", timeout=timeout, env={"HOME": "/tmp"})
        code = await trial.sandbox.run(command, lambda _stream, text: said.append(text[:1000]))
        if code == 66:
            raise AgentInstallError(
                f"{self.name} {self.version} brings no program for this system (looked for "
                f"{self.layer.target}/{self.program}); choose another with -k version=…"
            )
        if code != 0:
            tail = " ".join("".join(said[:20]).split())[:300]
            raise AgentInstallError(
                f"{self.name} {self.version} does not run in this root file system (exit code {code}): {tail}"
            )

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Run it on the task; its log, trajectory and what it used are kept."""
        if trial.kept is None:
            with tempfile.TemporaryDirectory(prefix="valkyrie-agent-") as folder:
                return await self._run(trial, Path(folder))
        return await self._run(trial, trial.kept)

    async def _run(self, trial: AgentTrial, kept: Path) -> AgentExit:
        masker = Masker(trial.secrets.values())
        with masker.sink(trial.log) as log:
            first = self.headless(trial)
            await make_home(trial.sandbox, trial.task, first.files, log)
            async with self._skills(trial, log):
                code, readings, note = await self._converse(trial, kept, first, log)
            ended = exit_of(code)
            # Servers repeat a wrong key in their complaint.
            reading = together(readings, masker.text, ended=ended.reason is None)
            note = await asyncio.to_thread(_keep, reading.trajectory, kept) or note
            usage = await asyncio.to_thread(self._priced, reading.usage, trial.model_url)
            log("stderr", f"{self.name} {self.version}: {note or said(usage, reading)}\n")
        return replace(ended, usage=usage, trouble=reading.trouble)

    def _skills(self, trial: AgentTrial, log: OutputSink) -> AbstractAsyncContextManager[None]:
        """The skills the task brings, while the agent works."""
        if not self.capabilities.takes_skills or trial.task.skills_dir is None:
            return nullcontext()
        return skills_shown(trial.sandbox, trial.task, self.capabilities.skills_at, log)

    async def _converse(
        self, trial: AgentTrial, kept: Path, first: Headless, log: OutputSink
    ) -> tuple[int, Sequence[LogSummary], str | None]:
        """One command for each turn, up to the first that fails; how the last ended, and what each says."""
        clock, readings, headless = Clock(trial.task.timeouts.agent), list[LogSummary](), first
        for number in range(len(trial.turns)):
            if number:
                headless = self.resumed(first, _session(readings))
                await trial.sandbox.upload_file(trial.task.problem_path, trial.turns[number].encode())
            code, reading, note = await self._turn(trial, kept, self._located(headless), log, clock, readings)
            readings.append(reading)
            if number < len(trial.turns) - 1:
                await trial.turn_ended(number)
            if code != 0 or reading.trouble:
                break
        return code, readings, note

    async def _turn(
        self,
        trial: AgentTrial,
        kept: Path,
        headless: Headless,
        log: OutputSink,
        clock: Clock,
        earlier: Sequence[LogSummary],
    ) -> tuple[int, LogSummary, str | None]:
        number = len(earlier)
        whole = kept / f"{self.name}.jsonl"
        path = kept / f"{self.name}.{number}.jsonl" if number else whole
        seen = _size(kept / self.record) if number and self.record else 0
        limit = clock.left()
        if limit == 0:
            return TIMEOUT_EXIT_CODE, LogSummary(), None
        file = LogFile(path, log, LOG_LIMIT - _size(whole)) if number else LogFile(path, log)
        began = time.time()
        with file as sink:
            rules = self._egress(trial.task, trial.model_url)
            code = await run_in_reach(trial.sandbox, headless.command(trial.task, limit), sink.write, rules)
        with suppress(SandboxError):
            # Without it less can be read; what the agent did stands all the same.
            await self.bring(trial, kept)
        told = trial.turns[number]
        ran = AgentCommandResult(
            path, code, sink.stderr, told, kept, seen, used_in(earlier), began, sink.arrived
        )
        reading, note = await asyncio.to_thread(self._read_safely, ran)
        if number:
            await asyncio.to_thread(append, whole, path)
        return code, reading, note

    def _egress(self, task: TaskSpec, model_url: str | None) -> list[str] | None:
        """Return what may be reached: a task that allows only some hosts allows the model's as well."""
        if task.network != "allowlist":
            return None
        own = [urlsplit(model_url).hostname or ""] if model_url else list(self.hosts)
        return [*task.metadata.get("allowed_hosts", []), *(host for host in own if host)]

    def _read_safely(self, ran: AgentCommandResult) -> tuple[LogSummary, str | None]:
        """An agent can write anything into its log; what cannot be read is no usage, never a failure."""
        try:
            return self.read(ran), None
        except Exception as error:  # noqa: BLE001 - hostile data; the trial goes on without it
            return LogSummary(), f"its log could not be read: {type(error).__name__}: {error}"[:300]

    def _priced(self, usage: AgentUsage | None, model_url: str | None) -> AgentUsage | None:
        """With the agent's own cost, or one from published prices where they are known.

        A model of one's own has a price that neither knows: agents reckon with their vendor's too.
        """
        if usage is not None and model_url is not None:
            return replace(usage, cost=None, cost_source=None)
        if usage is None or usage.cost is not None:
            return usage

        priced = price(
            usage.model or self.model or "",
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
        )
        return replace(usage, cost=priced[0], cost_source=priced[1]) if priced else usage

    def _find(self) -> str:
        # The pattern is a constant of the class: nothing of a task or a person is in it.
        return _FIND.format(places=f"{self.layer.target}/{self.program}")

    def _located(self, headless: Headless) -> Headless:
        """The executable is looked for where the command runs: packages name it after the platform."""
        gone = "echo 'the program of the agent is gone' >&2; exit 127"
        script = f'{self._find()} || {{ {gone}; }}; exec "$found" "$@"'
        argv = list(headless.argv)
        at = argv.index(self.program_word)
        argv[at : at + 1] = ["/bin/sh", "-c", script, "sh"]
        return replace(headless, argv=argv)


def _keep(trajectory: Trajectory | None, kept: Path) -> str | None:
    """Write it down; why that could not be done, if it could not."""
    if trajectory is None:
        return None
    try:
        whole = json.dumps(trajectory.to_json(), ensure_ascii=False, indent=1)
    except ValueError as error:
        return f"its trajectory could not be kept: {error}"[:300]
    (kept / TRAJECTORY).write_text(whole, "utf-8", "replace")
    return None


def _session(readings: Sequence[LogSummary]) -> str | None:
    """The id of the session so far, as the log says."""
    told = [one.trajectory.session_id for one in readings if one.trajectory]
    return next((one for one in told if one), None)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def said(usage: AgentUsage | None, reading: LogSummary) -> str:
    """One line of a log: what was used, and what went wrong."""
    parts = ["no usage in its log"]
    if usage:
        parts = [
            f"{usage.steps} steps",
            f"{usage.input_tokens:,} tokens in ({usage.cached_tokens:,} cached)",
            f"{usage.output_tokens:,} out",
        ]
        if usage.cost is not None:
            parts.append(f"${usage.cost:.4f} ({usage.cost_source})")
    if reading.trouble:
        parts.append(f"gave up ({reading.trouble.cause}): {reading.trouble.message}")
    return ", ".join(parts)


def environment(trial: AgentTrial, **own: str) -> dict[str, str]:
    """Return what every agent's command has: the task's variables, its keys, and `own` over them."""
    common = {"TERM": "dumb", "LANG": "C.UTF-8", "CI": "1", "NO_COLOR": "1"}
    return {**common, **trial.task.env, **trial.secrets, "PYTHONSAFEPATH": "1", **own}


def versioned(url: str) -> str:
    """A server's address with the `/v1` OpenAI's programs want in it."""
    bare = url.rstrip("/")
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def unversioned(url: str) -> str:
    """A server's address without the `/v1` Anthropic's programs add themselves."""
    return url.rstrip("/").removesuffix("/v1")


# Whose model a name means, for programs that speak to several vendors.

_FAMILIES: Mapping[str, str] = {
    "anthropic": r"claude",
    "openai": r"gpt|chatgpt|codex|o\d",
    "google": r"gemini|gemma",
}
ELSEWHERE = "custom"
"""Stands for whoever serves the model at `--model-url`, when its name does not say it."""


def vendor_and_model(agent: str, model: str, *, served: bool) -> tuple[str, str]:
    """`vendor/name` apart, or the vendor known by the family of the name.

    A model that is `served` at an address of its own may have any name.
    """
    vendor, slash, name = model.partition("/")
    if slash and vendor and name:
        return vendor, name
    for vendor, family in _FAMILIES.items():
        if re.match(rf"(?:{family})(?:[-.\d]|$)", model, re.IGNORECASE):
            return vendor, model
    if served and model and not slash:
        return ELSEWHERE, model
    raise UsageError(f"{agent} is told whose model it is: write it as vendor/model, not {model[:80]!r}.")
