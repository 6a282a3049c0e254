"""The process edge: the root command, and what each ending prints and returns.

Exit codes: 0 done · 1 failed · 2 the words of the command are wrong · 124 `run wait` ran out of time ·
130 interrupted, or detached from a run that goes on.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from valkyrie import __version__
from valkyrie.cli.commands import COMMANDS, OPERATORS, LazyGroup, Noun, Verb, real_name

INTERRUPTED = 130
EPILOG = """
\b
Start here:
  valk doctor
  valk demo
  valk run start --agent oracle --benchmark quickstart --connect
  valk init                            # evals of your own

Every command takes --help, --json and --no-color (NO_COLOR works too).
"""


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        sys.stdout.write(f"valkyrie {__version__}\n")
        ctx.exit()


root = LazyGroup(
    COMMANDS,
    apart=("For operators", OPERATORS),
    name="valkyrie",
    help="Benchmark orchestration for AI agents: plan every trial, isolate it, grade it, report it.",
    epilog=EPILOG,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        )
    ],
)


_FULL_DISK = (
    "Free some space, then try again: `valk disk` shows where the bytes are, "
    "`valk run delete` gives some back."
)


class ErrorExit(NamedTuple):
    """How a failed command ends."""

    code: int
    message: str
    hint: str = ""
    reason: str = "failed"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; never lets an exception out, unless VALKYRIE_DEBUG=1."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = root.main(args=words, prog_name=_program_name(), standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except Exception as error:
        if os.environ.get("VALKYRIE_DEBUG") == "1":
            raise
        return _report(_explain(error), words)


def _program_name() -> str:
    name = Path(sys.argv[0]).name
    return name if name in ("valk", "valkyrie") else "valk"


def _forget_stdout() -> None:
    """The reader is gone: what is still buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> ErrorExit:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return ErrorExit(2, error.ctx.get_help(), reason="usage")
    if isinstance(error, click.NoSuchOption):
        from valkyrie.cli.vocabulary import called_here

        error = called_here(error)
    if isinstance(error, click.UsageError):
        hint = f"Try '{error.ctx.command_path} --help'." if error.ctx else ""
        return ErrorExit(2, error.format_message(), hint, "usage")
    if isinstance(error, click.ClickException):
        return ErrorExit(error.exit_code, error.format_message())
    if isinstance(error, click.Abort):
        return ErrorExit(INTERRUPTED, "Interrupted.", reason="interrupted")
    return _explain_ours(error)


def _explain_ours(error: Exception) -> ErrorExit:
    from sandboxes.errors import SandboxError
    from valkyrie.errors import ValkyrieError

    if isinstance(error, ValkyrieError):
        return ErrorExit(error.exit_code, str(error), reason=error.cause)
    if isinstance(error, SandboxError):
        return ErrorExit(1, str(error), reason="sandbox")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        return ErrorExit(1, f"The disk is full{where}; not everything was written.", _FULL_DISK, "disk_full")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return ErrorExit(1, f"{where}{error.strerror or error}", reason="os")
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return ErrorExit(
        1, f"This is a bug in Valkyrie: {what}", "VALKYRIE_DEBUG=1 shows where it happened.", "internal"
    )


def _report(ending: ErrorExit, words: Sequence[str]) -> int:
    sys.stdout.flush()
    from valkyrie.text import shorten_names

    ending = ending._replace(message=shorten_names(ending.message))
    if _wants_json(words):
        from valkyrie.cli.output import write_json

        fields = {"command": _command_of(words), "error_message": ending.message, "reason": ending.reason}
        sys.stderr.write(write_json("error", **fields) + "\n")
        return ending.code
    from benchmark_runner.terminal import no_command, safe

    message = no_command(safe(ending.message, keep_lines=True).strip())
    plain = ending.message.startswith("Usage:") or ending.reason == "interrupted"
    sys.stderr.write(message + "\n" if plain else f"Error: {message}\n")
    if ending.hint:
        sys.stderr.write(ending.hint + "\n")
    return ending.code


def _wants_json(words: Sequence[str]) -> bool:
    """`--json`, and of jobs also `-o json`."""
    if "--json" in words or not _command_of(words).startswith("benchmark-job"):
        return "--json" in words
    said = " ".join(words)
    return any(f" {flag}json" in f" {said}" for flag in ("-o ", "-o", "--output ", "--output="))


def _command_of(words: Sequence[str]) -> str:
    """The command's own words at the front of a command line."""
    known: Mapping[str, Verb | Noun] = COMMANDS
    found: list[str] = []
    for word in (word for word in words if not word.startswith("-")):
        name = real_name(known, word)
        entry = known.get(name)
        if entry is None:
            break
        found.append(name)
        known = entry.verbs if isinstance(entry, Noun) else {}
    return " ".join(found)
