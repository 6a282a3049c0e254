"""Version labels and where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmark_service.versions import DatasetVersion, load_dataset_versions, owning_distribution


@pytest.mark.parametrize(
    "text",
    [
        "default: 1.2.3",
        "default: {version: v1}",
        "default: {version: 1.2}",
        "default: {version: 1.2.3, digest: abc}",
        "- default",
        "default: {version: 1.2.3",
    ],
)
def test_a_versions_file_of_another_shape_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"dataset versions file .*versions\.yaml"):
        load_dataset_versions(path)


def test_an_empty_file_has_no_versions(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text("")
    assert load_dataset_versions(path) == {}


def test_the_distribution_that_owns_a_module() -> None:
    name, version = owning_distribution("pydantic.main")
    assert name == "pydantic" and version
    assert owning_distribution("main") == (None, None)


def test_ids_of_versions_are_visible_ascii() -> None:
    assert DatasetVersion(id="sha256:abc").label is None
    for bad in ("", "two words", "é", "x" * 1025):
        with pytest.raises(ValidationError):
            DatasetVersion(id=bad)
