"""Where an organisation's secrets are looked up, besides what a person has at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.errors import UserError
from valkyrie.secrets import SecretSource
from valkyrie.secrets.sources import split_name

if TYPE_CHECKING:
    from valkyrie.aws.session import AwsSession
    from valkyrie.secrets.sealed import Sealer
    from valkyrie.store import Store


class StoredSecrets:
    """The secrets an organisation keeps with its tracker, encrypted."""

    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, store: Store, sealer: Sealer | None, org_id: str) -> None:
        self._store = store
        self._sealer = sealer
        self._org_id = org_id

    def __repr__(self) -> str:
        return f"StoredSecrets({self._org_id!r})"

    @property
    def place(self) -> str:
        return "the secrets kept by the tracker"

    def get(self, name: str) -> str | None:
        from valkyrie.store import tenants

        if self._sealer is None:
            return None  # nothing can have been stored
        with self._store.reading() as connection:
            return tenants.get_secret(connection, self._sealer, self._org_id, name)


class NotAsked:
    """AWS Secrets Manager where nobody said that AWS is to be used; says so to those who may expect it."""

    place = "AWS Secrets Manager"
    by_variable = False
    remote = False

    def __init__(self, variable: str) -> None:
        self.problems: Sequence[str] = (
            f"AWS Secrets Manager was not asked, although {variable} is set: "
            "`valk config set AWS_DEFAULT_REGION REGION` has it used.",
        )

    def get(self, name: str) -> str | None:  # noqa: ARG002 - whatever it is called
        return None


class LastResort:
    """A source that is asked only for what no other has: asking it takes time, and shows in its records."""

    def __init__(self, source: SecretSource, others: Sequence[SecretSource]) -> None:
        self._source = source
        self._others = others

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def place(self) -> str:
        return self._source.place

    @property
    def by_variable(self) -> bool:
        return self._source.by_variable

    @property
    def remote(self) -> bool:
        return self._source.remote

    @property
    def problems(self) -> Sequence[str]:
        return self._source.problems

    def get(self, name: str) -> str | None:
        names = {name, split_name(name)[0]}
        if any(other.get(one) is not None for other in self._others for one in names):
            return None
        return self._source.get(name)


def secrets_manager(session: AwsSession, others: Sequence[SecretSource]) -> SecretSource:
    """AWS Secrets Manager, asked for what the others do not have."""
    from valkyrie.aws.secrets_manager import SecretsManagerSource

    return LastResort(SecretsManagerSource(session), tuple(others))


def needed(sealer: Sealer | None) -> Sealer:
    """The sealer; UserError when the tracker has no key to encrypt with."""
    if sealer is None:
        raise UserError(
            "This tracker has no key to encrypt values with, so it keeps none. Whoever runs it sets "
            "VALKYRIE_SECRET_KEY for it and its executors (`valkyrie admin secret-key` makes one).",
            cause="sealed",
        )
    return sealer
