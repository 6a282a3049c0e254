"""Experiments: variants, matrix, baseline and drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.errors import UsageError
from valkyrie.specs.experiment import plan_experiment, read_experiment
from valkyrie.specs.model import SpecError
from valkyrie.specs.reader import read_spec

EVAL = """
name: {name}
config: {{runs: 2, model: usual}}
stimuli:
  - name: one
    prompt: Do it.
    environment: {{skills: [own]}}
    graders: [{{type: completed}}]
"""
SKILLED = """
name: with-and-without
evals: ["tests/*/!(agent.*)/eval.yaml", "none/*.yaml"]
overrides: {model: pinned, judge_model: judge}
vary: [/environment/skills]
baseline: bare
execution: {workers: 3}
variants:
  bare:
    environment: {skills: []}
  skilled:
    description: The one skill
    environment:
      skills: ["plugins/${eval.grandparent}/skills/${eval.parent}"]
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    for name in ("wood/sawing", "wood/agent.x", "metal/filing"):
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True)
        (folder / "eval.yaml").write_text(EVAL.format(name=folder.name))
    return tmp_path


def write(lab: Path, text: str) -> Path:
    file = lab / "lab.experiment.yaml"
    file.write_text(text)
    return file


def test_every_eval_under_every_variant(lab: Path) -> None:
    experiment = read_experiment(write(lab, SKILLED))
    assert (experiment.name, experiment.baseline, experiment.workers) == ("with-and-without", "bare", 3)
    plans = plan_experiment(experiment)
    assert [(plan.eval_file.parent.name, plan.variant, plan.is_baseline) for plan in plans] == [
        ("filing", "bare", True),
        ("filing", "skilled", False),
        ("sawing", "bare", True),
        ("sawing", "skilled", False),
    ]
    bare, skilled = plans[2:]
    spec = read_spec(skilled.eval_file, patch=skilled.patch).spec
    assert (spec.defaults.model, spec.defaults.judge_model, spec.defaults.runs) == ("pinned", "judge", 2)
    assert [ref.folder for ref in spec.stimuli[0].environment.skills or ()] == [
        lab / "plugins" / "wood" / "skills" / "sawing"
    ]
    assert read_spec(bare.eval_file, patch=bare.patch).spec.stimuli[0].environment.skills == ()
    assert bare.eval_hash == skilled.eval_hash
    assert bare.config_hash != skilled.config_hash
    assert skilled.record() == {
        "name": "with-and-without",
        "variant": "skilled",
        "baseline": False,
        "evalFile": "tests/wood/sawing/eval.yaml",
        "evalHash": skilled.eval_hash,
        "configHash": skilled.config_hash,
    }


def test_hashes_are_the_same_every_time(lab: Path) -> None:
    file = write(lab, SKILLED)
    first, second = (plan_experiment(read_experiment(file)) for _ in range(2))
    assert first == second


def test_only_some_variants(lab: Path) -> None:
    experiment = read_experiment(write(lab, SKILLED))
    assert {plan.variant for plan in plan_experiment(experiment, only=("skilled",))} == {"skilled"}
    with pytest.raises(UsageError, match="Did you mean 'skilled'"):
        plan_experiment(experiment, only=("skiled",))


def test_a_matrix_crosses_its_axes(lab: Path) -> None:
    experiment = read_experiment(
        write(
            lab,
            """
name: crossed
evals: tests/wood/sawing
overrides: {runs: 7}
baseline: {model: a/1, tools: [x]}
matrix:
  model: {path: /defaults/model, values: [a/1, b]}
  tools: {path: /environment/skills, values: [[x], []]}
""",
        )
    )
    assert list(experiment.variants) == [
        "model=a-1,tools=1",
        "model=a-1,tools=2",
        "model=b,tools=1",
        "model=b,tools=2",
    ]
    assert experiment.baseline == "model=a-1,tools=1"
    assert experiment.vary == ("/defaults/model", "/environment/skills")
    plans = plan_experiment(experiment)
    last = read_spec(plans[-1].eval_file, patch=plans[-1].patch).spec
    assert (last.defaults.model, last.defaults.runs) == ("b", 7)
    assert last.stimuli[0].environment.skills == ()


@pytest.mark.parametrize(
    ("variants", "vary", "pointer", "values"),
    [
        ("{a: {defaults: {model: x}}, b: {}}", "[]", "/defaults/model", '"x" and "usual"'),
        ("{a: {overrides: {runs: 3}}, b: {}}", "[/defaults/model]", "/defaults/runs", "3 and 2"),
        (
            "{a: {environment: {commands: [ls]}}, b: {}}",
            "[/environment/skills]",
            "/environment/commands",
            "nothing",
        ),
        (
            "{a: {scoring: {threshold: 1}}, b: {scoring: {threshold: 0.5}}}",
            "[]",
            "/scoring/threshold",
            "1 and 0.5",
        ),
    ],
)
def test_drift_is_refused_with_its_pointer_and_values(
    lab: Path, variants: str, vary: str, pointer: str, values: str
) -> None:
    text = f"name: d\nevals: [tests/wood/sawing/eval.yaml]\nvary: {vary}\nvariants: {variants}\n"
    with pytest.raises(SpecError) as caught:
        plan_experiment(read_experiment(write(lab, text)))
    (finding,) = caught.value.findings
    assert finding.code == "drift"
    assert f"differ at {pointer} of" in finding.message
    assert values in finding.message


def test_what_comes_to_the_same_is_no_drift(lab: Path) -> None:
    variants = "{a: {defaults: {runs: 2}}, b: {config: {model: usual}}}"
    text = f"name: d\nevals: [tests/wood/*/eval.yaml]\nvariants: {variants}"
    assert len(plan_experiment(read_experiment(write(lab, text)))) == 4


def test_a_variant_that_replaces_skills_with_the_same_ones_is_drift_all_the_same(lab: Path) -> None:
    file = lab / "tests" / "wood" / "sawing" / "eval.yaml"
    file.write_text("environment: {skills: [s]}" + EVAL.format(name="x"))
    text = f"name: d\nevals: {file}\nvariants: {{a: {{environment: {{skills: [s]}}}}, b: {{}}}}"
    with pytest.raises(SpecError, match="/environment/skills"):
        plan_experiment(read_experiment(write(lab, text)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- a", "must be a map"),
        ("evals: [a]\nvariants: {a: {}}", "no `name`"),
        ("name: a\nvariants: {a: {}}", "needs `evals`"),
        ("name: a\nevals: [a]", "either `variants` or `matrix`"),
        (
            "name: a\nevals: [a]\nvariants: {a: {}}\nmatrix: {m: {path: /defaults/model, values: [1]}}",
            "either",
        ),
        ("name: a\nevals: [a]\nvariants: {}", "names none"),
        ("name: a\nevals: [a]\nvariants: {../x: {}}", "folder's name"),
        ("name: a\nevals: [a]\nvariants: {a: {}}\nvary: [defaults]", "no JSON Pointer"),
        ("name: a\nevals: [a]\nvariants: {a: {}}\nvary: [/default/model]", "Did you mean 'defaults'"),
        ("name: a\nevals: [a]\nvariants: {base: {}}\nbaseline: bas", "Did you mean 'base'"),
        (
            "name: a\nevals: [a]\nvary: [/defaults]\nmatrix: {m: {path: /defaults/model, values: [1]}}",
            "take it out",
        ),
        ("name: a\nevals: [a]\nmatrix: {m: {path: /defaults/model, values: []}}", "needs `values`"),
        ("name: a\nevals: [a]\nmatrix: {m: {values: [1]}}", "no `path`"),
        (
            "name: a\nevals: [a]\nmatrix: {m: {path: /defaults/model, values: [1, 2]}}\nbaseline: {}",
            "2 variants",
        ),
        ("name: a\nevals: [a]\nvariants: {a: {}}\nexecution: {workers: 0}", "1 or more"),
    ],
)
def test_faults_of_an_experiment_file(lab: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("'", ".")):
        read_experiment(write(lab, text))


def test_evals_that_match_nothing_at_all(lab: Path) -> None:
    experiment = read_experiment(write(lab, "name: a\nevals: [x/*.yaml, y]\nvariants: {a: {}}"))
    with pytest.raises(SpecError, match=r"x/\*\.yaml, y"):
        plan_experiment(experiment)


def test_an_unknown_template_is_refused(lab: Path) -> None:
    variants = "{a: {environment: {skills: ['${eval.parnt}']}}}"
    text = f"name: a\nevals: [tests/wood/sawing]\nvary: [/environment]\nvariants: {variants}"
    with pytest.raises(SpecError, match=r"Did you mean 'parent'"):
        plan_experiment(read_experiment(write(lab, text)))


def test_unknown_keys_are_warned_of(lab: Path) -> None:
    text = (
        "name: a\nevals: [a]\nvariants: {a: {enviroment: {}}}\nfilter: {tier: smoke}\noverrides: {modle: x}"
    )
    found = read_experiment(write(lab, text)).findings
    assert [finding.code for finding in found] == ["unknown-key", "unknown-key", "ignored-key"]


def test_a_setting_beside_overrides_is_told_where_it_belongs(lab: Path) -> None:
    text = "name: a\nevals: [a]\nvariants: {a: {executor: mock}}"
    [found] = read_experiment(write(lab, text)).findings
    assert "`executor` is ignored. It belongs under `overrides`." in found.message
