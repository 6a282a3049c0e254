"""An author's own templates: what is filled in, what is copied, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmark_runner.scaffolder.generator import RunnerSpec, generate
from benchmark_service.scaffold import GenerationError

SPEC = RunnerSpec("demo-bench", "valkyrie-bench>=0.1,<0.2")
BINARY = bytes(range(256))


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir()
    return folder


def made(templates: Path) -> Path:
    return generate(SPEC, templates.parent / "out", templates)


def refused(templates: Path) -> str:
    """Why it was refused; nothing was written."""
    with pytest.raises(GenerationError) as error:
        made(templates)
    assert not (templates.parent / "out").exists()
    return str(error.value)


def test_templates_are_filled_in_and_other_files_are_copied_byte_for_byte(templates: Path) -> None:
    keys = ("name", "camel", "upper", "package")
    (templates / "keys.txt.jinja").write_text(
        "".join(f"{{{{ benchmark_{key} }}}}\n" for key in keys) + "{{ project }} <{{ requirement }}>\n"
    )
    (templates / "plain.txt").write_text("{{ benchmark_name }}\n")
    (templates / "logo.png").write_bytes(BINARY)
    (templates / "empty").mkdir()
    (templates / "empty" / ".gitkeep").touch()
    (templates / "tool").write_text("echo")
    (templates / "tool").chmod(0o755)
    project = made(templates)
    assert (project / "keys.txt").read_text() == (
        "demo-bench\nDemoBench\nDEMO_BENCH\nrunner\ndemo-bench-runner <valkyrie-bench>=0.1,<0.2>\n"
    )
    assert (project / "plain.txt").read_text() == "{{ benchmark_name }}\n"
    assert (project / "logo.png").read_bytes() == BINARY
    assert list((project / "empty").iterdir()) == []
    assert os.access(project / "tool", os.X_OK)


def test_names_are_filled_in_and_templates_can_include_each_other(templates: Path) -> None:
    inside = templates / "{{ benchmark_package }}"
    inside.mkdir()
    (inside / "{{ benchmark_name }}.py.jinja").write_text("{% include 'head.jinja' %}done\n")
    (templates / "head.jinja").write_text("# {{ benchmark_upper }}\n")
    project = made(templates)
    assert (project / "runner" / "demo-bench.py").read_text() == "# DEMO_BENCH\ndone\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fine\n{{ benchmark_nmae }}\n", "'benchmark_nmae' is undefined. Known names: benchmark_camel"),
        ("fine\n{% if %}\n", "Expected an expression"),
        ("fine\n{{ benchmark_name.__class__.__mro__ }}\n", "is unsafe"),
        ("fine\n{{ 1 / 0 }}\n", "ZeroDivisionError"),
        ("fine\n{% include '../secret' %}\n", "../secret"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_line(templates: Path, text: str, said: str) -> None:
    (templates / "sub").mkdir()
    (templates / "sub" / "bad.py.jinja").write_text(text)
    (templates.parent / "secret").write_text("not yours")
    why = refused(templates)
    assert why.startswith("Template sub/bad.py.jinja, line 2: ") and said in why
    assert "not yours" not in why


def test_a_template_that_is_no_text_is_named_with_its_line(templates: Path) -> None:
    (templates / "bad.jinja").write_bytes(b"one\ntwo \xff\n")
    assert refused(templates).startswith("Template bad.jinja, line 2: it is not UTF-8 text")


@pytest.mark.parametrize(
    "name",
    [
        "{{ '..' }}",
        "{{ '..' + '\\x2f' + 'up' }}",
        "{{ '\\x2fetc' }}",
        "{{ '' }}",
        "{{ '.' }}.jinja",
        "back\\slash",
        "{{ 'new\\nline' }}",
    ],
)
def test_a_name_that_leads_out_of_the_project_is_refused(templates: Path, name: str) -> None:
    (templates / name).write_text("x")
    assert "no path inside the project" in refused(templates)


def test_a_name_with_an_unknown_key_is_refused(templates: Path) -> None:
    (templates / "{{ name }}.py").write_text("x")
    assert refused(templates).startswith("The name of template {{ name }}.py: 'name' is undefined")


@pytest.mark.parametrize("target", ["/etc/hostname", "plain.txt", "."])
def test_links_are_refused(templates: Path, target: str) -> None:
    (templates / "plain.txt").write_text("x")
    (templates / "z-link").symlink_to(target)
    assert refused(templates).startswith("Template z-link is a link")


def test_what_is_no_file_is_refused(templates: Path) -> None:
    os.mkfifo(templates / "pipe")
    assert "neither file nor folder" in refused(templates)


@pytest.mark.parametrize(
    "names",
    [
        ("a.py", "a.py.jinja"),
        ("runner", "{{ benchmark_package }}.jinja"),
        ("runner/x", "{{ benchmark_package }}"),
        ("runner", "{{ benchmark_package }}/x"),
        ("runner", "{{ benchmark_package }}/.gitkeep"),
    ],
)
def test_two_templates_for_one_place_are_refused(templates: Path, names: tuple[str, str]) -> None:
    for name in names:
        (templates / name).parent.mkdir(exist_ok=True)
        (templates / name).write_text("x")
    assert "so would another one" in refused(templates)


def test_a_folder_without_templates_is_refused(templates: Path) -> None:
    (templates / ".git").mkdir()
    (templates / ".git" / "config").touch()
    assert "holds no templates" in refused(templates)
