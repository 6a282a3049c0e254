"""Commands as shell text, and the mark by which their processes are found again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from sandboxes.errors import SandboxError
from sandboxes.types import Command

MARK = "VALKYRIE_COMMAND_ID"
RESERVED = frozenset({"LANG", "TERM"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

KILL_MARKED = r"""
command -v grep >/dev/null || exit 127
pass=0
while [ "$pass" -lt 100 ]; do
  found=$(grep -Fls -e "$1" /proc/[0-9]*/environ)
  [ -n "$found" ] || exit 0
  for file in $found; do
    pid=${file#/proc/}
    kill -9 "${pid%/environ}" 2>/dev/null
  done
  pass=$((pass+1))
done
exit 1
"""
"""Kills what carries the mark `$1` in its environment, again until nothing does: it may be forking."""

FIND_MARKED = """
command -v grep >/dev/null || exit 127
if grep -Fqs -e "$1" /proc/[0-9]*/environ; then echo yes; else echo no; fi
"""
"""Whether anything still carries the mark `$1`."""


def check_names(env: Mapping[str, str], *, reserved: frozenset[str] = frozenset()) -> None:
    """Refuse names that a shell would not take, and those that are ours to set."""
    for name in env:
        if not _NAME.fullmatch(name):
            raise SandboxError(f"{name!r} cannot be an environment variable: use letters, digits and _")
        if name in reserved:
            raise SandboxError(f"the environment variable {name} is set by the sandbox; leave it out")


def quoted(*words: str) -> str:
    """Words as a POSIX shell reads them back."""
    return shlex.join(words)


def wrapped(command: Command, mark: str) -> str:
    """One compound command that sets everything up, then becomes `command`.

    Values of variables never show in a process's arguments. The command gets a session of its own where
    there is `setsid`: what it leaves in the background then outlives the shell that started it.
    """
    check_names(command.env)
    settings = {"LANG": "C.UTF-8", "TERM": "dumb", **command.env, MARK: mark}
    steps = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    if command.cwd is not None:
        steps.insert(0, f"cd {shlex.quote(command.cwd)} || exit 126")
    steps.append("own=$(command -v setsid || :)")
    steps.append(f"exec $own {quoted(*command.argv)} </dev/null")
    return "( " + "; ".join(steps) + " )"


def reporting(text: str, mark: str, token: str) -> str:
    """`text`, then a report on stderr: its exit code, and whether it left processes behind."""
    looked = f"command -v grep >/dev/null && {{ grep -Fqs -e {MARK}={mark} /proc/[0-9]*/environ || left=0; }}"
    told = f'printf \'\\036{token}:%d:%d\\036\' "$code" "$left" >&2'
    return f'( {text}; code=$?; left=1; {looked}; {told}; exit "$code" )'
