"""Secrets in AWS Secrets Manager."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from valkyrie.aws.session import Act, AwsSession, explained
from valkyrie.errors import InfrastructureError, UnknownError, ValkyrieError
from valkyrie.secrets.sources import parts_of, split_name

_NAME = re.compile(r"[A-Za-z0-9/_+=.@:-]{1,2048}")


class SecretsManagerSource:
    """Secrets by name or ARN, fetched once. A JSON object comes whole; `name#key` is one value of it.

    What cannot be fetched is no value and a problem: another source may have it.
    """

    place = "AWS Secrets Manager"
    by_variable = False
    remote = True

    def __init__(self, session: AwsSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._fetched: dict[str, str | None] = {}
        self._problems: dict[str, str] = {}
        self._unreachable = False

    def __repr__(self) -> str:
        return "SecretsManagerSource()"

    @property
    def problems(self) -> Sequence[str]:
        """What could not be fetched, and what was not as it was asked for."""
        return list(self._problems.values())

    def get(self, name: str) -> str | None:
        """The value, or None when there is none."""
        secret, key = split_name(name)
        with self._lock:
            if secret not in self._fetched:
                self._fetched[secret] = self._fetch(secret)
            text = self._fetched[secret]
            if text is None or key is None:
                return text or None
            held = parts_of(text)
            if not held or not held.get(key):
                has = (
                    f"has {', '.join(list(held)[:20])}" if held else "is not a JSON object of several values"
                )
                self._problems[name] = f"{secret} in {self.place} has no value {key!r}: it {has}."
                return None
            return held[key]

    def _fetch(self, secret: str) -> str | None:
        if not _NAME.fullmatch(secret) or self._unreachable:
            return None
        act = Act(f"read the secret {secret}", f"secretsmanager:GetSecretValue on the secret {secret}")
        try:
            with explained(act):
                client = self._session.client("secretsmanager", read_timeout=15, attempts=3)
                answer = client.get_secret_value(SecretId=secret)
        except UnknownError:
            return None
        except ValkyrieError as error:
            # Asked for ten secrets, ten waits for the same silence help nobody.
            self._unreachable = isinstance(error, InfrastructureError)
            self._problems[secret] = str(error)
            return None
        if "SecretString" not in answer:
            self._problems[secret] = (
                f"{secret} in {self.place} is binary; only texts can be secrets of a run."
            )
            return None
        return str(answer["SecretString"])
