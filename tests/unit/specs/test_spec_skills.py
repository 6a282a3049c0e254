"""SKILL.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.specs.model import SpecError
from valkyrie.specs.project import examine_skill, find_skills, read_skill

SKILLS = Path(__file__).parent / "fixtures" / "skills"


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(text)
    return folder


def test_a_skill_and_its_other_keys() -> None:
    skill = read_skill(SKILLS / "planing")
    assert (skill.name, skill.description) == ("planing", "Makes planks flat.")
    assert skill.extra == {"license": "MIT", "metadata": {"level": 2}}
    assert read_skill(SKILLS / "planing" / "SKILL.md") == skill


def test_a_folder_is_a_skill_or_has_some() -> None:
    assert [skill.name for skill in find_skills(SKILLS / "planing")] == ["planing"]
    assert [skill.name for skill in find_skills(SKILLS)] == ["measuring", "planing"]
    assert [skill.name for skill in find_skills(SKILLS.parent)] == ["measuring", "planing"]


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("# No front matter", "first line must be `---`", 1),
        ("---\nname: a\n", "does not end", 1),
        ("---\n---\n", "no `name`", 1),
        ("---\nname: a\n---\n", "no `description`", 2),
        ("---\ndescription: a\n---\n", "no `name`", 2),
        ("---\nname: a\ndescription: '  '\n---\n", "no `description`", 2),
        ("---\nname: Not Kebab\ndescription: a\n---\n", "lower-case words", 2),
        ("---\nname: a--b\ndescription: a\n---\n", "lower-case words", 2),
        (f"---\nname: {'a' * 65}\ndescription: a\n---\n", "at most 64", 2),
        (f"---\nname: a\ndescription: {'a' * 1025}\n---\n", "1,025 characters", 3),
        ("---\nname: a\ndescription: b: c\n---\n", "Not valid YAML", 3),
        ("---\n- a\n---\n", "must be a map", 2),
        ("---\nname: a\nname: b\n---\n", "given twice", 3),
    ],
)
def test_what_is_wrong_has_its_line(tmp_path: Path, text: str, words: str, line: int) -> None:
    with pytest.raises(SpecError) as caught:
        read_skill(write(tmp_path, text))
    found = [finding for finding in caught.value.findings if words in finding.message]
    assert [finding.place.line for finding in found if finding.place] == [line], caught.value


def test_missing_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_skill(tmp_path / "none")
    with pytest.raises(SpecError, match=r"has no SKILL\.md"):
        read_skill(tmp_path)
    with pytest.raises(SpecError, match="does not exist"):
        find_skills(tmp_path / "none")
    with pytest.raises(SpecError, match="No skill in"):
        find_skills(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="is not a folder"):
        find_skills(tmp_path / "file")


def test_one_broken_skill_of_several_is_told(tmp_path: Path) -> None:
    write(tmp_path / "good", "---\nname: good\ndescription: x\n---\n")
    write(tmp_path / "bad", "nothing")
    with pytest.raises(SpecError, match=r"bad/SKILL\.md"):
        find_skills(tmp_path)


def test_binary_files_are_no_skills(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_bytes(b"---\n\xff\n---")
    assert examine_skill(tmp_path)[0] is None


def test_links_are_not_followed_when_looking(tmp_path: Path) -> None:
    write(tmp_path / "a", "---\nname: a\ndescription: x\n---\n")
    (tmp_path / "a" / "sub").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [skill.name for skill in find_skills(tmp_path)] == ["a"]
