"""The eight classes of cheating, and what a task is open to as far as its files tell. Nothing is run."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from valkyrie.benchmarks.task_dir.execution import STEPS
from valkyrie.benchmarks.task_dir.task import TaskDirectory
from valkyrie.domain import Json, VerifyMode

CHEAT = Path(__file__).parent / "cheat"
"""The bundle of the cheating agent; its parameter `way` chooses what it tries."""


class Weakness(StrEnum):
    """A class of ways to get a score that was not earned."""

    ISOLATION = "isolation"
    ANSWERS = "answers"
    EXECUTION = "execution"
    JUDGE = "judge"
    MATCHING = "matching"
    VACUOUS = "vacuous"
    TRUST = "trust"
    PERMISSIONS = "permissions"

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return _LABELS[self]


_LABELS = {
    Weakness.ISOLATION: "agent and evaluator are not isolated",
    Weakness.ANSWERS: "answers are shipped in the environment",
    Weakness.EXECUTION: "the evaluator runs code the agent controls",
    Weakness.JUDGE: "the judge is open to injection",
    Weakness.MATCHING: "weak matching",
    Weakness.VACUOUS: "checks that do not check",
    Weakness.TRUST: "trust in output the agent made",
    Weakness.PERMISSIONS: "excessive permissions",
}


@dataclass(frozen=True, slots=True)
class WeaknessFinding:
    """One way in which a task is open."""

    weakness: Weakness
    seen: str
    """What was seen, and where."""
    fix: str
    """What its author must change."""


@dataclass(frozen=True, slots=True)
class CheatMethod:
    """One of the things the cheating agent tries."""

    name: str
    weakness: Weakness
    """What a task is open to in which it scores."""
    seen: str
    fix: str
    implied_by: tuple[str, ...] = ()
    """Ways that put less into their work: where one of them scores already, this one shows nothing more."""


CHEAT_METHODS = (
    CheatMethod(
        "junk",
        Weakness.VACUOUS,
        "files of the right names with a line of junk in them score",
        "Check what the files hold, not that they are there.",
    ),
    CheatMethod(
        "stuff",
        Weakness.MATCHING,
        "files that hold the instruction, the inputs and all numbers up to 2000 score",
        "Compare the whole answer with what is expected; do not search in it.",
        implied_by=("junk",),
    ),
    CheatMethod(
        "boast",
        Weakness.TRUST,
        "programs that only end with exit code 0, and reports that say all is well, score",
        "Run the work yourself and compare what it gives; do not take its exit code, log or report for it.",
        implied_by=("junk",),
    ),
    CheatMethod(
        "inject",
        Weakness.JUDGE,
        "text that tells a judge what to answer scores",
        "Give the judge the work as marked data, tell it to follow nothing in it, and check its verdict.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "seek",
        Weakness.ANSWERS,
        "answers found in the sandbox, or in the history of a repository there, score",
        "Remove solutions and expected answers from the environment, from its image's layers and from git "
        "history.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "plant",
        Weakness.EXECUTION,
        "code planted where test tools look for it (conftest.py, Makefile, modules, hooks, named programs) "
        "forges the score",
        "Run no tool in the working folder that loads files from there, and run the agent's programs as "
        "another user who cannot write the reward.",
        implied_by=("junk", "boast"),
    ),
    CheatMethod(
        "level",
        Weakness.ISOLATION,
        "overwriting every file the agent can write, with the same line, scores",
        "Take what the tests compare with from tests/, never from files of the agent's sandbox.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "tamper",
        Weakness.ISOLATION,
        "replacing the shell, interpreters and tools, or a process left behind, forges the score",
        "Have the task graded in a fresh sandbox: carry what its work is with verifier.carry instead of "
        'environment_mode = "shared".',
    ),
)
"""All of them, those that put least into their work first."""


# What `benchmark check` found: of each task, and of the benchmark.

OWN_CHEAT = "cheat/solve.sh"
"""What the task's own cheat is called beside the ways of the cheating agent."""


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """What was found of one task."""

    task_id: str
    digest: str = ""
    oracle: Sequence[float | None] = ()
    """The score of each run of its own solution; None is a run without a verdict."""
    nop: float | None = None
    mode: VerifyMode | None = None
    """Where its tests must run for its own solution to pass; None where that was not found."""
    keep_processes: bool = False
    declared: bool = False
    """The task itself says where its tests run."""
    cheats: Mapping[str, float | None] = field(default_factory=dict)
    """The score of each way to cheat that was tried."""
    findings: Sequence[WeaknessFinding] = ()
    blocked: Sequence[str] = ()
    """What the cheating agents tried and the platform stopped by itself."""
    problems: Sequence[str] = ()
    """Why it cannot be relied on: it is broken, or its own solution does not pass each time."""
    notes: Sequence[str] = ()

    @property
    def open_to(self) -> list[Weakness]:
        """The classes of cheating it is open to, in their order."""
        found = {finding.weakness for finding in self.findings}
        return [weakness for weakness in Weakness if weakness in found]

    @property
    def clean(self) -> bool:
        return not self.findings and not self.problems

    @property
    def mode_label(self) -> str:
        """Where its tests run, in a word or two."""
        if self.mode is None:
            return "not found"
        label = f"{self.mode} + processes" if self.keep_processes else str(self.mode)
        return f"{label} (declared)" if self.declared else label

    def to_json(self) -> Json:
        """Everything, for machines."""
        return {
            "task_id": self.task_id,
            "digest": self.digest,
            "clean": self.clean,
            "oracle": list(self.oracle),
            "nop": self.nop,
            "mode": None if self.mode is None else str(self.mode),
            "keep_processes": self.keep_processes,
            "declared": self.declared,
            "cheats": dict(self.cheats),
            "open_to": [str(weakness) for weakness in self.open_to],
            "findings": [
                {"class": str(one.weakness), "seen": one.seen, "fix": one.fix} for one in self.findings
            ],
            "blocked": list(self.blocked),
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class BenchmarkAudit:
    """What was found of all tasks that were looked at."""

    benchmark: str
    provider: str
    tasks: Sequence[TaskAudit]
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.interrupted and all(task.clean for task in self.tasks)

    @property
    def n_clean(self) -> int:
        return sum(1 for task in self.tasks if task.clean)

    def to_json(self) -> Json:
        """Everything, for machines."""
        open_to = {weakness for task in self.tasks for weakness in task.open_to}
        return {
            "benchmark": self.benchmark,
            "provider": self.provider,
            "clean": self.clean,
            "n_tasks": len(self.tasks),
            "n_clean": self.n_clean,
            "open_to": [str(weakness) for weakness in Weakness if weakness in open_to],
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "tasks": [task.to_json() for task in self.tasks],
        }


# What a task is open to, as far as its files tell. Nothing is run.
#
# Heuristics: they name what they saw, so that an author can judge. They are written to be quiet on tasks
# whose tests are careful; the cheating agents find what they miss.

MAX_FILE = 1 << 20
MAX_FILES = 5_000
MIN_ANSWER = 24
"""Shorter contents may be alike by chance."""
_SCRIPTS = (".sh", ".bash", ".py", ".js", ".ts", ".rb", ".pl", "")

_UNLESS_TESTS = r"(?![^\n|;&]*(?:/tests|\$TEST_DIR|\$\{TEST_DIR|\$0|BASH_SOURCE|--noconftest|--rootdir))"
_RUNS_IN_WORKDIR = re.compile(
    r"(?m)(?:^|[;&|(!]\s*|\b(?:then|do|if|exec|timeout\s+\S+)\s+)\s*(?:[A-Z_]+=\S+\s+)*"
    r"(?P<tool>make|gmake|npm\s+(?:run\s+)?test|npm\s+t|yarn\s+(?:run\s+)?test|pnpm\s+(?:run\s+)?test|npx\s+jest|"
    r"tox|nox|rake|(?:python3?\s+-m\s+)?pytest|python3?\s+-m\s+unittest|cargo\s+test|go\s+test|mvn\s+test|"
    r"gradle\s+test|\./gradlew\s+test)\b" + _UNLESS_TESTS
)
_MODULE_FROM_CWD = re.compile(
    r"(?m)^[^#\n]*\bpython3?\s+(?!-[A-Za-z]*[IP])(?:-[a-zA-Z]+\s+)*-m\s+(?:pytest|unittest)\b"
)
_REWARD = re.compile(r"""(?:echo|printf)\s+(?:-n\s+)?['"]?1(?:\.0+)?(?:\\n)?['"]?\s*>\s*\S*reward\S*""")
_JSON_REWARD = re.compile(
    r"""(?:echo|printf)\s+['"]?\{\s*\\?"reward\\?"\s*:\s*1(?:\.0+)?\s*\}(?:\\n)?['"]?\s*>\s*\S*reward\S*"""
)
_OPENS = re.compile(r"\b(?:if|case|for|while|until)\b|\{\s*$|\(\s*$")
_CLOSES = re.compile(r"\b(?:fi|esac|done)\b|^\s*[})]")
_SWALLOWED = re.compile(r"\|\|\s*(?:true|:)\s*$")
_ASKS_EXIT_CODE = re.compile(r"\$\?")
_BOASTS = re.compile(
    r"""grep\s+(?:-\S+\s+)*['"]?[^'"\n]*\b(?:PASS(?:ED)?|OK|success(?:ful)?|SUCCESS|passed)\b[^'"\n]*['"]?\s+"""
    r"""(?!/tests|/logs/verifier|["']?\$(?:VERIFIER_DIR|LOG|TMP|tmp|out|output|log)\b)["']?[\w./$-]+\.(?:log|txt|out|xml|json)"""
)
_ASKS_MODEL = re.compile(
    r"chat/completions|/v1/messages|\b(?:import|from)\s+(?:openai|anthropic|litellm|google\.generativeai)\b|"
    r"\b(?:openai|anthropic)\.|messages\.create\(|completions\.create\(|\bclaude\s+-p\b|\bllm\s+-m\b"
)
_RAW_IN_PROMPT = re.compile(
    r"""(?:prompt|content|message)s?["']?\s*[=:+]+\s*.*(?:\{[^}\n]*(?:answer|output|text|work|response|submission|read)[^}\n]*\}|"""
    r"""\+\s*\w*(?:answer|output|text|work|response|submission))|\$\(cat\s|\.format\(""",
    re.IGNORECASE,
)
_DELIMITED = re.compile(
    r"untrusted|do not follow|never follow|ignore any instruction|as data|<submission|<untrusted", re.I
)
_URL = re.compile(r"https?://(?!localhost|127\.|\[::1\])[\w.-]+[^\s'\"<>)]*")
_FETCHES = re.compile(r"\b(?:curl|wget|urlopen|requests\.get|git\s+clone|hf_hub_download|load_dataset)\b")
_ANSWER_NAME = re.compile(
    r"(?i)(?:^|[/_.-])(?:solution|solve|answer|expected|golden|ground.?truth|oracle)s?(?:[/_.-]|$)"
)
_LEFT_IN_LAYER = re.compile(
    r"(?im)^\s*RUN\b.*\brm\s+(?:-\S+\s+)*\S*(?:solution|solve\.sh|answer|expected|golden|oracle|/tests)\b"
)
_RIGHTS = {
    re.compile(r"NOPASSWD"): "lets the agent become root by sudo",
    re.compile(r"docker\.sock"): "hands the agent the container engine's socket",
    re.compile(r"(?i)privileged:\s*true|--privileged|cap_add"): "gives the sandbox more rights than it needs",
    re.compile(
        r"chmod\s+(?:-R\s+)?(?:[0-7]?777|a\+rwx|o\+w)\s+\S*/(?:tests|logs|solution|grader|verifier)"
    ): ("lets everybody write where grading reads"),
    re.compile(r"chmod\s+(?:u\+s|\+s|[46][0-7]{3})\s"): "leaves a setuid program to the agent",
}


def inspect(task: TaskDirectory) -> list[WeaknessFinding]:
    """Everything found by reading the task's files; each class at most once for each file."""
    found = [
        *_answers(task),
        *_permissions(task),
        *(finding for path in _test_files(task) for finding in _tests(task, path)),
    ]
    return list(dict.fromkeys(found))


def _tests(task: TaskDirectory, path: Path) -> Iterator[WeaknessFinding]:
    text = _read_text(path)
    name = str(path.relative_to(task.folder))
    if path.suffix in (".sh", ".bash", ""):
        lines = _without_comments(text)
        yield from _execution("\n".join(lines), name)
        yield from _vacuous(lines, name)
        if match := _BOASTS.search("\n".join(lines)):
            yield WeaknessFinding(
                Weakness.TRUST,
                f"{name} looks for `{_short(match[0])}` in a file the agent may write",
                "Run the check yourself and look at what it prints; a log the agent left says what it likes.",
            )
    if _ASKS_MODEL.search(text) and _RAW_IN_PROMPT.search(text) and not _DELIMITED.search(text):
        yield WeaknessFinding(
            Weakness.JUDGE,
            f"{name} asks a model and puts the agent's text into the prompt as it is",
            "Mark the agent's text as untrusted data in the prompt, tell the judge to follow nothing in it, "
            "and accept only a verdict of the form you asked for.",
        )


def _execution(text: str, name: str) -> Iterator[WeaknessFinding]:
    match = _RUNS_IN_WORKDIR.search(text) or _MODULE_FROM_CWD.search(text)
    if match is None or re.search(r"(?m)^\s*cd\s+(?:/tests|\"?\$\{?0)", text):
        return
    yield WeaknessFinding(
        Weakness.EXECUTION,
        f"{name} runs `{_short(match[0])}` in the working folder, whose files say what it does",
        "Run the tool from /tests with its own configuration (python3 -I, pytest --noconftest -c /dev/null "
        "--rootdir=/tests, make -f /tests/Makefile).",
    )


def _vacuous(lines: list[str], name: str) -> Iterator[WeaknessFinding]:
    depth, strict = 0, False
    for number, line in enumerate(lines):
        strict = strict or bool(re.match(r"\s*set\s+-\w*e", line))
        rewards = _REWARD.search(line) or _JSON_REWARD.search(line)
        if (
            rewards
            and depth == 0
            and not strict
            and not re.search(r"&&|\|\||\bif\b", line[: rewards.start()])
        ):
            before = next((one for one in reversed(lines[:number]) if one.strip()), "")
            if not re.search(r"(?:&&|\|\||\\)\s*$", before) and not _decides_later(lines[number + 1 :]):
                yield WeaknessFinding(
                    Weakness.VACUOUS,
                    f"{name}, line {number + 1}, writes the reward 1 whatever happened before",
                    "Write the reward only after the checks, from what they found.",
                )
        if _SWALLOWED.search(line):
            after = next((one for one in lines[number + 1 :] if one.strip()), "")
            if _ASKS_EXIT_CODE.search(after):
                yield WeaknessFinding(
                    Weakness.VACUOUS,
                    f"{name}, line {number + 1}, swallows (`|| true`) the exit code the next line asks for",
                    "Remove `|| true`, or keep the exit code in a variable first.",
                )
        depth += len(_OPENS.findall(line)) - len(_CLOSES.findall(line))
        depth = max(depth, 0)


def _decides_later(lines: list[str]) -> bool:
    """Return whether a later line may still write another reward."""
    return any(re.search(r">\s*\S*reward", line) for line in lines)


def _answers(task: TaskDirectory) -> Iterator[WeaknessFinding]:
    environment = task.folder / "environment"
    fix = "Remove it from environment/; what only the tests or the solution need belongs there."
    hidden = _hidden_contents(task)
    for path, content in _environment_contents(environment):
        name = os.path.relpath(path, task.folder)
        if (known := hidden.get(content.strip())) and not _given_on_purpose(path, known):
            yield WeaknessFinding(
                Weakness.ANSWERS, f"{name} is the same as {known.relative_to(task.folder)}", fix
            )
            continue
        if _ANSWER_NAME.search(name.removeprefix("environment")) and not name.endswith("setup.sh"):
            yield WeaknessFinding(Weakness.ANSWERS, f"{name} is called like an answer", fix)
            continue
        for known_content, known in hidden.items():
            if (
                len(known_content) >= 4 * MIN_ANSWER
                and known_content in content
                and not _given_on_purpose(path, known)
            ):
                yield WeaknessFinding(
                    Weakness.ANSWERS, f"{name} holds {known.relative_to(task.folder)} whole", fix
                )
                break
    dockerfile = environment / "Dockerfile"
    if dockerfile.is_file() and (match := _LEFT_IN_LAYER.search(_read_text(dockerfile))):
        yield WeaknessFinding(
            Weakness.ANSWERS,
            f"environment/Dockerfile removes an answer in a later layer: `{_short(match[0])}`",
            "Never copy it into the image: what one layer removes the layers below still hold.",
        )


def _given_on_purpose(path: Path, known: Path) -> bool:
    """A data file of the same name on both sides is an input the tests need as well, not an answer."""
    return path.name == known.name and known.parent.name == "tests" and not _ANSWER_NAME.search(known.name)


def _hidden_contents(task: TaskDirectory) -> dict[bytes, Path]:
    """Return what of tests and solutions could be an answer, by content."""
    found: dict[bytes, Path] = {}
    for path in [*_files(task.folder / "solution"), *_files(task.folder / "tests"), *_step_files(task)]:
        content = _read(path).strip()
        if len(content) >= MIN_ANSWER and path.name != "test.sh":
            found[content] = path
        if path.suffix in (".sh", ".bash") and path.parent.name == "solution":
            for text in _written_by(content):
                found[text] = path
    return found


def _written_by(script: bytes) -> Iterator[bytes]:
    """Yield what a solution writes as here-documents."""
    for match in re.finditer(
        rb"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n(.*?)\n\s*\1\s*$", script, re.DOTALL | re.MULTILINE
    ):
        content = match[2].strip()
        if len(content) >= 2 * MIN_ANSWER:
            yield content


def _environment_contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in _files(folder):
        if path.suffix in (".pack", ".idx"):
            continue
        content = _read(path)
        if ".git" in path.parts and "objects" in path.parts:
            try:
                content = zlib.decompressobj().decompress(content, MAX_FILE)
            except zlib.error:
                continue
            content = content.partition(b"\0")[2]
        yield path, content


def _permissions(task: TaskDirectory) -> Iterator[WeaknessFinding]:
    environment = task.folder / "environment"
    names = ("setup.sh", "Dockerfile", "docker-compose.yaml", "docker-compose.yml")
    for path in (environment / name for name in names):
        if not path.is_file():
            continue
        text = "\n".join(_without_comments(_read_text(path)))
        for pattern, what in _RIGHTS.items():
            if match := pattern.search(text):
                yield WeaknessFinding(
                    Weakness.PERMISSIONS,
                    f"environment/{path.name} {what}: `{_short(match[0])}`",
                    "Give the agent only what its task needs.",
                )
    config = task.config
    shared = set(config.verifier.env) & set(config.environment.env)
    if secret := next((name for name in sorted(shared) if re.search("KEY|TOKEN|SECRET|PASSW", name)), None):
        yield WeaknessFinding(
            Weakness.PERMISSIONS,
            f"task.toml gives {secret} to the agent and to the tests",
            "Name it in verifier.env alone: what is in environment.env the agent reads.",
        )
    if config.network == "public":
        yield from _answer_urls(task)


def _answer_urls(task: TaskDirectory) -> Iterator[WeaknessFinding]:
    for path in [*_test_files(task), *_files(task.folder / "solution")]:
        for line in _without_comments(_read_text(path)):
            if _FETCHES.search(line) and (url := _URL.search(line)) and _ANSWER_NAME.search(url[0]):
                yield WeaknessFinding(
                    Weakness.PERMISSIONS,
                    f"{path.relative_to(task.folder)} fetches {_short(url[0])}, as the agent can",
                    'Ship the file in tests/, or set network_mode = "no-network" for the agent.',
                )
                return


def _test_files(task: TaskDirectory) -> list[Path]:
    folders = [
        task.folder / "tests",
        *(task.folder / STEPS / step.name / "tests" for step in task.config.steps),
    ]
    return [path for folder in folders for path in _files(folder) if path.suffix in _SCRIPTS]


def _step_files(task: TaskDirectory) -> list[Path]:
    parts = (
        task.folder / STEPS / step.name / name for step in task.config.steps for name in ("tests", "solution")
    )
    return [path for part in parts for path in _files(part)]


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below `folder`, in order; not through links."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(place, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                count += 1
                if count > MAX_FILES:
                    return
                yield path


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE)


def _read_text(path: Path) -> str:
    return _read(path).decode("utf-8", "replace")


def _without_comments(text: str) -> list[str]:
    """Lines, those that are comments emptied."""
    return ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."
