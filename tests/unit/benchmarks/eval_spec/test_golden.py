"""A stimulus's golden patch, for those graders that compare with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.benchmarks.eval_spec.source import all_needs
from valkyrie.benchmarks.eval_spec.transcript import patch_to_show
from valkyrie.errors import BenchmarkError
from valkyrie.grade.graders import make_graders
from valkyrie.specs.model import Stimulus
from valkyrie.specs.reader import read_text

SPEC = """\
name: planks
stimuli:
  - name: saw
    prompt: Saw it.
    golden_patch: {{path: good.patch}}
    graders:
      - {grader}
"""


def shown(folder: Path, grader: str) -> str | None:
    spec = read_text(SPEC.format(grader=grader), folder / "eval.yaml").spec
    one: Stimulus = spec.stimuli[0]
    return patch_to_show(one, all_needs(make_graders(one, scoring=spec.scoring, base=folder)))


@pytest.mark.parametrize(
    "grader",
    [
        "{type: output-contains, config: {substring: a}}",
        "{type: expected-diff, config: {patch: own}}",
        "{type: prompt, config: {prompt: Is it good?}}",
    ],
)
def test_a_file_nobody_compares_with_need_not_be_there(tmp_path: Path, grader: str) -> None:
    assert shown(tmp_path, grader) is None


@pytest.mark.parametrize(
    "grader",
    [
        "{type: expected-diff}",
        "{type: prompt, config: {prompt: Is it good?, evidence: [golden_patch]}}",
    ],
)
def test_it_is_read_for_who_compares_with_it(tmp_path: Path, grader: str) -> None:
    with pytest.raises(BenchmarkError, match=r"good\.patch cannot be read"):
        shown(tmp_path, grader)
    (tmp_path / "good.patch").write_text("--- a/x\n")
    assert shown(tmp_path, grader) == "--- a/x\n"
