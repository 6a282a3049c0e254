"""`program` graders whose printed verdict may be the words of the agent's code."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from valkyrie.lint.codes import finding
from valkyrie.specs.model import Finding, GraderSpec, Stimulus

_INTERPRETERS = re.compile(r"(python|pypy|sh|bash|dash|zsh|node|deno|bun|ruby|perl|php)[\d.]*")
_RUNNERS = frozenset(
    ("pytest", "py.test", "tox", "nox", "npm", "npx", "pnpm", "yarn", "jest", "vitest", "make", "cargo", "go")
) | frozenset(("ctest", "gradle", "mvn", "rspec", "unittest", "dotnet", "swift"))
_BEFORE = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "time", "exec", "env", "{", "(")
)
_MOST_SCRIPT = 1 << 20
_STARTING = frozenset(("run", "call", "check_call", "Popen"))
_SAME_OUTPUT = frozenset(("system", "spawn", "execv", "execve", "execvp", "execl", "run_path", "run_module"))


def program_findings(stimulus: Stimulus) -> Iterator[Finding]:
    """Graders that run the agent's code and let it print where their own verdict is read."""
    hidden = {_plain(entry.dest): entry.source for entry in stimulus.grading_files}
    for grader in stimulus.graders:
        if grader.type != "program" or grader.config.get("verdict") == "file":
            continue
        if ran := _agent_code(grader, hidden):
            message = (
                f"{grader.label} runs {ran}, which the agent may have written, and takes its verdict from "
                "what is printed. Set `verdict: file` and write the verdict to the path on standard input, "
                "or keep the output of that code away from stdout"
            )
            yield finding("program-prints-agent-output", message, grader.place)


def _agent_code(grader: GraderSpec, hidden: dict[str, Path]) -> str | None:
    program, args = grader.config.get("program"), grader.config.get("args") or ()
    if not isinstance(program, str) or not isinstance(args, list | tuple):
        return None
    words = [program, *(str(one) for one in args)]
    if grader.config.get("shell") is True:
        return _in_shell(" ".join(words), hidden, look_inside=True)
    return _in_words(words, hidden, look_inside=True)


def _in_words(words: Sequence[str], hidden: dict[str, Path], *, look_inside: bool) -> str | None:
    """Return the agent's code that a command runs, None if there is none to be seen."""
    if not words:
        return None
    name = PurePosixPath(words[0]).name
    if name in _RUNNERS:
        return f"`{name}`"
    if not _INTERPRETERS.fullmatch(name):
        return _in_file(words[0], hidden, look_inside) if _is_relative(words[0]) else None
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            return f"`{rest[0]}`" if rest[0] in _RUNNERS else None
        if option in ("-c", "-e") and rest:
            if not look_inside:
                return None
            return _in_python(rest[0]) if name.startswith("py") else _in_shell(rest[0], hidden)
    return _in_file(rest[0], hidden, look_inside) if rest and not rest[0].startswith("/") else None


def _in_file(path: str, hidden: dict[str, Path], look_inside: bool) -> str | None:
    source = _hidden_source(path, hidden)
    if source is None:
        return f"{path!r}"
    if not look_inside:
        return None
    try:
        if not source.is_file() or source.stat().st_size > _MOST_SCRIPT:
            return None
        text = source.read_text("utf-8", "replace")
    except OSError:
        return None  # said where files are looked at
    first = text.partition("\n")[0]
    if source.suffix == ".py" or (first.startswith("#!") and "python" in first):
        return _in_python(text)
    if source.suffix in (".sh", ".bash", "") and (first.startswith("#!") or source.suffix):
        return _in_shell(text, hidden)
    return None


def _in_shell(text: str, hidden: dict[str, Path], *, look_inside: bool = False) -> str | None:
    for line in text.splitlines():
        if line.lstrip().startswith("#") or "$(" in line or "`" in line:
            continue
        for command in re.split(r"&&|\|\||;", line):
            last = command.rpartition("|")[2]
            if re.search(r"(^|[^2])>", last):
                continue
            try:
                words = shlex.split(last, comments=True)
            except ValueError:
                continue
            while words and (words[0] in _BEFORE or re.fullmatch(r"\w+=.*", words[0])):
                words.pop(0)
            if words and words[0] == "timeout":
                words = [word for word in words[1:] if not re.fullmatch(r"-.*|[\d.]+[smh]?", word)]
            if found := _in_words(words, hidden, look_inside=look_inside):
                return found
    return None


def _in_python(text: str) -> str | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        kept = any(one.arg in ("stdout", "capture_output") for one in node.keywords)
        if called in _SAME_OUTPUT or (called in _STARTING and not kept and _starts_code(node)):
            return f"a program in line {node.lineno} of its script (`{called}`)"
    return None


def _starts_code(call: ast.Call) -> bool:
    """Return whether a call of subprocess may start code from the workspace."""
    given = call.args[0] if call.args else None
    if isinstance(given, ast.List | ast.Tuple) and given.elts:
        given = given.elts[0]
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        words = given.value.split()[:1]
        return bool(words) and (_is_relative(words[0]) or _is_interpreter(words[0]))
    return isinstance(given, ast.Attribute) and given.attr == "executable"


def _is_interpreter(word: str) -> bool:
    name = PurePosixPath(word).name
    return name in _RUNNERS or bool(_INTERPRETERS.fullmatch(name))


def _is_relative(word: str) -> bool:
    return "/" in word and not word.startswith(("/", "~", "$"))


def _hidden_source(path: str, hidden: dict[str, Path]) -> Path | None:
    """Return the file on this machine that grading puts at a path, None if it is the agent's."""
    plain = _plain(path)
    for dest, source in hidden.items():
        if plain == dest:
            return source
        if dest in ("", ".") or plain.startswith(f"{dest}/"):
            below = source / plain.removeprefix(dest).lstrip("/")
            if below.exists():
                return below
    return None


def _plain(path: str) -> str:
    return str(PurePosixPath(path.removeprefix("$EVALUATE_WORKSPACE/")))
