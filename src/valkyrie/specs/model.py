"""An eval spec as types: what its author wrote, names resolved, places remembered.

Relative paths are kept as written beside the folder they are relative to; nothing here touches the disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.trust import ProjectCode

Severity = Literal["error", "warning", "info"]

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_COMMAND_TIMEOUT_S = 60.0
_ADDRESS = re.compile(r"[a-z+]+://|[^/]+@[^/]+:")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where in a file something stands; lines and columns from 1."""

    file: Path
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong or doubtful in a file, with the code people filter by."""

    code: str
    """kebab-case, stable: `unknown-key`, `unknown-grader-type`, `environment-file-missing`, …"""
    severity: Severity
    message: str
    """What is wrong, and the way out."""
    place: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class SpecError(UsageError):
    """A spec, project or experiment file cannot be used; all that is wrong with it is told at once."""

    default_cause = "spec"

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True)
class GraderSpec:
    """One entry of `graders`."""

    type: str
    config: Json = field(default_factory=dict)
    name: str | None = None
    turn: int | None = None
    """0-based: only that turn of the conversation is looked at."""
    weight: float | None = None
    place: SourceLocation | None = None

    @property
    def label(self) -> str:
        return self.name or self.type


@dataclass(frozen=True, slots=True)
class Constraints:
    """Bounds an author set. The agent is held to some; all are reported, and none counts in the score."""

    max_turns: int | None = None
    max_tokens: int | None = None
    max_duration: float | None = None
    """Seconds."""
    max_agent_duration: float | None = None
    """Seconds."""
    max_tool_calls: int | None = None
    expect_tools: tuple[str, ...] = ()
    reject_tools: tuple[str, ...] = ()
    expect_skills: tuple[str, ...] = ()
    reject_skills: tuple[str, ...] = ()
    place: SourceLocation | None = None

    @property
    def time_limit(self) -> float | None:
        """Seconds after which the agent is stopped and what it did by then is graded."""
        return min((one for one in (self.max_duration, self.max_agent_duration) if one), default=None)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or folder put into the workspace."""

    src: str
    dest: str
    base: Path
    """What `src` is relative to."""
    place: SourceLocation | None = None

    @property
    def source(self) -> Path:
        """Where it is on this machine."""
        return self.base / self.src


@dataclass(frozen=True, slots=True)
class SkillRef:
    """A skill's folder, or the path of its SKILL.md."""

    path: str
    base: Path
    place: SourceLocation | None = None

    @property
    def folder(self) -> Path:
        """The folder that holds SKILL.md."""
        whole = self.base / self.path
        return whole.parent if whole.name == "SKILL.md" else whole


@dataclass(frozen=True, slots=True)
class WorkspaceRepository:
    """The repository a workspace starts from."""

    type: Literal["worktree", "clone"]
    source: str
    """A path (relative to `base`) or, for a clone, an address."""
    base: Path
    ref: str | None = None
    shallow: bool = False
    sparse: tuple[str, ...] = ()
    place: SourceLocation | None = None

    @property
    def folder(self) -> Path | None:
        """The folder it is on this machine; None for one that is fetched from elsewhere."""
        if self.source.startswith("file://"):
            return Path("/", unquote(self.source.removeprefix("file://")).lstrip("/"))
        if self.type == "clone" and _ADDRESS.match(self.source):
            return None
        try:
            return self.base / Path(self.source).expanduser()
        except RuntimeError:
            return self.base / self.source  # there is no such user


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What the agent finds."""

    skills: tuple[SkillRef, ...] | None = None
    """None: nothing was said, so `--skill-dir` counts; an empty list is no skills at all."""
    files: tuple[FileEntry, ...] = ()
    commands: tuple[str, ...] = ()
    command_timeout: float = DEFAULT_COMMAND_TIMEOUT_S
    git: WorkspaceRepository | None = None
    mcp_servers: Mapping[str, Json] = field(default_factory=dict)
    """By name; `type` is always there, `cwd` is absolute where it was given, `timeout` is in seconds."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the agent's process."""
    place: SourceLocation | None = None

    @property
    def empty(self) -> bool:
        """Nothing but skills was declared: the workspace starts from --work-dir."""
        return not (self.files or self.commands or self.git)


@dataclass(frozen=True, slots=True)
class Stimulus:
    """One task of a spec, with everything it inherits merged in."""

    name: str
    turns: tuple[str, ...]
    """What the agent is told, one item each time; `prompt` is one turn."""
    graders: tuple[GraderSpec, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Every value as a list of texts, the spec's own tags merged in."""
    rubric: tuple[str, ...] = ()
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    grading_files: tuple[FileEntry, ...] = ()
    """`grading_environment`: in the workspace only while it is graded."""
    constraints: Constraints = field(default_factory=Constraints)
    artifacts_include: tuple[str, ...] = ()
    artifacts_exclude: tuple[str, ...] = ()
    attachments: tuple[FileEntry, ...] = ()
    golden_patch: str | None = None
    """The patch itself, where it is written in the spec."""
    golden_patch_file: FileEntry | None = None
    """Where it is, when it is a file of its own; `dest` is empty."""
    golden_trajectory: Json | None = None
    """A known good trajectory (ATIF), where it is written in the spec."""
    golden_trajectory_file: FileEntry | None = None
    golden_command: str | None = None
    """A line for the shell that does what is asked."""
    supported_executors: tuple[str, ...] = ()
    """Only these agents are asked; empty: all."""
    runs: int | None = None
    """Its own number of trials, where it says one."""
    timeout: float | None = None
    place: SourceLocation | None = None

    @property
    def prompt(self) -> str:
        """All turns as one text, for people."""
        return "\n\n".join(self.turns)


@dataclass(frozen=True, slots=True)
class Defaults:
    """`config` or `defaults`."""

    runs: int = 1
    timeout: float | None = None
    """Seconds; None is the default of two minutes."""
    model: str | None = None
    judge_model: str | None = None
    executor: str | None = None
    """As the author wrote it; in our words, the agent."""
    executor_config: Json = field(default_factory=dict)
    reasoning_effort: str | None = None
    judge_reasoning_effort: str | None = None
    judge_provider: str | None = None
    executor_place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """How graders make a verdict."""

    threshold: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    """By grader name, then type."""
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class EvalSpec:
    """One eval.yaml."""

    name: str
    file: Path
    stimuli: tuple[Stimulus, ...]
    defaults: Defaults = field(default_factory=Defaults)
    scoring: Scoring = field(default_factory=Scoring)
    description: str = ""
    version: str | None = None
    type: str | None = None
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """What its relative paths are relative to."""
        return self.file.parent


@dataclass(frozen=True, slots=True)
class Suite:
    """A named choice of evals."""

    name: str
    description: str = ""
    filter: Mapping[str, tuple[str, ...]] | None = None
    """AND across keys, OR within a list; `!value` excludes."""
    evals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Project:
    """`.vally.yaml`: where things are, and what they are called."""

    file: Path | None
    """None: there is no such file, everything is as by default."""
    folder: Path
    skills: tuple[str, ...] = ("skills/",)
    evals: tuple[str, ...] = ("evals/",)
    results: str | None = None
    """Where results go; None: wherever the command puts them."""
    eval_filenames: tuple[str, ...] = ("eval.yaml", "eval.yml")
    suites: Mapping[str, Suite] = field(default_factory=dict)
    environments: Mapping[str, Json] = field(default_factory=dict)
    """As written; merged and resolved by the reader of the spec that names one."""
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`graders`, `executors`, `evals`, `reporters` → specifiers."""
    metadata: Json = field(default_factory=dict)
    """What reporters are told besides."""

    def code(self) -> ProjectCode | None:
        """Return what of the project can execute on this machine; None when it has no file."""
        named = dict.fromkeys(one for kind in self.plugins for one in self.plugins_of(kind))
        return ProjectCode(self.file, tuple(named)) if self.file else None

    def plugins_of(self, kind: str) -> tuple[str, ...]:
        """Those of one kind; a file of theirs by its whole path."""
        return tuple(
            str(self.folder.absolute() / one) if one.partition(":")[0].endswith(".py") else one
            for one in self.plugins.get(kind, ())
        )


# Durations as specs spell them.

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h)\s*", re.ASCII)
_PARTS = re.compile(r"\s*(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\s*", re.ASCII)
MOST_S = 365 * 24 * 3600.0


def parse_duration(text: str) -> float:
    """Return seconds of `5m`, `300s`, `30000ms`, `1.5h`, `2m40s`; the unit is not optional."""
    if (match := _FORM.fullmatch(text)) is not None:
        seconds = float(match[1]) * _SECONDS[match[2]]
    elif (match := _PARTS.fullmatch(text)) is not None and text.strip():
        seconds = sum(
            float(part) * unit for part, unit in zip(match.groups("0"), (3600, 60, 1, 0.001), strict=True)
        )
    else:
        raise UsageError(f"{text!r} is not a duration. {_hint(text)}")
    if seconds > MOST_S:
        raise UsageError(f"{text!r} is longer than a year.")
    return seconds


def _hint(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number >= 0:
        return f"Add the unit: `{text.strip()}s` for seconds (or ms, m, h)."
    return "Write a number and a unit, such as `90s`, `5m`, `2m40s`, `1.5h` or `500ms`."


def format_duration(seconds: float) -> str:
    """A short spelling that `parse_duration` reads back, to the millisecond."""
    for unit in ("h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1000:g}ms"
