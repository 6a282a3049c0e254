"""The caller and their organisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Query, Request
from starlette.responses import Response

from valkyrie.api.answers import answer
from valkyrie.api.bodies import CredentialsBody, OrganisationChange
from valkyrie.api.context import Ask, Asking, context_of
from valkyrie.api.errors import refused
from valkyrie.api.gate import RefusedError
from valkyrie.api.routes import errors, router
from valkyrie.nouns import Role
from valkyrie.organisation.access import Joined, Mode
from valkyrie.store import actions
from valkyrie.store.actions import Action

if TYPE_CHECKING:
    from valkyrie.organisation.server import ServerOrganisation
    from valkyrie.tracker.local import LocalTracker

routes = router("organisation", "/v1")


@dataclass(frozen=True, slots=True)
class Me:
    """Who asks, as the tracker sees it."""

    org_id: str
    org: str
    person: str | None
    key_id: str | None
    role: Role
    """What the key may do."""
    mode: Mode
    """Who makes keys: whoever runs the tracker, or its identity service."""


@dataclass(frozen=True, slots=True)
class OrganisationView:
    """What an organisation says about its own AWS."""

    s3_bucket: str | None
    aws_region: str | None
    log_group: str | None
    log_retention_days: int | None
    role_arn: str | None
    external_id: str
    """What the trust policy of its role must ask for; given by us."""
    credentials: bool
    """Whether AWS keys are kept."""


def _organisation(ask: Asking) -> ServerOrganisation:
    return cast("ServerOrganisation", ask.context.tracker_app.organisation(ask.identity))


@routes.get("/me", response_model=Me, responses=errors())
async def me(ask: Ask) -> Response:
    """Whose key this is."""
    who = ask.identity
    return answer(Me(who.org_id, who.org, who.person, who.key_id, who.role, ask.context.door.mode))


@routes.post(
    "/init",
    response_model=Joined,
    responses={**errors(), 405: {"description": "Self-hosted: organisations are made by whoever runs it."}},
)
async def init(request: Request) -> Response:
    """Hosted: make the organisation of the key's tenant, unless it is there."""
    door = context_of(request).door
    if door.mode == "self-hosted":
        await door.identify(request.headers)
        message = (
            "This tracker is self-hosted: `valkyrie admin org create` on its machine makes organisations."
        )
        raise RefusedError(refused(405, message, headers={"Allow": ""}))
    return answer(await door.init(request.headers))


@routes.get("/audit", response_model=list[Action], responses=errors(400))
async def audit(
    ask: Ask,
    person: Annotated[str | None, Query(description="Only of this person.", max_length=320)] = None,
    subject: Annotated[
        str | None, Query(description="Only about this run, job, agent, secret or key.", max_length=512)
    ] = None,
    since: Annotated[float | None, Query(description="Only after this moment (Unix time).")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """Who did what in the organisation, newest first; for keys of the role `admin`."""

    def look(tracker: LocalTracker) -> list[Action]:
        with tracker.store.reading() as connection:
            found = actions.list_actions(
                connection,
                org_id=ask.identity.org_id,
                person=person,
                subject=subject,
                since=since,
                limit=limit,
            )
        return list(found)

    return await ask.quick(look)


@routes.get("/organisation", response_model=OrganisationView, responses=errors())
async def describe(ask: Ask) -> Response:
    """The organisation's settings."""
    return await ask.quick(lambda _: _organisation(ask).describe())


@routes.patch("/organisation", response_model=OrganisationView, responses=errors(400, 413, 422))
async def change(changes: OrganisationChange, ask: Ask) -> Response:
    """Change settings, once AWS agrees with them."""
    given = changes.model_dump(exclude_unset=True)
    return await ask.slow(lambda _: _organisation(ask).change(given))


@routes.put("/organisation/credentials", status_code=204, responses=errors(400, 413, 422))
async def set_credentials(keys: CredentialsBody, ask: Ask) -> Response:
    """Keep AWS keys, encrypted, once AWS knows them."""
    given: dict[str, object] = {
        "aws_access_key_id": keys.aws_access_key_id,
        "aws_secret_access_key": keys.aws_secret_access_key,
        "aws_session_token": keys.aws_session_token,
    }
    return await ask.slow(lambda _: _organisation(ask).set_credentials(given), 204)


@routes.delete("/organisation/credentials", status_code=204, responses=errors())
async def remove_credentials(ask: Ask) -> Response:
    """Forget the AWS keys."""
    return await ask.quick(lambda _: _organisation(ask).remove_credentials(), 204)
