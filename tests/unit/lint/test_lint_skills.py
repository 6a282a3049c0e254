"""What is wrong with a skill."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.evals.lint.rules import LintOptions, read_entries
from valkyrie.evals.lint.skills import MAX_LINES, lint_skill

FRONT = "---\nname: greeting\ndescription: How to greet.\n---\n"


def make(folder: Path, body: str = "# Greeting\n", front: str = FRONT, **files: str) -> Path:
    skill = folder / "greeting"
    skill.mkdir()
    (skill / "SKILL.md").write_text(front + body)
    for name, text in files.items():
        path = skill / name.replace("__", "/").replace("_md", ".md").replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return skill


def codes(skill: Path, options: LintOptions | None = None) -> list[str]:
    return [finding.code for finding in lint_skill(skill, options)]


def test_a_good_skill_has_nothing_wrong(tmp_path: Path) -> None:
    skill = make(tmp_path, "See [more](references/more.md#part).\n", references__more_md="# More\n")
    assert codes(skill) == []


@pytest.mark.parametrize(
    ("front", "code"),
    [
        ("# no front matter\n", "bad-skill"),
        ("---\ndescription: x\n---\n", "bad-skill"),
        ("---\nname: greeting\n---\n", "bad-skill"),
        ("---\nname: Greeting\ndescription: x\n---\n", "bad-skill"),
        (f"---\nname: {'g' * 65}\ndescription: x\n---\n", "bad-skill"),
        (f"---\nname: greeting\ndescription: {'x' * 1025}\n---\n", "bad-skill"),
        ("---\nname: welcome\ndescription: x\n---\n", "skill-name-differs"),
    ],
)
def test_front_matter(tmp_path: Path, front: str, code: str) -> None:
    found = lint_skill(make(tmp_path, front=front))
    assert code in [finding.code for finding in found]
    assert all(finding.place and finding.place.file.name == "SKILL.md" for finding in found)


def test_a_folder_without_skill_is_said(tmp_path: Path) -> None:
    assert codes(tmp_path) == ["missing-skill"]


def test_a_broken_link_has_its_place(tmp_path: Path) -> None:
    (found,) = lint_skill(make(tmp_path, "See [more](references/gone.md).\n"))
    assert found.code == "skill-broken-link"
    assert found.place is not None
    assert (found.place.line, found.place.column) == (5, 12)


def test_links_of_other_pages_count_too(tmp_path: Path) -> None:
    skill = make(tmp_path, "See [a](references/a.md).\n", references__a_md="[b](b.md) [up](../SKILL.md)\n")
    (found,) = lint_skill(skill)
    assert found.code == "skill-broken-link"
    assert found.place is not None
    assert found.place.file == skill / "references/a.md"


def test_a_link_that_leaves_the_skill(tmp_path: Path) -> None:
    (tmp_path / "shared.md").write_text("shared")
    assert codes(make(tmp_path, "See [s](../shared.md).\n")) == ["skill-reference-outside"]


@pytest.mark.parametrize(
    ("body", "orphans"),
    [
        ("nothing\n", ["references/a.md", "references/b.md"]),
        ("[a](references/a.md)\n", []),  # a mentions b
        ("Read `references/b.md`.\n", ["references/a.md"]),
        ("Everything is in references/.\n", []),
    ],
)
def test_files_that_nothing_reachable_mentions(tmp_path: Path, body: str, orphans: list[str]) -> None:
    skill = make(
        tmp_path, body, references__a_md="[b](b.md)\n", references__b_md="b\n", README_md="for people"
    )
    found = [finding for finding in lint_skill(skill) if finding.code == "skill-orphan-file"]
    assert [str(f.place.file.relative_to(skill)) for f in found if f.place] == orphans


def test_size(tmp_path: Path) -> None:
    assert codes(make(tmp_path, "")) == ["skill-empty"]
    other = tmp_path / "other"
    other.mkdir()
    assert codes(make(other, "line\n" * (MAX_LINES + 1))) == ["skill-too-long"]
    assert codes(make(tmp_path / "other" / "greeting", "line\n" * MAX_LINES)) == []


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("https://docs.example.com/a", True),
        ("https://example.com", True),
        ("https://notexample.com", False),
        ("https://code.example.net/team/repo/issues", True),
        ("https://code.example.net/team/repository", False),
        ("https://code.example.net/team", False),
    ],
)
def test_known_domains(tmp_path: Path, address: str, known: bool) -> None:
    options = LintOptions(known_domains=("example.com", "code.example.net/team/repo"))
    assert codes(make(tmp_path, f"See {address}\n"), options) == ([] if known else ["skill-unknown-domain"])


def test_addresses_are_not_looked_at_without_a_list(tmp_path: Path) -> None:
    assert codes(make(tmp_path, "See https://anything.example\n")) == []


def test_external_dependencies(tmp_path: Path) -> None:
    front = "---\nname: greeting\ndescription: How to greet. INVOKES other skills.\n---\n"
    skill = make(tmp_path, "Use #tool:web/fetch.\n", front, scripts__run_sh="true")
    none = LintOptions(allowed_deps=frozenset())
    found = [f.message.split(": ")[1].split(". ")[0] for f in lint_skill(skill, none)]
    assert sorted(found) == [
        "invokes:greeting",
        "script:greeting:scripts/run.sh",
        "tool-ref:greeting:#tool:web/fetch",
    ]
    assert codes(skill, LintOptions(allowed_deps=frozenset(found))) == []
    assert codes(skill) == []


def test_entries_of_a_list(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("# ours\n\n example.com \n#no\n")
    assert read_entries(file) == ("example.com",)
