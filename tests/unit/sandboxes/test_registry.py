from pathlib import Path

import pytest

import sandboxes
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.null import NullProvider
from sandboxes.process import ProcessProvider
from sandboxes.registry import PROVIDERS, ProviderEntry, open_provider


def test_providers_open_by_name(tmp_path: Path) -> None:
    assert isinstance(open_provider("null", tmp_path), NullProvider)
    assert isinstance(sandboxes.open_provider("process", tmp_path), ProcessProvider)
    assert list(tmp_path.iterdir()) == []


def test_names_are_the_keys() -> None:
    assert {name: entry.name for name, entry in PROVIDERS.items()} == {name: name for name in PROVIDERS}


def test_a_wrong_name_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupportedError, match="did you mean 'process'"):
        open_provider("proces", tmp_path)
    with pytest.raises(SandboxUnsupportedError, match="there are daytona, docker, local, null, process"):
        open_provider("zzz", tmp_path)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ProviderEntry("far", "sandboxes.no_such_module", "Far", "far away", extra="far")
    monkeypatch.setitem(PROVIDERS, "far", entry)
    with pytest.raises(SandboxUnsupportedError, match=r"pip install far"):
        open_provider("far", tmp_path)
