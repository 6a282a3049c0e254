"""Embedded mode: the one organisation whose things are the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.nouns import Identity, Json
from valkyrie.secrets import SecretSource, SecretStore, default_sources
from valkyrie.settings import secrets_path
from valkyrie.store.layout import DataFolder
from valkyrie.views import SecretView

if TYPE_CHECKING:
    from valkyrie.agents.library import Library
    from valkyrie.aws.session import AwsSession
    from valkyrie.keeping.protocol import ArtifactStore, LogKeeper
    from valkyrie.organisation.placing import Placing


class EmbeddedOrganisation:
    """Their environment, `.env`, secret store and config file; AWS where that names it."""

    trusted = True

    def __init__(
        self,
        data: DataFolder,
        identity: Identity | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        """`credentials`: what an executor was handed of the user's cloud; None in the user's own command."""
        self.identity = identity or Identity()
        self.caller_headers: Mapping[str, str] = {}
        self._data = data
        self._credentials = credentials

    def secret_sources(self) -> Sequence[SecretSource]:
        return self._sources

    def variables(self) -> Mapping[str, str]:
        return os.environ

    def secrets(self) -> Sequence[SecretView]:
        return [SecretView(name) for name in SecretStore(secrets_path()).list()]

    def set_secret(self, name: str, value: str) -> None:
        SecretStore(secrets_path()).set(name, value)

    def remove_secret(self, name: str) -> None:
        SecretStore(secrets_path()).remove(name)

    def library(self) -> Library:
        from valkyrie.organisation.placing import open_library

        return open_library(self.artifacts(), self._data.agents, self._data.cache / "agents")

    def uploads(self) -> Path:
        return self._data.root / "uploads"

    def aws(self) -> AwsSession | None:
        return self._session

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        if place is None:
            return self._placing.artifacts()
        from valkyrie.organisation.placing import open_artifacts

        return open_artifacts(place, self._session_anyway)

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        if place is None:
            return self._placing.logs()
        from valkyrie.organisation.placing import open_logs

        return open_logs(place, self._session_anyway)

    @cached_property
    def _sources(self) -> Sequence[SecretSource]:
        sources = default_sources(SecretStore(secrets_path()))
        from valkyrie.organisation.own_aws import chosen_in_environment
        from valkyrie.organisation.sources import NotAsked, secrets_manager

        if session := self.aws():
            sources.append(secrets_manager(session, sources))
        elif variable := chosen_in_environment():
            sources.append(NotAsked(variable))
        return sources

    @cached_property
    def _session(self) -> AwsSession | None:
        from valkyrie.organisation.own_aws import own_session

        # An executor has not all of the environment the run was started in: whether AWS is used was decided
        # there.
        return own_session() if self._credentials is None else self._session_anyway

    @cached_property
    def _session_anyway(self) -> AwsSession:
        from valkyrie.organisation.own_aws import any_session

        return any_session(self._credentials)

    @cached_property
    def _placing(self) -> Placing:
        from valkyrie.organisation.placing import own_placing

        return own_placing(self._session)
