"""The reason of a verdict is kept: one line, without secrets, whatever an agent made its tests print."""

from __future__ import annotations

from sandboxes.masker import Masker
from valkyrie.domain import Grade
from valkyrie.trial.verification import LONGEST_REASON, _with_reason


def kept(reason: str | None, *, passed: bool = False, masker: Masker | None = None) -> object:
    grade = Grade(float(passed), passed, evidence={"mode": "fresh"}, reason=reason)
    return _with_reason(grade, masker).evidence.get("reason")


def test_a_reason_is_one_short_line_without_secrets_and_escapes() -> None:
    masker = Masker(["hunter2-hunter2"])
    said = kept("\x1b[31mFAIL\x1b[0m hunter2-hunter2\n::error::\0\ud800 end", masker=masker)
    assert isinstance(said, str) and "hunter2" not in said and said.startswith("FAIL ")
    assert said.isprintable() and said.encode() and "\n" not in said
    assert len(str(kept("x" * 10_000))) == LONGEST_REASON


def test_a_pass_and_silence_have_none() -> None:
    assert kept("all good", passed=True) is None
    assert kept(None) is None and kept("\x1b[0m") is None
