"""Accounts that are too large to be kept whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.benchmarks.eval_spec.transcript import _left_behind
from valkyrie.trajectory.records import read_accounts
from valkyrie.trajectory.transcript import is_cut, is_too_large, mend_cut

STEPS = [
    {"step_id": number, "source": "agent", "message": f'step "{number}" ]}}, \\ é'} for number in range(1, 6)
]
WHOLE = {
    "schema_version": "ATIF-v1.4",
    "session_id": "s",
    "agent": {"name": "a", "version": "1"},
    "steps": STEPS,
    "final_metrics": {"total_steps": 5},
}


def cut(folder: Path, text: str, at: int, name: str = "trajectory.json") -> Path:
    (folder / "agent").mkdir(exist_ok=True)
    file = folder / "agent" / name
    file.write_bytes(text.encode()[:at])
    return file


def test_whole_steps_stay_and_the_last_says_what_is_gone(tmp_path: Path) -> None:
    text = json.dumps(WHOLE, indent=1, ensure_ascii=False)
    file = cut(tmp_path, text, text.encode().index(b'"step_id": 4') + 30)
    assert mend_cut(file, 32 << 20) == 3
    [account] = read_accounts(tmp_path)
    assert account.problem is None and account.trajectory is not None
    assert [step.message for step in account.trajectory.steps][:3] == [one["message"] for one in STEPS[:3]]
    last = account.trajectory.steps[-1]
    assert (last.source, last.message) == (
        "system",
        "The account is larger than 32 MiB: what follows step 3 is not kept.",
    )
    assert account.trajectory.to_json()["extra"]["cut"] == last.message


def test_graders_are_not_shown_the_beginning_as_if_it_were_all(tmp_path: Path) -> None:
    """Padding its account hides nothing an agent does later."""
    text = json.dumps(WHOLE)
    file = cut(tmp_path, text, text.index("step_id", text.index("step_id") + 9) + 5)
    assert mend_cut(file, 1 << 20) == 1
    found = _left_behind(tmp_path / "agent", [])
    assert found is not None and (found.output, found.measures.error_count) == ("", 1)
    assert "only its beginning was kept" in str(found.events[0].data["message"])


@pytest.mark.parametrize("name", ["trajectory.json", "transcript.json"])
@given(st.data())
def test_whatever_is_cut_can_be_read_and_is_marked(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    whole = WHOLE if name == "trajectory.json" else {"id": "x", "events": [{"type": "a", "data": {}}] * 4}
    text = json.dumps(whole, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text.encode()) - 1))
    file = cut(tmp_path_factory.mktemp("cut"), text, at, name)
    kept = mend_cut(file, 1 << 20)
    found = json.loads(file.read_text())
    assert kept is not None and is_cut(found)
    items = found["steps" if name == "trajectory.json" else "events"]
    assert len(items) == kept + 1 and items[:-1] == list(whole.values())[3 if "steps" in whole else 1][:kept]


def test_a_whole_account_is_left_alone_and_nonsense_is_marked(tmp_path: Path) -> None:
    text = json.dumps(WHOLE)
    assert mend_cut(cut(tmp_path, text, len(text)), 1 << 20) is None
    for nonsense in ("", "[" * 100_000, '{"steps": 1', '{"a": ' + "[" * 100_000, "\x00"):
        file = cut(tmp_path, nonsense, len(nonsense))
        assert mend_cut(file, 1 << 20) == 0 and is_cut(json.loads(file.read_text()))


def test_an_account_too_large_to_read_is_an_error_and_not_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_TRAJECTORY_MAX_MB", "32")
    file = cut(tmp_path, "{}", 2)
    with file.open("r+b") as opened:
        opened.truncate((64 << 20) + 1)  # a hole: nothing is written
    found = _left_behind(tmp_path / "agent", [])
    assert found is not None and found.measures.error_count == 1
    assert "trajectory_max_mb" in str(found.events[0].data["message"])
    [account] = read_accounts(tmp_path)
    assert account.trajectory is None and "raise trajectory_max_mb" in (account.problem or "")
    assert is_too_large(file.stat().st_size)
    monkeypatch.setenv("VALKYRIE_TRAJECTORY_MAX_MB", "33")
    assert not is_too_large(file.stat().st_size)
