from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from valkyrie.benchmarks.task_dir.dockerfile import CopyFiles, MakeFolder, Recipe, RunProgram, read_dockerfile
from valkyrie.benchmarks.task_dir.execution import repeat_dockerfile


def runs(recipe: Recipe) -> list[tuple[str, ...]]:
    return [step.argv for step in recipe.steps if isinstance(step, RunProgram)]


def copies(recipe: Recipe) -> list[tuple[tuple[str, ...], str]]:
    return [(step.sources, step.target) for step in recipe.steps if isinstance(step, CopyFiles)]


def test_steps_come_in_order_with_what_is_in_force() -> None:
    recipe = read_dockerfile(
        '# syntax=docker/dockerfile:1\nFROM python:3\nARG WHO=world\nENV A=1 B="two words"\nWORKDIR /srv\n'
        'workdir app\nCOPY . .\nRUN echo $WHO\nENV A 2\nRUN ["ls", "-l"]\nUSER nobody\nCMD ["x"]\n'
    )
    assert recipe.steps == [
        MakeFolder("/srv"),
        MakeFolder("/srv/app"),
        CopyFiles((".",), "/srv/app/"),
        RunProgram(
            ("/bin/sh", "-c", "echo $WHO"), "/srv/app", {"WHO": "world", "A": "1", "B": "two words"}, 8
        ),
        RunProgram(("ls", "-l"), "/srv/app", {"WHO": "world", "A": "2", "B": "two words"}, 10),
    ]
    assert (recipe.env, recipe.workdir) == ({"A": "2", "B": "two words"}, "/srv/app")
    assert recipe.notes == ["line 2: base image python:3 is not used"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("COPY a b /c/", (("a", "b"), "/c/")),
        ("COPY a /c", (("a",), "/c")),
        ("COPY a .", (("a",), "/w/")),
        ("COPY a sub/b", (("a",), "/w/sub/b")),
        ('COPY ["my file", "/to here/"]', (("my file",), "/to here/")),
        ("COPY --chown=a:b --chmod=755 a /c", (("a",), "/c")),
        ("ADD ./a $TARGET/x", (("./a",), "/t/x")),
        ("COPY a ${TARGET}/${NONE:-y}", (("a",), "/t/y")),
        ("COPY /etc/passwd /x", (("etc/passwd",), "/x")),
        ('COPY "a b" c', (("a b",), "/w/c")),
    ],
)
def test_copies(line: str, expected: tuple[tuple[str, ...], str]) -> None:
    assert copies(read_dockerfile(f"FROM x\nENV TARGET=/t\nWORKDIR /w\n{line}\n")) == [expected]


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("COPY --from=build /a /b", "another stage"),
        ("ADD https://example.org/x.tar.gz /x", "needs the network"),
        ("COPY lonely", "needs a source and a target"),
        ('SHELL ["bash"]', "SHELL is not honoured"),
        ("ONBUILD RUN x", "ONBUILD is not honoured"),
        ("RUN <<EOF\nWORKDIR /no\nEOF", "heredoc"),
        ("COPY <<A <<B /x/\none\nA\ntwo\nB", "heredoc"),
    ],
)
def test_what_cannot_be_honoured_is_noted(line: str, note: str) -> None:
    recipe = read_dockerfile(f"FROM x\n{line}\nRUN last\n")
    assert any(note in text and text.startswith("line 2:") for text in recipe.notes), recipe.notes
    assert runs(recipe) == [("/bin/sh", "-c", "last")]


def test_continued_lines_with_comments_between() -> None:
    recipe = read_dockerfile(
        "RUN one && \\\n  # why\n\n  two \\\n  three\n RUN\tfour\nRUN a <<< b\nRUN echo $((1<<N))\n"
    )
    assert [argv[2] for argv in runs(recipe)] == ["one &&   two   three", "four", "a <<< b", "echo $((1<<N))"]


def test_only_the_last_stage_counts() -> None:
    recipe = read_dockerfile("FROM a AS b\nENV X=1\nRUN one\nFROM c\nRUN two\n")
    assert (runs(recipe), recipe.env) == ([("/bin/sh", "-c", "two")], {})
    assert any("earlier build stages" in note for note in recipe.notes)


def test_path_is_extended_not_lost() -> None:
    assert read_dockerfile("ENV PATH=/opt/x:$PATH").env["PATH"].startswith("/opt/x:/usr/local/sbin:")


def test_broken_quotes_do_not_stop_the_reader() -> None:
    assert read_dockerfile('ENV A="x\nCOPY "a b\nRUN ok').steps != []


async def test_repeating_one_in_a_sandbox(tmp_path: Path, sandbox: Sandbox) -> None:
    context = tmp_path / "environment"
    (context / "src" / "deep").mkdir(parents=True)
    (context / "src" / "deep" / "f.txt").write_text("f")
    (context / "run.sh").write_text("#!/bin/sh\necho ran > ran.txt\n")
    (context / "run.sh").chmod(0o755)
    (tmp_path / "outside.txt").write_text("host")
    (context / "leak.txt").symlink_to(tmp_path / "outside.txt")
    lines: list[str] = []
    recipe = read_dockerfile(
        "FROM x\nWORKDIR /app/in\nCOPY src /app/all\nCOPY *.sh ./\nCOPY run.sh /app/all\n"
        "COPY leak.txt ./\nCOPY gone ./\nENV WORD=hello\n"
        "RUN ./run.sh\nRUN echo $WORD > word.txt\nRUN exit 7\nRUN echo on > after.txt\n"
    )
    await repeat_dockerfile(recipe, context, sandbox, lambda _, text: lines.append(text))
    assert await sandbox.list_files("/app/**/*") == [
        "/app/all/deep/f.txt",
        "/app/all/run.sh",
        "/app/in/after.txt",
        "/app/in/ran.txt",
        "/app/in/run.sh",
        "/app/in/word.txt",
    ]
    assert await sandbox.download_file("/app/in/word.txt") == b"hello\n"
    log = "".join(lines)
    assert "line 11: RUN ended with exit code 7" in log
    assert "COPY leak.txt: nothing of that name" in log
    assert "COPY gone: nothing of that name" in log
