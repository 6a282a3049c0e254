"""Manifests, their earlier form, and the store they are installed into."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.sandbox import manifest
from benchmark_runner.sandbox.manifest import Manifest, load_manifest, preflight, write_yaml
from benchmark_runner.sandbox.setup import pack_bundle

VALUES: dict[str, Any] = {
    "benchmark": "quiz",
    "service": {"url": "http://127.0.0.1:1"},
    "dataset": {"name": "default"},
    "agent": {
        "install_cmd": None,
        "run_cmd": "agent {model} {problem_statement_path}",
        "final_output": "/out",
        "required_env": [],
    },
    "eval": {"payload_schema": "quiz.text.v1"},
    "versions": {"framework": "1", "service": "2"},
    "tasks": [
        {"id": "one", "question": "1?", "timeout": 5, "image": "repo/image@sha256:" + "a" * 64, "cwd": "/w"},
        {"id": "two", "question": "2?", "resources": {"vcpu": 1, "memory": 1, "disk": 1}},
    ],
}
EARLIER: dict[str, Any] = {
    "benchmark": "quiz",
    "service": {"url": "http://127.0.0.1:1", "framework_version": "1", "service_version": "2"},
    "dataset": {"name": "default", "version": None},
    "agent": {
        "image": "repo/image",
        "resources": {"vcpu": 1, "memory": 2, "disk": 3},
        "cwd": "/app",
        "contract": {
            "install_cmd": "true",
            "run_cmd": "agent {problem_statement_path}",
            "final_output": "/out",
            "secrets": {"QUIZ_KEY": "some/reference"},
        },
    },
    "eval": {
        "evaluate_endpoint": "/evaluate-response/",
        "score_endpoint": "/final-score/",
        "payload_schema": "quiz.text.v1",
    },
    "tasks": [
        {"id": "one", "question": "1?", "timeout": None, "image": None, "cwd": None},
        {"id": "two", "question": "2?", "timeout": 7.0, "image": "repo/other"},
    ],
    "versions": {"benchmark_service": "2", "eval": None, "dataset": "d", "image": None},
}


def changed(**paths: Any) -> dict[str, Any]:
    """The values with some replaced; `agent__run_cmd` is `agent.run_cmd`."""
    values = copy.deepcopy(VALUES)
    for path, value in paths.items():
        *above, last = path.split("__")
        place = values
        for name in above:
            place = place[name]
        place[last] = value
    return values


def test_a_manifest_says_what_a_run_needs(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    write_yaml(path, VALUES)
    setup = load_manifest(path).setup(tmp_path)
    one, two = setup.specs["one"], setup.specs["two"]
    assert one.source is not None and (one.agent_timeout, one.cwd, one.question) == (5, "/w", "1?")
    assert two.source is None and two.resources is not None and two.resources.memory == 1
    assert (setup.benchmark, setup.payload_schema) == ("quiz", "quiz.text.v1")


def test_the_earlier_form_is_read() -> None:
    made = Manifest.model_validate(EARLIER)
    one, two = made.tasks
    assert (one.image, one.cwd, one.timeout, two.image, two.cwd) == (
        "repo/image",
        "/app",
        None,
        "repo/other",
        "/app",
    )
    assert one.resources is not None and one.resources.disk == 3
    assert made.agent.required_env == ["QUIZ_KEY"] and made.agent.install_cmd == "true"
    assert (made.versions.framework, made.versions.service, made.versions.dataset) == ("1", "2", "d")
    assert "some/reference" not in made.model_dump_json()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (changed(benchmark="../x"), "benchmark"),
        (changed(agent__run_cmd="agent"), "problem_statement_path"),
        (changed(agent__bundle={"file": "../a.zip", "sha256": "a" * 64}), "file"),
        (changed(eval__evaluate_endpoint="/v1/evaluate"), "evaluate_endpoint"),
        (changed(tasks=[]), "tasks"),
        (changed(tasks=[{"id": "a", "question": ""}] * 2), "same id"),
        (changed(tasks=[{"id": "a", "question": "", "image": "snapshot:x"}]), "snapshot"),
        (changed(tasks=[{"id": "a", "question": "", "cwd": "/a/../b"}]), "absolute"),
        (changed(extra=1), "extra"),
        ({"agent": {"contract": 3}, "tasks": 5}, "benchmark"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    path = tmp_path / "m.yaml"
    write_yaml(path, values)
    with pytest.raises(ValueError, match=said):
        load_manifest(path)


def test_preflight_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIZ_KEY", raising=False)
    with pytest.raises(ValueError, match="needs QUIZ_KEY"):
        preflight(Manifest.model_validate(EARLIER), tmp_path, "m")
    monkeypatch.setenv("QUIZ_KEY", "there")
    preflight(Manifest.model_validate(EARLIER), tmp_path, "m")
    with pytest.raises(ValueError, match="final_output"):
        preflight(Manifest.model_validate(changed(agent__final_output=None)), tmp_path, "m")
    pinned = changed(agent__bundle={"file": "a.zip", "sha256": "a" * 64})
    with pytest.raises(ValueError, match=r"a\.zip does not exist"):
        preflight(Manifest.model_validate(pinned), tmp_path, "m")


def test_the_fingerprint_is_of_the_tasks() -> None:
    one = Manifest.model_validate(VALUES).fingerprint()
    assert Manifest.model_validate(changed(tasks=VALUES["tasks"][::-1])).fingerprint() == one
    asked = [{**VALUES["tasks"][0], "question": "else?"}, VALUES["tasks"][1]]
    assert Manifest.model_validate(changed(tasks=asked)).fingerprint() != one


def test_installing_takes_the_bundle_along(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "a.py").write_text("")
    bundle = pack_bundle(tmp_path / "agent", "agent")
    (tmp_path / "mine.zip").write_bytes(bundle.content)
    values = changed(agent__bundle={"file": "mine.zip", "sha256": bundle.sha256})
    shop = tmp_path / "benchmarks"
    path = manifest.install_manifest(Manifest.model_validate(values), tmp_path, shop)
    assert path == shop / "quiz.manifest.yaml"
    installed = manifest.load_installed("quiz", shop)
    assert installed is not None and installed.bundle(shop) == bundle
    assert [one.benchmark for one in manifest.list_installed(shop)] == ["quiz"]
    assert manifest.load_installed("other", shop) is None
    with pytest.raises(ValueError, match="no benchmark's name"):
        manifest.load_installed("../quiz", shop)
    (tmp_path / "mine.zip").write_bytes(bundle.content + b"x")
    with pytest.raises(ValueError, match=r"pinned|no zip"):
        manifest.install_manifest(Manifest.model_validate(values), tmp_path, shop)


def test_pins_that_differ_are_told() -> None:
    old = Manifest.model_validate(VALUES)
    assert manifest.pin_diff(old, Manifest.model_validate(VALUES)) == []
    new = Manifest.model_validate(changed(agent__run_cmd="b {problem_statement_path}", versions__service="3"))
    assert manifest.pin_diff(old, new) == [
        "agent.run_cmd: agent {model} {problem_statement_path} → b {problem_statement_path}",
        "versions.service: 2 → 3",
    ]
    assert "a" * 13 not in "".join(
        manifest.pin_diff(old, Manifest.model_validate(changed(tasks=VALUES["tasks"][:1])))
    )
