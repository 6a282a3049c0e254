"""JavaScript's regexes: what differs from Python's, what is refused, and how long a search may take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.errors import GraderError
from valkyrie.grade import js_regex
from valkyrie.grade.js_regex import JsRegex, RegexSyntaxError, bounded_searching, compile_js

MATCHES = [
    (r"\s", "\ufeff"),
    (r"[^\s]", "\x1c"),
    (r"\S", "\x85"),
    (r"(?i)É", "é"),
    (r"(?i)[à-ö]", "É"),
    (r"(?i)[^s]", "ſ"),
    (r"(?i)ſ", "ſ"),
    (r"(?i)[\W]", "ſ"),
    (r"[^]", "\n"),
    (r"a[^]b", "a\nb"),
    (r"\/api\/v1", "/api/v1"),
    (r"^\u{1F600}$", "😀"),
    (r"\u0041\x42", "AB"),
    (r"\cJ", "\n"),
    (r"\101\0", "A\0"),
    (r"(?<word>a+)-\k<word>", "aa-aa"),
    (r"(?<$y>a)\k<$y>", "aa"),
    (r"\k<x>", "k<x>"),
    (r"(?<=a+)b", "aab"),
    (r"(?<!a{2,3})b", "cb"),
    (r"(?:(a)|b)\1$", "b"),
    (r"^\1(a)$", "a"),
    (r"(a\1)", "a"),
    (r"\8\9", "89"),
    (r"a{,2}", "a{,2}"),
    (r"{}", "{}"),
    (r"x{e<=1}", "x{e<=1}"),
    (r"]", "]"),
    (r"[\w-z]+$", "-"),
    (r"[a&&b]", "&"),
    (r"[[a]]", "[]"),
    (r"[\b]", "\b"),
    (r"\A\Z\z\a\Q", "AZzaQ"),
    (r"\p{L}", "p{L}"),
    (r"(?i:a)b", "Ab"),
    (r"(?s)(?-s:a.)b", "axb"),
    (r"(?=a)*b", "b"),
    (r"(?m)^b$", "a\r\nb\u2028c"),
    (r"\B-\B", " - "),
]
MISSES = [
    (r"a$", "a\n"),
    (r"^b", "a\nb"),
    (r"\d", "٣"),
    (r"\w", "ñ"),
    (r"\bé", "é"),
    (r"\s", "\x1c"),
    (r".", "\u2028"),
    (r".", "\r"),
    (r"(?i)s", "ſ"),
    (r"(?i)[a-z]", "\u212a"),
    (r"(?i)i", "İ"),
    (r"(?i)\w", "ſ"),
    (r"(?i)[\W]", "s"),
    (r"[]", "a"),
    (r"\A", "a"),
    (r"(?i:a)b", "aB"),
    (r"a{,2}$", "aa"),
    (r"(?i)straße", "STRASSE"),
]
REFUSED = [
    "(",
    ")",
    "[a",
    "\\",
    "*a",
    "a**",
    "a*+",
    "a++",
    "^*",
    "$+",
    r"\b?",
    "(?<=a)*",
    "(?>a)",
    "(?P<n>a)",
    "(?#note)",
    "a(?i)b",
    "(?x)a",
    "(?ii:a)",
    "(?-:a)",
    "(?<n>a)(?<n>b)",
    r"(?<n>a)\k<m>",
    "[z-a]",
    "a{2,1}",
    "a{1}{2}",
    "a{1000000}",
    "(?<1>a)",
]


@pytest.mark.parametrize(("pattern", "text"), MATCHES)
def test_matches_as_in_javascript(pattern: str, text: str) -> None:
    assert JsRegex(pattern).search(text) is not None


@pytest.mark.parametrize(("pattern", "text"), MISSES)
def test_does_not_match_as_in_javascript(pattern: str, text: str) -> None:
    assert JsRegex(pattern).search(text) is None


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_javascript_refuses_is_refused(pattern: str) -> None:
    problem = JsRegex(pattern).problem
    assert problem is not None
    assert problem.startswith(f"invalid regex /{pattern}/: ")
    with pytest.raises(RegexSyntaxError):
        compile_js(pattern)


def test_a_search_that_takes_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(js_regex, "SEARCH_SECONDS", 0.05)
    with pytest.raises(GraderError, match="takes too long"):
        JsRegex(r"^(a|aa)+$").search("a" * 80 + "!")


def test_all_searches_of_a_grader_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(js_regex, "GRADER_SECONDS", 0.0)
    slow = JsRegex(r"^(a|aa)+$")
    with bounded_searching(), pytest.raises(GraderError, match="takes too long"):
        slow.search("a" * 80 + "!")
    with bounded_searching():
        assert slow.search("aaa") == (0, 3)


def test_patterns_have_a_length() -> None:
    assert "characters" in (JsRegex("a" * 30_000).problem or "")


LETTERS = st.text(alphabet="abcXYZ 019_-.\n{}[]()|*+?^$\\/é", max_size=12)


@given(LETTERS, LETTERS)
def test_any_text_is_a_pattern_or_refused(pattern: str, text: str) -> None:
    regex = JsRegex(pattern)
    if regex.problem is None:
        regex.search(text)


@given(LETTERS, LETTERS, LETTERS)
def test_an_escaped_text_finds_itself(before: str, text: str, after: str) -> None:
    escaped = re.sub(r"([\\^$.*+?()\[\]{}|/-])", r"\\\1", text)
    found = JsRegex(escaped).search(before + text + after)
    assert found is not None
    start, end = found
    assert (before + text + after)[start:end] == text


@given(st.from_regex(r"[a-c.*+?|]{0,6}", fullmatch=True), st.text(alphabet="abc", max_size=8))
def test_where_both_agree_python_says_the_same(pattern: str, text: str) -> None:
    if re.search(r"[*+?]\+", pattern):
        return
    try:
        python = re.compile(pattern)
    except re.error:
        assert JsRegex(pattern).problem is not None
        return
    found = python.search(text)
    assert JsRegex(pattern).search(text) == (found.span() if found else None)


@given(
    st.from_regex(r"\A\^?[ab1 _\-,:!<]{0,3}\$?\Z"),
    st.text("ab1 _-,:!<\n$^", max_size=8),
)
def test_plain_words_are_found_where_the_compiled_pattern_finds_them(pattern: str, text: str) -> None:
    found = compile_js(pattern).search(text)
    assert JsRegex(pattern).problem is None
    assert JsRegex(pattern).search(text) == (found.span() if found else None)
