"""What an agent says it cost, and everything a hostile one may say instead."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from valkyrie.trial.outputs import MOST_BYTES, Reported, reported_metrics


def archive(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(folder / "agent_output.tar.gz", "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))


def member(name: str, content: bytes | str) -> tuple[tarfile.TarInfo, bytes]:
    raw = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.size = len(raw)
    return info, raw


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def artifact(folder: Path, text: str) -> None:
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "metrics.json").write_text(text)


def heard(folder: Path) -> tuple[float | None, list[str]]:
    notes: list[str] = []
    return reported_metrics(folder, notes.append).cost, notes


def test_an_agent_that_says_nothing_costs_nothing_known(tmp_path: Path) -> None:
    assert heard(tmp_path) == (None, [])
    archive(tmp_path, member("logs/metrics.json", '{"cost": 9}'), member("other.json", '{"cost": 9}'))
    assert heard(tmp_path) == (None, [])


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ({"cost": {"total": 1.23, "input": 1.0}, "tokens": {"input": 4}, "turns": 3}, 1.23),
        ({"cost": 2}, 2.0),
        ({"total_cost_usd": 0.5}, 0.5),
        ({"cost": {"input": 1}, "total_cost_usd": 0.25}, 0.25),
        ({"cost": 0}, 0.0),
    ],
)
def test_every_shape_is_read_from_both_places(tmp_path: Path, said: object, cost: float) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    archive(one, member("agent.log", "hello"), member("metrics.json", json.dumps(said)))
    artifact(other, json.dumps(said))
    assert heard(one) == heard(other) == (cost, [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"cost": {"total": NaN}}', "between 0 and"),
        ('{"cost": Infinity}', "between 0 and"),
        ('{"cost": -0.01}', "between 0 and"),
        ('{"cost": 1e300}', "between 0 and"),
        (f'{{"cost": 1{"0" * 400}}}', "between 0 and"),
        (f'{{"cost": 1{"0" * 5000}}}', "not JSON"),
        ('{"cost": true}', "not a number"),
        ('{"cost": "1.23"}', "not a number"),
        ('{"cost": {"total": {"total": 1}}}', "not a number"),
        ('{"cost": {}}', "names neither"),
        ("[1.23]", "not a JSON object"),
        ("", "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_no_cost_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    archive(tmp_path, member("metrics.json", text.encode("utf-8", "surrogateescape")))
    cost, notes = heard(tmp_path)
    assert cost is None
    assert len(notes) == 1 and why in notes[0] and "agent_output/metrics.json" in notes[0]


def test_an_unusable_one_does_not_hide_the_other(tmp_path: Path) -> None:
    archive(tmp_path, member("metrics.json", "nonsense"))
    artifact(tmp_path, '{"cost": 4}')
    cost, notes = heard(tmp_path)
    assert cost == 4.0 and len(notes) == 1


def test_large_files_are_not_read(tmp_path: Path) -> None:
    text = '{"cost": 1, "x": "' + "x" * MOST_BYTES + '"}'
    archive(tmp_path, member("metrics.json", text))
    artifact(tmp_path, text)
    cost, notes = heard(tmp_path)
    assert cost is None and ["larger than 1 MiB" in note for note in notes] == [True, True]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_no_file_is_not_followed(tmp_path: Path, kind: bytes) -> None:
    archive(tmp_path, member("real.json", '{"cost": 5}'), link("metrics.json", "real.json", kind))
    cost, notes = heard(tmp_path)
    assert cost is None and "not a plain file" in notes[0]


def test_links_and_pipes_among_artifacts_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"cost": 5}')
    (tmp_path / "artifacts").mkdir()
    place = tmp_path / "artifacts" / "metrics.json"
    place.symlink_to(tmp_path / "secret.json")
    assert heard(tmp_path)[0] is None
    place.unlink()
    os.mkfifo(place)
    cost, notes = heard(tmp_path)
    assert cost is None and "not a plain file" in notes[0]


def test_a_damaged_archive_is_a_note(tmp_path: Path) -> None:
    archive(tmp_path, member("metrics.json", '{"cost": 5}'))
    whole = (tmp_path / "agent_output.tar.gz").read_bytes()
    (tmp_path / "agent_output.tar.gz").write_bytes(whole[: len(whole) // 2])
    cost, notes = heard(tmp_path)
    assert cost is None and len(notes) == 1
    (tmp_path / "agent_output.tar.gz").write_bytes(b"not an archive")
    assert heard(tmp_path)[0] is None


def test_an_archive_that_swells_is_left(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a-bomb")
    info.size = 10**12
    with tarfile.open(tmp_path / "agent_output.tar.gz", "w:gz") as tar:
        tar.fileobj.write(info.tobuf())  # type: ignore[union-attr]
    cost, notes = heard(tmp_path)
    assert cost is None and "larger than one of ours" in notes[0]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"cost": {"total": 1.5}, "tokens": {"input": 51000, "output": 4200}}, (1.5, (51000, 0, 4200))),
        ({"tokens": {"input": 10, "cached": 99, "output": 0}}, (None, (10, 10, 0))),
        ({"tokens": {"output": 7}}, (None, (0, 0, 7))),
        ({"cost": 1, "tokens": {}}, (1.0, None)),
        ({"cost": 1, "tokens": [1]}, (1.0, None)),
        ({"cost": 1, "tokens": {"input": -1}}, (1.0, None)),
        ({"cost": 1, "tokens": {"input": 1e9}}, (1.0, None)),
        ({"cost": 1, "tokens": {"input": True}}, (1.0, None)),
        ({"cost": 1, "tokens": {"input": 10**30}}, (1.0, None)),
    ],
)
def test_tokens_are_taken(tmp_path: Path, said: object, wanted: tuple[object, object]) -> None:
    artifact(tmp_path, json.dumps(said))
    notes: list[str] = []
    found = reported_metrics(tmp_path, notes.append)
    tokens = found.tokens and (
        found.tokens.input_tokens,
        found.tokens.cached_tokens,
        found.tokens.output_tokens,
    )
    assert (found.cost, tokens) == wanted
    odd = {"-1", "1000000000.0", "true", str(10**30)}
    assert bool(notes) == any(word in json.dumps(said) for word in odd)


def test_silence_is_nothing_reported(tmp_path: Path) -> None:
    assert reported_metrics(tmp_path) == Reported()
