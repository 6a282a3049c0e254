"""Which framework a generated project depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark_service.scaffold import framework_at, installed_framework
from sandboxes.registry import reference_of


def checkout(folder: Path, name: str = "valkyrie-bench") -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return folder


def test_a_checkout_is_referred_to_by_its_quoted_path(tmp_path: Path) -> None:
    found = framework_at(checkout(tmp_path / 'my "checkout" {1}; #2'), "daytona")
    quoted = f"{tmp_path.as_uri()}/my%20%22checkout%22%20%7B1%7D%3B%20%232"
    assert found.requirement == f"valkyrie-bench[daytona] @ {quoted}"


@pytest.mark.parametrize("name", ["valkyrie_bench-0.1.0-py3-none-any.whl", "valkyrie_bench-0.1.0.tar.gz"])
def test_a_built_archive_is_referred_to_by_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert framework_at(tmp_path / name).requirement.endswith(f" @ {(tmp_path / name).as_uri()}")


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other-1.0.whl").touch()
    (tmp_path / "valkyrie_bench-0.1.0.zip").touch()
    broken = checkout(tmp_path / "broken")
    (broken / "pyproject.toml").write_text("project = [")
    for path in (
        checkout(tmp_path / "other", "another-project"),
        broken,
        tmp_path,
        tmp_path / "other-1.0.whl",
        tmp_path / "valkyrie_bench-0.1.0.zip",
    ):
        with pytest.raises(ValueError, match="valkyrie-bench"):
            framework_at(path)


@pytest.mark.parametrize(
    ("record", "reference"),
    [
        (
            {
                "url": "https://host/repo.git",
                "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "abc"},
            },
            "git+https://host/repo.git@v1",
        ),
        (
            {"url": "ssh://git@host/repo.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+ssh://git@host/repo.git@abc",
        ),
        (
            {
                "url": "https://host/r.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
                "subdirectory": "python",
            },
            "git+https://host/r.git@abc#subdirectory=python",
        ),
        ({"url": "https://host/a.whl", "archive_info": {}}, "https://host/a.whl"),
        ({"url": "https://me:secret@host/a.whl", "archive_info": {}}, "https://host/a.whl"),
        ({"url": "https://${USER}:${PASS}@host/a.whl"}, "https://${USER}:${PASS}@host/a.whl"),
        ({"url": "file:///no/longer/there.whl", "archive_info": {}}, None),
    ],
)
def test_a_record_of_an_installation_becomes_a_reference(
    record: dict[str, Any], reference: str | None
) -> None:
    assert reference_of(record) == reference


def test_installed_from_an_index_it_is_to_be_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "valkyrie_bench-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: valkyrie-bench\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_framework("daytona").requirement.startswith("valkyrie-bench[daytona] @ file:///FILL-IN/")


def test_installed_from_a_wheel_it_is_that_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "valkyrie_bench-0.1.0-py3-none-any.whl"
    wheel.touch()
    described = tmp_path / "valkyrie_bench-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: valkyrie-bench\nVersion: 0.1.0\n")
    (described / "direct_url.json").write_text(f'{{"url": "{wheel.as_uri()}", "archive_info": {{}}}}')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_framework("daytona").requirement == f"valkyrie-bench[daytona] @ {wheel.as_uri()}"
