"""The secret store: one JSON file only its owner can read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from valkyrie.errors import UsageError, UserError

LONGEST_VALUE = 64 << 10
"""Bytes of a secret's value."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+=@-]{0,255}")


def check_name(name: str) -> None:
    """Refuse what cannot name a secret."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a secret: letters, digits and _ . / + = @ -, up to 256.")


def check_value(name: str, value: str) -> None:
    """Refuse what cannot be the value of a secret."""
    if not value:
        raise UsageError(f"the value of {name} is empty; nothing was stored.")
    if "\0" in value:
        raise UsageError(f"the value of {name} holds a NUL character, which no environment variable can.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the value of {name} is not UTF-8 text; nothing was stored.") from None
    if size > LONGEST_VALUE:
        raise UsageError(
            f"the value of {name} has more than {LONGEST_VALUE >> 10} KiB; nothing was stored. A secret is a "
            "key or a password: bring larger things in a file of the agent's or the task's folder."
        )


class SecretStore:
    """Names and values in `path` (mode 0600, in a folder of mode 0700), replaced whole on every change."""

    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"SecretStore({str(self.path)!r})"

    @property
    def place(self) -> str:
        return f"the secret store ({self.path})"

    def get(self, name: str) -> str | None:
        """The value kept under this name."""
        return self._read().get(name) or None

    def list(self) -> Sequence[str]:
        """Names only."""
        return sorted(self._read())

    def set(self, name: str, value: str) -> None:
        """Keep a value under a name, over an earlier one."""
        check_name(name)
        check_value(name, value)
        with self._locked():
            self._write(self._read() | {name: value})

    def remove(self, name: str) -> None:
        """Forget a name."""
        with self._locked():
            values = self._read()
            if name not in values:
                known = ", ".join(sorted(values)) or "none"
                raise UsageError(f"no secret is stored as {name!r}. Stored: {known}.")
            del values[name]
            self._write(values)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, so that two `secret set` at once keep both values."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.parent.chmod(0o700)
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"{self.path.parent} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> dict[str, str]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read: {error.strerror}. It must be a plain file."
            ) from None
        with open(handle, encoding="utf-8") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise UserError(f"{self.path} is not a plain file of yours; it is not read.")
            if status.st_mode & 0o077:
                raise UserError(
                    f"{self.path} can be read by others; it is not used. Close it with: chmod 600 {self.path}"
                )
            try:
                values = json.load(file)
            except (ValueError, RecursionError):
                values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            # Neither the text nor the parser's message is shown: either may hold a secret.
            raise UserError(f"{self.path} is damaged: not a JSON object of texts. Repair it or move it away.")
        return values

    def _write(self, values: dict[str, str]) -> None:
        part = ""
        try:
            # mkstemp makes files of mode 0600: at no time can others read this one.
            handle, part = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(handle)
            Path(part).replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                Path(part).unlink()
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}. Nothing was changed."
            ) from None
