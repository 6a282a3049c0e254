"""Values arrive as one literal word, judged by real bash."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark_runner.agent_bundle.placeholders import placeholder_names, substitute
from benchmark_runner.errors import ContractValidationError

# Each prints its arguments (or body) as `<…>`; VALUE must come out exactly once, whole.
CONTEXTS = {
    "bare": "p {x}",
    "bare, glued": "p pre{x}post",
    "bare before a redirection": "p {x}>&1",
    "assignment": 'v={x}; p "$v"',
    "single": "p '{x}'",
    "single, glued": "p 'a b {x}'c",
    "single after backslash": "p '\\{x}'",
    "double": 'p "{x}"',
    "double, glued": 'p "it\'s $unset{x}\\""',
    "ansi": "p $'a\\'\\x4{x}'",
    "locale string": 'p $"{x}"',
    "substitution": 'p "$(q {x})"',
    "substitution, double inside double": 'p "$(q "{x}")"',
    "substitution, single inside double": "p \"$(q '{x}')\"",
    "nested substitutions": 'p "$(q "$(q "{x}")")"',
    "substitution that is a subshell": 'p "$( (q {x}) )"',
    "two parentheses that are no arithmetic": 'p "$((q {x}); (true))"',
    "case in substitution": 'p "$(case a in (b) q no;; a) q {x};; esac)"',
    "case, then double": 'p "$(case a in a) q "" ;; esac){x}"',
    "backticks": 'v=`q {x}`; p "$v"',
    "backticks, single": "v=`q '{x}'`; p \"$v\"",
    "backticks, double": 'v=`q "{x}"`; p "$v"',
    "backticks in double": 'p "`q {x}`"',
    "backticks, double in double": 'p "`q "{x}"`"',
    "backticks, escaped double in double": 'p "`q \\"{x}\\"`"',
    "backticks in backticks": 'v=`q "\\`q {x}\\`"`; p "$v"',
    "backticks, double in single": "v=`q '\"'{x}'\"'`; p \"$v\"",
    "process substitution": 'IFS= read -rd "" v < <(q {x}); p "$v"',
    "here-string": 'IFS= read -rd "" v <<< {x}; p "${v%?}"',
    "here-document": 'IFS= read -rd "" v <<EOF\n{x}\nEOF\np "${v%?}"',
    "here-document, tabs stripped": 'IFS= read -rd "" v <<-EOF\n\t{x}\n\tEOF\np "${v%?}"',
    "here-document in substitution": 'p "$(cat <<EOF\n{x}.\nEOF\n)"',
    "after a here-document": "cat >/dev/null <<'E' ; p {x}\nit's \" `\nE\ntrue",
    "after a here-document's body": 'cat >/dev/null <<E\nit\'s "\nE\np "{x}"',
    "default value": "p ${unset:-{x}}",
    "default value, double": 'p ${unset:-"{x}"}',
    "substitution in a default value": 'p "${unset:-$(q {x})}"',
    "after a parameter in double": 'p "${unset:-"}"}{x}"',
    "pattern": 'v={x}z; p "${v%z}"',
    "after a comment": "true # don't \"\np {x}",
    "hash that is no comment": "true a#'b\np c#' ${#unset} $# >/dev/null; p {x}",
    "escaped quotes": "p \\'\\\"{x}",
    "array": 'a=( {x} ); p "${a[0]}"',
    "function": 'f() { p "$1"; }; f {x}',
    "test": "[[ {x} == {x} ]] && p {x}",
    "line continuation": "p \\\n{x}",
    "arithmetic before": "(( 1 << 2 )); p $(( (1) << 2 )){x}",
    "pipeline": "q {x} | { IFS= read -rd '' v; p \"$v\"; }",
    "brace expansion": "p {x}{,}",
}
PRELUDE = 'set -f; p() { printf \'<%s>\' "$@"; }; q() { printf %s "$1"; }; set --\n'
STATIC = {
    "bare, glued": "<pre{}post>",
    "single, glued": "<a b {}c>",
    "single after backslash": "<\\{}>",
    "double, glued": "<it's {}\">",
    "backticks, double in single": '<"{}">',
    "ansi": "<a'\x04{}>",
    "here-document in substitution": "<{}.>",
    "escaped quotes": "<'\"{}>",
    "arithmetic before": "<4{}>",
    "after a parameter in double": "<}{}>",
    "brace expansion": "<{}><{}>",
}

HOSTILE = [
    "",
    "plain",
    "2",
    "two words",
    "it's",
    '"',
    "'\"'\"",
    "$HOME",
    "${HOME}",
    "$(echo no)",
    "`echo no`",
    "\\",
    "\\\\",
    "a\\",
    "\n",
    "a\nb",
    "\nEOF\n",
    "EOF",
    "E",
    "\tEOF",
    "#c",
    "~",
    "*",
    "?[a]",
    "!!",
    "{x}",
    "{a,b}",
    '"{a,b}',
    "'{a,b}\"",
    "-n",
    ";exit",
    "&",
    "|",
    "$",
    "$'",
    "'",
    "''",
    "\\'",
    '"$(',
    "é ☃ 𝄞",
    "\x01\x7f",
    "a  b",
    "$()",
    "}",
    "))",
    "esac",
    "\\\n",
    "EOF\nrm",
    "<<EOF",
    "%s",
]

alphabet = st.sampled_from(list("ab '\"\\$`(){}[]<>|&;#~*?!%\n\t=-EOF1é☃")) | st.characters(
    exclude_characters="\0\r", exclude_categories=["Cs"]
)
values = st.text(alphabet, max_size=25)


def bash(script: str) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, timeout=20, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stderr == b"", (script, done.stderr)
    return done.stdout.decode()


def check(value: str) -> None:
    """One bash for all contexts: each result ends with a mark of its own."""
    parts, wanted = [], ""
    for number, (name, template) in enumerate(CONTEXTS.items()):
        strips_newlines = re.search(r"\$\(\s*\(?(q|case)|`", template)
        given_value = value.rstrip("\n") if strips_newlines else value
        parts.append(f"{substitute(template, {'x': given_value})}\nprintf '\\001{number}\\001'\n")
        wanted += STATIC.get(name, "<{}>").replace("{}", given_value) + f"\x01{number}\x01"
    assert bash(PRELUDE + "".join(parts)) == wanted


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_arrive_whole_in_every_context(value: str) -> None:
    check(value)


@settings(max_examples=50)
@given(values)
def test_any_value_arrives_whole_in_every_context(value: str) -> None:
    check(value)


@settings(max_examples=60)
@given(values, st.sampled_from(["A", "EOF", "END_1"]))
def test_raw_heredoc_takes_the_value_or_refuses_it(value: str, delimiter: str) -> None:
    script = f"cat <<'{delimiter}'\n{{x}}\n{delimiter}\nprintf end"
    try:
        filled = substitute(script, {"x": value})
    except ContractValidationError as error:
        assert "here-document" in str(error)
        assert any(line and line in delimiter for line in value.split("\n"))
    else:
        assert bash(filled) == f"{value}\nend"


@pytest.mark.parametrize(
    "script",
    [
        "echo ${x} '${x}' \"${x}\"",
        "awk '{print $1}' f; echo {a,b} {1..3} {unknown}",
        'echo \\{x} "\\{x}"',
        "true # {x}",
        "cat <<{x}\n{y}\n{x}",
        "find . -exec echo {} \\;",
    ],
)
def test_what_is_no_placeholder_stays_as_it_is(script: str) -> None:
    assert substitute(script, {"x": "VALUE"}) == script


def test_untouched_text_is_kept_byte_for_byte() -> None:
    script = 'a  `b \\`c\\` {x}` \t"d" # {x} \'e\n'
    assert substitute(script, {"x": "V"}) == script.replace("{x}`", "$'V'`", 1)


@pytest.mark.parametrize(
    "script",
    [
        "echo $(( {x} + 1 ))",
        "for ((i=0;i<{x};i++)); do :; done",
        "echo $[{x}]",
        'echo "${a[{x}]}"',
        'echo "${a:{x}:1}"',
        'echo $(( "{x}" ))',
    ],
)
def test_arithmetic_takes_integers_only(script: str) -> None:
    assert "5" in substitute(script, {"x": "5"})
    with pytest.raises(ContractValidationError, match="arithmetic"):
        substitute(script, {"x": "a[$(touch /tmp/owned)]"})


def test_commands_within_arithmetic_are_quoted_again() -> None:
    assert bash(substitute("echo $(( $(echo {x} | wc -c) + 1 ))", {"x": "a;b"})).strip() == "5"


@pytest.mark.parametrize(
    ("script", "value", "says"),
    [
        ("echo {x}", "a\0b", "NUL"),
        ("echo {x}", "\ud800", "surrogate"),
        ("echo \"${u:-'{x}'}\"", "v", "assign it first"),
        ('echo "${u:-{x}}"', "v", "assign it first"),
        ('echo "${u-"{x}"}"', "v", "assign it first"),
        ("cat <<E\n${u:-{x}}\nE", "v", "assign it first"),
        ("echo `echo '\\{x}'`", "v", "backticks"),
        ("echo `cat <<E\n{x}\nE`", "v", "backticks"),
        ("cat <<-'E'\n{x}\nE", "\ttab", "tabs"),
    ],
)
def test_what_cannot_be_quoted_is_refused(script: str, value: str, says: str) -> None:
    with pytest.raises(ContractValidationError, match=says):
        substitute(script, {"x": value})


def test_all_values_go_in_at_once() -> None:
    assert substitute("echo {a} {b}", {"a": "{b}", "b": "{a}"}) == "echo '{b}' '{a}'"


@pytest.mark.parametrize("part", ["$((", "$(", '"$(', "${x:-", "((a ", "`$((", "$(( $(( 1 ) "])
def test_nesting_beyond_reason_is_refused_quickly(part: str) -> None:
    try:
        substitute(part * 3000 + "{x}", {"x": "1"})
    except ContractValidationError as error:
        assert (
            "nested" in str(error) or "((" in str(error) or "arithmetic" in str(error) or "${" in str(error)
        )


def test_names_used() -> None:
    assert placeholder_names("run {a} '${b}' # {c}\n\"{d}\"", ["a", "b", "c", "d", "e"]) == {"a", "d"}


NOISE = [
    "",
    ": 'it\"s' # don't \"",
    ': "it\'s $(( (1) << 2 ))"',
    ": <<'E'\nit's `\nE",
    ": <<-E\n\t\"$(q ')')\n\tE",
    ": \"`q '\\`'`\"",
    ": $'it\\'s' a#b",
    ': "${unset:-"}"}" ${#unset} $#',
    "case a in b|c) ;; (a) : ')' ;; esac",
    'f() { q "$1"; }',
    "(( 3 > 2 )) && :",
    ": \\' \\\" \\`",
    ": $((q x); (q y))",
    "if true; then case x in esac; fi",
    ": ${unset:-')'}",
    "a=(case b); for case in a; do :; done",
    ": <(q ')')",
    "[[ a =~ ^(a|b)$ ]]",
    ": \\\n #\\",
]
WRAPS = [
    '"$(q E)"',
    '"$( (q E) )"',
    '"$(N\nq E)"',
    '"$(case a in a) q E ;; esac)"',
    '"$(q E # )\'\n)"',
    '"`q E`"',
    '"$(cat <(q E))"',
    '"$(if :; then case b in a) ;; *) q E; esac; fi)"',
    '"$({ q E; })"',
    '"$(! q E)"',
    '"$(v=E; q "$v")"',
    '""E',
    "''E",
    '"${unset:-$(q E)}"',
    '"$(f E)"',
    "$(q E)",
]


@settings(max_examples=100)
@given(
    st.sampled_from(["{x}", "'{x}'", '"{x}"', "$'{x}'"]),
    st.lists(st.sampled_from(WRAPS), max_size=4),
    st.lists(st.sampled_from(NOISE), max_size=4),
    st.sampled_from(NOISE),
    values,
)
def test_contexts_within_contexts(
    word: str, wraps: list[str], noise: list[str], inner: str, value: str
) -> None:
    value = value.rstrip("\n")
    for wrap in wraps:
        if "`" in wrap and ("`" in word or "\\" in word or "\n" in word or "$'" in word):
            continue
        word = wrap.replace("N", "true" if "<<" in inner or "f()" in inner else inner).replace("E", word)
    script = "\n".join(['f() { q "$1"; }; IFS=', *noise, f"q {word}"])
    plain = bash(PRELUDE + script.replace("{x}", "VALUE"))
    assert bash(PRELUDE + substitute(script, {"x": value})) == plain.replace("VALUE", value)


@settings(max_examples=300)
@given(st.text(st.sampled_from(list("{x}'\"`$()\\#<E \n;[]case")), max_size=40))
def test_no_script_makes_the_scanner_fail(script: str) -> None:
    try:
        substitute(script, {"x": "5"})
    except ContractValidationError:
        pass
