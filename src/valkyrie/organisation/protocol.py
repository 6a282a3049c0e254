"""The things of an organisation, as tracker and executor ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from valkyrie.nouns import Identity, Json
from valkyrie.views import SecretView

if TYPE_CHECKING:
    from valkyrie.agents.library import Library
    from valkyrie.aws.session import AwsSession
    from valkyrie.keeping.protocol import ArtifactStore, LogKeeper
    from valkyrie.secrets import SecretSource


class Organisation(Protocol):
    """One organisation, opened for one request or one executor."""

    identity: Identity
    trusted: bool
    """Embedded: whoever asks owns this machine and may name its paths, plugins and environment variables."""
    caller_headers: Mapping[str, str]
    """What tells hosted benchmark services who asks; empty where nobody does, or they need not know."""

    def secret_sources(self) -> Sequence[SecretSource]:
        """Where secrets are looked up, in order."""
        ...

    def variables(self) -> Mapping[str, str]:
        """What `${VAR}` of a task may name: the environment where that is the user's own, else nothing."""
        ...

    def secrets(self) -> Sequence[SecretView]:
        """Names of the secrets kept for it."""
        ...

    def set_secret(self, name: str, value: str) -> None: ...

    def remove_secret(self, name: str) -> None: ...

    def library(self) -> Library:
        """Its pushed agents."""
        ...

    def uploads(self) -> Path:
        """The folder of what came with requests, by digest."""
        ...

    def aws(self) -> AwsSession | None:
        """Its way into AWS; None when there is none."""
        ...

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        """Where artifacts of new runs are kept (of a run, at the `place` it remembers); None: only here."""
        ...

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        """Where logs of new runs are shipped (of a run, the `place` it remembers); None: nowhere."""
        ...
