"""Every example in the documentation is run as it stands, page by page, in an empty folder.

A shell block is preceded by one of these comments:

    <!-- test -->              run it; every command must exit 0
    <!-- test exit=1 -->       run it; its last command must exit 1
    <!-- not run: why -->      an example that cannot run here

and a block that shows a file by

    <!-- file: path -->        write it there (a path that ends in .sh is made executable)

In a `console` block, lines that begin with `$ ` are commands (`> ` continues one) and the others what they
print, in order: `…` stands for any text, alone on a line for any lines. A `bash` block is one script.

Examples run on the install a reader has: the base one, or with the extras that a page names as
`<!-- extras: aws -->`.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<comment>[^>]*?) -->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
SHELLS = ("console", "bash", "sh", "shell")
PLAIN = "set +eu +o pipefail"
EXTRAS = re.compile(r"^<!-- extras: ([\w, ]+) -->$", re.MULTILINE)


@dataclass
class Example:
    """One command of a page, and what it should print."""

    command: str
    expected: list[str] = field(default_factory=list)
    exit_code: int = 0


@dataclass(frozen=True)
class Block:
    """A fenced block and the comment before it."""

    comment: str
    language: str
    body: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            match["comment"] or "", match["language"], match["body"], text.count("\n", 0, match.start()) + 1
        )
        for match in BLOCK.finditer(text)
    ]


def examples_of(block: Block) -> Iterator[Example]:
    wanted = re.search(r"exit=(\d+)", block.comment)
    if block.language == "console":
        examples = split_console(block.body)
    else:
        examples = [Example(block.body)]
    if wanted:
        examples[-1].exit_code = int(wanted[1])
    yield from examples


def split_console(body: str) -> list[Example]:
    examples: list[Example] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            examples.append(Example(line[2:]))
        elif line.startswith("> ") and examples and not examples[-1].expected:
            examples[-1].command += "\n" + line[2:]
        elif line.strip():
            examples[-1].expected.append(line)
    return examples


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.comment.startswith(("test", "file:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_shell_block_says_whether_it_is_run(page: Path) -> None:
    silent = [
        f"line {block.line}"
        for block in blocks_of(page)
        if block.language in SHELLS and not block.comment.startswith(("test", "file: ", "not run: "))
    ]
    assert not silent, f"{page.relative_to(ROOT)}: say <!-- test --> or <!-- not run: why --> at {silent}"


@pytest.fixture(scope="module")
def base_install() -> Path:
    """The programs of a base install of this tree, made once."""
    venv = ROOT / ".cache" / "venvs" / "base"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with (venv.parent / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locks = [ROOT / "pyproject.toml", *(ROOT / "requirements").glob("b*.txt")]
        ready = venv / ".base-ready"
        if not ready.exists() or ready.stat().st_mtime < max(one.stat().st_mtime for one in locks):
            env = {**os.environ, "VENV": str(venv), "PYTHON": sys.executable, "COMPILE": ""}
            subprocess.run([ROOT / "scripts" / "make-venv", "base"], env=env, check=True)
    return venv / "bin"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if runnable(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run_as_written(page: Path, tmp_path: Path, base_install: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    examples: list[Example] = []
    steps: list[str] = []
    token = f"=={uuid.uuid4().hex}"
    for block in runnable(page):
        if block.comment.startswith("file:"):
            steps.append(write_file_step(block))
            continue
        for example in examples_of(block):
            steps.append(f"{PLAIN}\n{example.command}\nprintf '\\n{token} %s\\n' $?")
            examples.append(example)
    installed = Path(sys.executable).parent if EXTRAS.search(page.read_text()) else base_install
    output = run_script("\n".join(steps), work, tmp_path, installed)
    pieces = re.split(rf"^{token} (\d+)\n", output, flags=re.MULTILINE)
    endings = zip(pieces[0::2], [*map(int, pieces[1::2]), None], strict=True)
    for example, (printed, code) in zip(examples, endings, strict=False):
        assert code == example.exit_code, f"$ {example.command}\nexit {code}\n{printed}"
        check_output(example, printed)


def write_file_step(block: Block) -> str:
    path = block.comment.removeprefix("file:").strip()
    end = f"END-{uuid.uuid4().hex}"
    mode = f"\nchmod +x '{path}'" if path.endswith(".sh") else ""
    return f"mkdir -p \"$(dirname '{path}')\"\ncat > '{path}' <<'{end}'\n{block.body}{end}{mode}"


def run_script(script: str, work: Path, scratch: Path, installed: Path) -> str:
    others = os.environ["PATH"].split(os.pathsep)
    elsewhere = os.pathsep.join(one for one in others if Path(one) != Path(sys.executable).parent)
    env = {
        "PATH": f"{installed}{os.pathsep}{elsewhere}",
        "HOME": str(scratch / "home"),
        "LANG": "C.UTF-8",
        "VALKYRIE_HOME": str(scratch / "data"),
        "VALKYRIE_EXECUTOR_IDLE_S": "1",
        "VALKYRIE_CONFIG_PATH": str(scratch / "config" / "valkyrie.yaml"),
    }
    (scratch / "home").mkdir()
    return subprocess.run(
        ["bash", "-c", script],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    ).stdout


def check_output(example: Example, printed: str) -> None:
    lines = printed.splitlines()
    position = 0
    for expected in example.expected:
        if expected.strip() == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in expected.strip().split("…")))
        found = next((i for i in range(position, len(lines)) if pattern.fullmatch(lines[i].strip())), None)
        assert found is not None, f"$ {example.command}\nno line like {expected!r} in:\n{printed}"
        position = found + 1
