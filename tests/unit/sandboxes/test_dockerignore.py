"""`.dockerignore` by Docker's own rules."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from sandboxes.folder_contents import Dockerignore
from sandboxes.scripted_sandbox import pack_context


@pytest.mark.parametrize(
    ("text", "out", "kept"),
    [
        ("secret.txt\n", ["secret.txt"], ["sub/secret.txt", "secret.txt.bak"]),
        ("/secret.txt\n", ["secret.txt"], ["sub/secret.txt"]),
        ("# secret.txt\n\n  notes \n", ["notes"], ["secret.txt"]),
        ("*.md\n!README.md\n", ["a.md"], ["README.md", "sub/a.md"]),
        ("**/*.md\n", ["a.md", "sub/deep/a.md"], ["a.mdx"]),
        ("*/temp*\n", ["sub/temporary"], ["temporary", "a/b/temporary"]),
        ("temp?\n", ["tempa", "tempb/inside"], ["temp", "tempaa"]),
        ("docs\n!docs/kept\n", ["docs/other", "docs"], ["docs/kept", "docs/kept/deep"]),
        ("**\n!src/*.c\n", ["Makefile", "src/a.h"], ["src/a.c"]),
        ("a/**/z\n", ["a/z", "a/b/z", "a/b/c/z"], ["a/y", "z"]),
        ("a/**\n", ["a/b", "a/b/c"], ["b"]),
        ("[a-c].txt\n", ["a.txt"], ["d.txt"]),
        ("[^a].txt\n", ["b.txt"], ["a.txt"]),
        ("./build/\n", ["build/x"], ["rebuild"]),
        ("!kept\nkept\n", ["kept"], []),
        ("\\*.txt\n", ["*.txt"], ["a.txt"]),
        ("a(b\n", ["a(b"], ["ab"]),
    ],
)
def test_what_is_left_out(text: str, out: list[str], kept: list[str]) -> None:
    rules = Dockerignore(text)
    assert [path for path in (*out, *kept) if rules.leaves_out(path)] == out


def context(tmp_path: Path, ignore: dict[str, str]) -> Path:
    folder = tmp_path / "context"
    (folder / "docs" / "kept").mkdir(parents=True)
    (folder / "private").mkdir()
    for name in ("Dockerfile", "answer.txt", "docs/a", "docs/kept/b", "private/key"):
        (folder / name).write_text(name)
    for name, text in ignore.items():
        (folder / name).write_text(text)
    return folder


def packed(folder: Path, tmp_path: Path) -> set[str]:
    with (tmp_path / "context.tar").open("wb") as file:
        pack_context(folder, file, frozenset(), Dockerignore.of(folder))
    with tarfile.open(tmp_path / "context.tar") as tar:
        return {member.name for member in tar if member.isfile()}


def test_a_build_is_sent_nothing_that_is_ignored(tmp_path: Path) -> None:
    folder = context(tmp_path, {".dockerignore": "*\n!docs/kept\n"})
    (folder / "private" / "way-out").symlink_to("/etc")
    # The builder needs these two, and takes them away by the same rules.
    assert packed(folder, tmp_path) == {"Dockerfile", ".dockerignore", "docs/kept/b"}
    shutil.copytree(folder, tmp_path / "copy", ignore=Dockerignore.of(folder).names_left_out)
    copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
    assert {name for name in copied if (tmp_path / "copy" / name).is_file()} == packed(folder, tmp_path)


def test_the_file_named_for_the_dockerfile_comes_first(tmp_path: Path) -> None:
    folder = context(tmp_path, {".dockerignore": "docs\n", "Dockerfile.dockerignore": "private\n"})
    sent = packed(folder, tmp_path)
    assert "docs/a" in sent and "private/key" not in sent
