"""What a Markdown text points to."""

from __future__ import annotations

import pytest

from valkyrie.evals.lint.skills import addresses, references


def targets(text: str) -> list[str]:
    return [reference.target for reference in references(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see [a](references/a.md)", ["references/a.md"]),
        ("![picture](img/x.png 'title')", ["img/x.png"]),
        ("[a](<with space.md>) and [b](b.md)", ["with space.md", "b.md"]),
        ("[a][1]\n\n[1]: docs/a.md", ["docs/a.md"]),
        ("[outer [inner]](x.md)", ["x.md"]),
        ("[p](wiki_(disambiguation).md)", ["wiki_(disambiguation).md"]),
        ("```\n[no](a.md)\n```\n[yes](b.md)", ["b.md"]),
        ("~~~md\n```\n[no](a.md)\n~~~\n[yes](b.md)", ["b.md"]),
        ("````\n```\n[no](a.md)\n````\n[yes](b.md)", ["b.md"]),
        ("`[no](a.md)` and ``[no`](b.md)``", []),
        ("nothing [here] (or.md)", []),
    ],
)
def test_links_are_found_outside_code(text: str, found: list[str]) -> None:
    assert targets(text) == found


def test_a_link_knows_its_place() -> None:
    (reference,) = references("one\n\nsee `x` [a](b.md)")
    assert (reference.line, reference.column) == (3, 13)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("a.md#part", "a.md"),
        ("a%20b.md?raw=1", "a b.md"),
        ("#part", None),
        ("https://example.com/a.md", None),
        ("mailto:a@example.com", None),
        ("//example.com/a", None),
        ("/a.md", "/a.md"),
    ],
)
def test_only_paths_are_paths(target: str, path: str | None) -> None:
    (reference,) = references(f"[x](<{target}>)")
    assert reference.path == path


def test_addresses_are_found_in_code_too() -> None:
    text = "See https://example.com/a. Or:\n```\ncurl 'http://other.example/x?y=1'\n```"
    assert [found.target for found in addresses(text)] == [
        "https://example.com/a",
        "http://other.example/x?y=1",
    ]
