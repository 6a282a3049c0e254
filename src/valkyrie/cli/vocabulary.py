"""`agent[:model]`, read: the agent ends at the first colon, unless a folder or a class has one itself."""

from __future__ import annotations

import copy
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from valkyrie import views
from valkyrie.text import did_you_mean

_CLASS = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?=:|$)")
_ELSEWHERE = ("upload:", "file:/")
"""Words for agents in which every colon is their own."""


def parse_agent(word: str) -> views.JobAgent:
    """The agent and the model a word names; ValueError says what is wrong with it."""
    name, model = _split(word)
    if not name:
        raise ValueError(f"{word!r} names no agent; it is AGENT or AGENT:MODEL.")
    if model == "":
        raise ValueError(f"{word!r} has a colon and no model after it; it is AGENT or AGENT:MODEL.")
    return views.JobAgent(name, model)


def split_agent(word: str, model: str | None) -> tuple[str, str | None]:
    """Return agent and model of `--agent WORD` and `--model`; UsageError where they name two models."""
    try:
        agent = parse_agent(word)
    except ValueError as error:
        raise click.UsageError(f"--agent {error}") from None
    if agent.model is not None and model not in (None, agent.model):
        raise click.UsageError(f"--agent {word} and --model {model} name two models: leave one out.")
    return agent.agent, agent.model or model


def with_models(agents: Sequence[views.JobAgent], model: str | None = None) -> list[views.JobAgent]:
    """Return agents with a model each: their own, else `model`; UsageError for one that needs one."""
    found = [one if one.model else replace(one, model=model) for one in agents]
    for one in found:
        if one.model is None and _needs_model(one.agent):
            raise click.UsageError(f"{one.agent} needs a model: --agent {one.agent}:MODEL")
    return found


def _split(word: str) -> tuple[str, str | None]:
    if ":" not in word or word.startswith(_ELSEWHERE):
        return word, None
    end = _path_end(word) or _class_end(word) or word.index(":")
    rest = word[end:]
    return word[:end], rest[1:] if rest else None


def _path_end(word: str) -> int | None:
    """Where a path to something that exists ends; a colon may be part of it."""
    if "/" not in word and not word.startswith((".", "~")):
        return None
    ends = [place for place, character in enumerate(word) if character == ":"]
    for end in (len(word), *reversed(ends)):
        if end and Path(word[:end]).expanduser().exists():
            return end
    return None


def _class_end(word: str) -> int | None:
    """Where `package.module:Class` ends, if there is such a package and no agent is called so."""
    from valkyrie.agents.catalog import CATALOG

    found = _CLASS.match(word)
    if found is None or word.partition(":")[0] in CATALOG:
        return None
    return found.end() if find_spec(found["package"]) is not None else None


def _needs_model(name: str) -> bool:
    from valkyrie.agents.catalog import CATALOG

    return name in CATALOG and CATALOG[name].needs_model


# The words of every command line: names that mean the same, pairs, lists, and what can be said only once.
#
# Commands show one name for each option. The names that other tools and our own other commands have for it
# work as well, and are not in the help.

SAME: tuple[tuple[str, ...], ...] = (
    ("--trials", "--n-attempts", "--runs"),
    ("--concurrency", "--n-concurrent-trials", "--workers", "--parallelism"),
    ("--task-ids", "--scenarios", "--task-id", "--scenario", "--task", "--stimulus"),
    ("--agent", "--executor", "--agent-name"),
    ("--benchmark", "--eval-spec", "--benchmark-name"),
    ("--dataset", "--dataset-name"),
    ("--provider", "--sandbox", "--backend"),
    ("--secret", "--secrets", "-s"),
    ("--env", "--env-vars", "-e"),
    ("--connect", "--follow", "-f"),
)
"""Each line: one option of our vocabulary, then what it is called elsewhere. Any of them works wherever one
of them does, unless the command means something else by it."""
ALSO: Mapping[str, tuple[str, ...]] = {"--job-name": ("--name",)}
"""Names that mean the same only where the first one is an option."""
NEAR: tuple[tuple[str, ...], ...] = (
    ("--label", "--job-name", "--name"),
    ("--pass-env", "--allow-env", "--env-passthrough"),
    ("--allow-path", "--allow-dir", "--allow-read"),
    ("--output-dir", "--path", "--output-file"),
    ("--limit", "--slice"),
)
"""What an unknown option may stand for; offered, never taken for it."""
UNSUPPORTED: Mapping[str, str] = {
    "--in-place": "Agents never work in a folder of yours: --work-dir PATH starts from it and leaves it as "
    "it is, --workspace PATH keeps what became of it.",
    "--backend": "Nothing is run in a sandbox here; `valk eval --provider NAME` chooses where programs run.",
    "--backend-args": "A sandbox is set up by `valk config provider set`, and chosen with --provider NAME.",
}
"""Options of other tools that no option here stands for: why not, and the way out."""
LISTS = frozenset({"--task-ids", "--scenarios", "--env-vars", "--secrets", "--metadata"})
"""Options of several words: `--task-ids a b c` goes on up to the next flag."""
INSTEAD: Mapping[tuple[str, str], str] = {
    ("run start", "--agent"): "`valk job start --agent A --agent B` compares agents.",
    ("run start", "--benchmark"): "`valk job start --benchmark A --benchmark B` runs on several.",
    ("run start", "--model"): "`valk job start --agent NAME:MODEL_A --agent NAME:MODEL_B` compares models.",
    ("eval", "--model"): "`--model A,B` runs every spec with each of them.",
}
"""By command and option: how to say what someone meant who said it twice."""


_BETWEEN = "\0"
"""No word of a command line has it."""


class WordsOption(click.Option):
    """An option that takes many words: `--opt a b c`, `--opt a --opt b`, `--opt=a`.

    Only the names in LISTS go on up to the next flag; `--` ends them too, so that arguments can follow.
    """

    def __init__(self, *names: Any, **attrs: Any) -> None:
        super().__init__(*names, **{**attrs, "multiple": True})


class Pairs(WordsOption):
    """An option that takes `KEY=VALUE` or `KEY VALUE`, as often as it is given; its value is a mapping."""

    def __init__(self, *names: Any, **attrs: Any) -> None:
        super().__init__(*names, **{"callback": mapping, **attrs})


class AgentPairs(WordsOption):
    """An option that takes `AGENT KEY=VALUE` or `AGENT KEY VALUE`; its value is a list of the three."""

    def __init__(self, *names: Any, **attrs: Any) -> None:
        super().__init__(*names, **{"callback": _with_agent, **attrs})


def _with_agent(
    ctx: click.Context, param: click.Parameter, value: Sequence[str]
) -> list[tuple[str, str, str]]:
    found = []
    for word in value:
        agent, _, pair = word.partition(_BETWEEN)
        for key, content in mapping(ctx, param, [pair]).items():
            found.append((agent, key, content))
    return found


def mapping(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, str]:
    """Return words `KEY=VALUE` as a mapping, each split at its first `=`; a key given twice is a mistake."""
    found: dict[str, str] = {}
    for word in value:
        key, sign, content = word.partition("=")
        if not (key and sign):
            wanted = (param.metavar or "KEY=VALUE").rstrip("…")
            raise click.BadParameter(f"{word!r} is not of the form {wanted}.", ctx=ctx, param=param)
        if key in found:
            raise click.BadParameter(f"{key} is given twice.", ctx=ctx, param=param)
        found[key] = content
    return found


def between_commas(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of `a,b c`, each once."""
    ids = (piece.strip() for word in value for piece in word.split(","))
    return tuple(dict.fromkeys(one for one in ids if one))


class VocabularyCommand(click.Command):
    """A command that also takes the other names of its options, and refuses to hear one of them twice."""

    def make_parser(self, ctx: click.Context) -> Any:
        parser: Any = super().make_parser(ctx)
        known = words_of(self)
        for option in dict.fromkeys(known.values()):
            shown = (*option.opts, *option.secondary_opts)
            if hidden := [word for word, one in known.items() if one is option and word not in shown]:
                twin = copy.copy(option)
                twin.opts, twin.secondary_opts = hidden, []
                twin.add_to_parser(parser, ctx)
        parse = parser.parse_args

        def parse_words(args: list[str]) -> Any:
            values, rest, order = parse(_spread(args, known, _needed(self)))
            if not ctx.resilient_parsing:
                _refuse_twice(order, ctx)
            return values, rest, order

        parser.parse_args = parse_words
        return parser


def words_of(command: click.Command) -> dict[str, click.Option]:
    """Return every word that is an option of a command, those its help does not show included."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    known = {word: one for one in options for word in (*one.opts, *one.secondary_opts)}
    own = dict(known)
    for words in SAME:
        if meant := next((own[word] for word in words if word in own), None):
            for word in words:
                known.setdefault(word, meant)
    for word, others in ALSO.items():
        if word in own:
            for other in others:
                known.setdefault(other, own[word])
    return known


def _needed(command: click.Command) -> int:
    """How many words a command takes that belong to no option, at least."""
    return sum(
        max(1, one.nargs) for one in command.params if isinstance(one, click.Argument) and one.required
    )


def _spread(args: Sequence[str], known: Mapping[str, click.Option], needed: int) -> list[str]:
    """Return a command line in which each word of a list and each pair stands behind its own flag.

    A list takes no word that the command needs for itself: of `--task-ids a RUN` the last is the run.
    """
    left = deque(args)
    spread: list[str] = []
    free = 0
    further: list[int] = []
    while left:
        word = left.popleft()
        if word == "--":
            free += len(left)
            spread += [word, *left]
            break
        if not _flag(word):
            free += 1
            spread.append(word)
            continue
        flag, attached = _vocabulary_split(word, known)
        option = known.get(flag)
        if isinstance(option, WordsOption) and attached is None and left and left[0] in known:
            raise click.BadOptionUsage(flag, f"Option {flag!r} requires an argument.")
        if isinstance(option, WordsOption) and (attached is not None or left):
            start = len(spread)
            spread += _listed(option, flag, attached, left, known)
            further = list(range(start + 2, len(spread), 2))
        else:
            spread.append(word)
            spread += _values(option, attached, left)
    for place in reversed(further[max(0, len(further) - max(0, needed - free)) :]):
        del spread[place]
    return spread


def _flag(word: str) -> bool:
    """`-x` and `--long`; `-` alone is a word."""
    return len(word) > 1 and word.startswith("-")


def _vocabulary_split(word: str, known: Mapping[str, click.Option]) -> tuple[str, str | None]:
    """The option a word names, and the value that hangs on it: `--opt=value`, `-ovalue`."""
    if word in known:
        return word, None
    name, sign, value = word.partition("=")
    if sign and word.startswith("--"):
        return name, value
    short = known.get(word[:2])
    if short is not None and not word.startswith("--") and _takes_value(short):
        return word[:2], word[2:].removeprefix("=") if isinstance(short, Pairs) else word[2:]
    return word, None


def _takes_value(option: click.Option) -> bool:
    return not (option.is_flag or option.count)


def _values(option: click.Option | None, attached: str | None, left: deque[str]) -> Iterator[str]:
    """The words that are an option's value, whatever they look like."""
    if option is None or not _takes_value(option):
        return
    for _ in range(option.nargs - (attached is not None)):
        if not left or (_flag(left[0]) and getattr(option, "_flag_needs_value", False)):
            return
        yield left.popleft()


def _listed(
    option: WordsOption, flag: str, attached: str | None, left: deque[str], known: Mapping[str, click.Option]
) -> Iterator[str]:
    """The words of a list, or one pair, each behind the flag."""
    word = left.popleft() if attached is None else attached
    several = flag in LISTS and attached is None
    if isinstance(option, AgentPairs):
        pair = left.popleft() if left and left[0] not in known else ""
        if "=" not in pair and left and left[0] not in known:
            pair = f"{pair}={left.popleft()}"
        yield from (flag, f"{word}{_BETWEEN}{pair}")
        return
    while True:
        if isinstance(option, Pairs) and "=" not in word and left and left[0] not in known:
            word = f"{word}={left.popleft()}"
        yield from (flag, word)
        if not several or not left or _flag(left[0]):
            return
        word = left.popleft()


def _refuse_twice(order: Sequence[click.Parameter], ctx: click.Context) -> None:
    """Refuse a value that would take another one's place unseen. A plain flag says the same twice."""
    once = [
        one
        for one in order
        if isinstance(one, click.Option)
        and not (one.multiple or one.count or (one.is_flag and not one.secondary_opts))
    ]
    twice = next((name for name, times in Counter(one.name for one in once).items() if times > 1), None)
    if twice is None:
        return
    option = next(one for one in ctx.command.params if one.name == twice)
    word = next((name for name in option.opts if name.startswith("--")), option.opts[0])
    instead = INSTEAD.get((_path(ctx), word))
    said = f"{word} is given twice; it can be taken once."
    raise click.UsageError(f"{said} {instead}" if instead else said, ctx)


def _path(ctx: click.Context) -> str:
    """The command by its own name, whichever alias was typed: `run start`."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.command.name or "")
        ctx = ctx.parent
    return " ".join(names)


def called_here(error: click.NoSuchOption) -> click.UsageError:
    """Return the same refusal, with the option that means the same here, or is spelled almost so."""
    command = error.ctx.command if error.ctx else None
    own = {word for one in command.params for word in (*one.opts, *one.secondary_opts)} if command else set()
    shown = {word for word in own if word.startswith("--")}
    for words in (*SAME, *NEAR):
        if error.option_name in words and (meant := [word for word in words if word in shown]):
            return click.UsageError(f"{error.message} Did you mean {meant[0]!r}?", ctx=error.ctx)
    if why := UNSUPPORTED.get(error.option_name):
        return click.UsageError(f"{error.message} {why}", ctx=error.ctx)
    hint = did_you_mean(error.option_name, shown) if error.option_name.startswith("--") else ""
    return click.UsageError(f"{error.message}{hint}", ctx=error.ctx)
