"""The web application: the gate, how errors are told, and the routes of sandboxes themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response

from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.protocol import Sandbox
from sandboxes.server import commands, file_routes, ptys, sessions
from sandboxes.server.bodies import (
    CreateSandbox,
    GrantAdmission,
    NetworkSettingsBody,
    RevocableRequests,
    SandboxLabels,
    access_of,
    answer,
    limit,
    machine_memory,
    sandbox_json,
    unless_gone,
)
from sandboxes.server.commands import check_words
from sandboxes.server.server import (
    Access,
    AccessTable,
    ApiError,
    SandboxNote,
    api_error,
    end_sandbox_note,
    error_body,
    retry_later,
)
from sandboxes.types import (
    HostSource,
    ImageSource,
    SandboxCreateRequest,
    SandboxLimits,
    SandboxSource,
    SnapshotSource,
)
from sandboxes.web_gate import RequestGate

DEFAULT_MEMORY_GB = 1
"""As Daytona has it; without one, a key's sandboxes could take all of the machine's memory."""
_KEPT = ("autoStopInterval", "autoArchiveInterval", "autoDeleteInterval", "cpu", "memory", "disk", "snapshot")


async def create_for_grant(access: Access, asked: CreateSandbox) -> Sandbox:
    """Make the sandbox, within the grant: its labels, its number, names only once."""
    request = create_request(access, asked)
    egress = egress_rules(asked.network_allow_list, asked.domain_allow_list)
    access.names_in_creation.append(asked.name)
    try:
        await _admit(access, asked.name)
        sandbox = await access.provider.create_sandbox(request)
    finally:
        access.names_in_creation.remove(asked.name)
    try:
        if egress:
            await sandbox.modify_egress_rules(egress)
    except BaseException:
        await asyncio.shield(access.provider.delete_sandbox(sandbox.id))
        raise
    access.notes[sandbox.id] = _note_of(asked)
    return sandbox


async def _admit(access: Access, name: str | None) -> None:
    living = [sandbox.name async for sandbox in access.sandboxes()]
    if name is not None and (name in living or access.names_in_creation.count(name) > 1):
        raise ApiError(409, f"Sandbox with name {name} already exists")
    if len(living) + len(access.names_in_creation) > access.max_sandboxes:
        raise retry_later(f"{access.max_sandboxes} sandboxes are in use, which is the limit; delete one")


def create_request(access: Access, asked: CreateSandbox) -> SandboxCreateRequest:
    """The request to the provider; what no provider of ours can do is refused."""
    refused = {"volumes": asked.volumes, "secrets": asked.secrets, "gpu": asked.gpu}
    for what, value in refused.items():
        if value:
            raise ApiError(400, f"These sandboxes have no {what}; ask for one without")
    check_words("", asked.env or {})
    return SandboxCreateRequest(
        source=_source(access, asked),
        limits=SandboxLimits(
            cpus=float(asked.cpu) if asked.cpu else None,
            # A disk may lie in memory, and is cut to fit the limit: one above all memory would cut nothing.
            memory_mb=min(asked.memory or DEFAULT_MEMORY_GB, machine_memory()) * 1024,
            disk_mb=asked.disk * 1024 if asked.disk else None,
        ),
        name=asked.name or None,
        labels={**(asked.labels or {}), **access.labels},
        env_vars=asked.env or {},
        auto_stop_interval=asked.auto_stop_interval,
        network_block_all=bool(asked.network_block_all),
    )


def egress_rules(*lists: str | None) -> list[str]:
    """Daytona's comma-separated lists as one list of rules."""
    return [rule.strip() for some in lists if some for rule in some.split(",") if rule.strip()]


def _source(access: Access, asked: CreateSandbox) -> SandboxSource:
    if access.host_image or (asked.build_info is None and not asked.snapshot):
        return HostSource()
    capabilities = access.provider.capabilities()
    wanted = asked.snapshot or _image_of(asked)
    if not capabilities.images:
        raise ApiError(
            400,
            f"Provider {capabilities.provider!r} runs no images (asked for {wanted}); serve with --host-image"
            " to use this machine's own system files instead, or with a provider that runs images",
        )
    return SnapshotSource(snapshot=asked.snapshot) if asked.snapshot else ImageSource(image=wanted)


def _image_of(asked: CreateSandbox) -> str:
    assert asked.build_info is not None
    lines = [line.strip() for line in asked.build_info.dockerfile_content.splitlines()]
    steps = [line for line in lines if line and not line.startswith("#")]
    words = steps[0].split() if len(steps) == 1 else []
    if len(words) != 2 or words[0].upper() != "FROM":
        raise ApiError(
            400, "Images are not built here; name one that exists instead of a Dockerfile with steps"
        )
    return words[1]


def _note_of(asked: CreateSandbox) -> SandboxNote:
    chosen = asked.model_dump(by_alias=True, exclude_none=True)
    return SandboxNote(
        settings={key: chosen[key] for key in _KEPT if key in chosen}
        | {"networkBlockAll": bool(asked.network_block_all)},
        user=None if asked.user in (None, "", "root") else asked.user,
    )


# Sandboxes themselves: made, found, listed, labelled, stopped, deleted.

router = APIRouter()
MAX_PAGE = 200
_LABELS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])
_INTERVALS = {
    "autostop": "autoStopInterval",
    "autoarchive": "autoArchiveInterval",
    "autodelete": "autoDeleteInterval",
    "autopause": "autoPauseInterval",
}

Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]


def _json(request: Request, access: Access, sandbox: Sandbox, state: str | None = None) -> Answer:
    return sandbox_json(access, sandbox, request.app.state.toolbox_url(), state=state)


@router.post("")
async def create_sandbox(request: Request, access: Holder, asked: CreateSandbox) -> Answer:
    sandbox = await unless_gone(request, create_for_grant(access, asked))
    return _json(request, access, sandbox)


@router.get("")
async def list_sandboxes(
    request: Request,
    access: Holder,
    labels: str | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1)] = 100,
    id: str | None = None,
    name: str | None = None,
) -> Answer:
    wanted = _parsed_labels(labels)
    found = [
        sandbox
        async for sandbox in access.sandboxes()
        if wanted.items() <= access.effective_labels(sandbox).items()
        and (id is None or sandbox.id.startswith(id))
        and (name is None or sandbox.name.startswith(name))
    ]
    found.sort(key=lambda sandbox: sandbox.id)
    if cursor is not None:
        found = [sandbox for sandbox in found if sandbox.id > cursor]
    page = found[: min(limit, MAX_PAGE)]
    following = page[-1].id if len(found) > len(page) else None
    return {"items": [_json(request, access, sandbox) for sandbox in page], "nextCursor": following}


def _parsed_labels(labels: str | None) -> dict[str, str]:
    try:
        return {} if labels is None else _LABELS.validate_json(labels)
    except ValidationError:
        raise ApiError(400, "labels must be a JSON object of strings") from None


@router.get("/{sandbox_id}")
async def get_sandbox(request: Request, access: Holder, sandbox_id: str) -> Answer:
    return _json(request, access, await access.find(sandbox_id))


@router.delete("/{sandbox_id}")
async def delete_sandbox(request: Request, access: Holder, sandbox_id: str) -> Answer:
    return await _delete(request, access, await access.find(sandbox_id))


async def _delete(request: Request, access: Access, sandbox: Sandbox) -> Answer:
    answer = _json(request, access, sandbox, state="destroyed")
    note = access.notes.pop(sandbox.id, None)
    await access.provider.delete_sandbox(sandbox.id)
    if note is not None:
        await end_sandbox_note(note)
    return answer


@router.post("/{sandbox_id}/start")
async def start_sandbox(request: Request, access: Holder, sandbox_id: str) -> Answer:
    sandbox = await access.find(sandbox_id)
    access.note(sandbox.id).stopped = False
    return _json(request, access, sandbox)


@router.post("/{sandbox_id}/stop")
async def stop_sandbox(request: Request, access: Holder, sandbox_id: str) -> Answer:
    sandbox = await access.find(sandbox_id)
    note = access.note(sandbox.id)
    if note.settings.get("autoDeleteInterval") == 0:
        return await _delete(request, access, sandbox)
    note.stopped = True
    await end_sandbox_note(note)
    await sandbox.kill_all()
    return _json(request, access, sandbox)


@router.put("/{sandbox_id}/labels")
async def replace_labels(access: Holder, sandbox_id: str, body: SandboxLabels) -> Answer:
    sandbox = await access.find(sandbox_id)
    access.note(sandbox.id).labels = body.labels
    return {"labels": access.effective_labels(sandbox)}


@router.get("/{sandbox_id}/toolbox-proxy-url")
async def toolbox_proxy_url(request: Request, access: Holder, sandbox_id: str) -> Answer:
    await access.find(sandbox_id)
    return {"url": request.app.state.toolbox_url()}


@router.post("/{sandbox_id}/network-settings")
async def network_settings(
    request: Request, access: Holder, sandbox_id: str, body: NetworkSettingsBody
) -> Answer:
    sandbox = await access.running(sandbox_id)
    rules = egress_rules(body.network_allow_list, body.domain_allow_list)
    if body.network_block_all:
        raise SandboxUnsupportedError("the network is blocked when a sandbox is made, not later")
    if rules:
        await sandbox.modify_egress_rules(rules)
    else:
        await sandbox.clear_egress_rules()
    return _json(request, access, sandbox)


@router.post("/{sandbox_id}/last-activity")
async def last_activity(access: Holder, sandbox_id: str) -> None:
    await access.find(sandbox_id)


@router.post("/{sandbox_id}/{setting}/{value}")
async def set_interval(request: Request, access: Holder, sandbox_id: str, setting: str, value: str) -> Answer:
    """Kept and shown; nothing here acts on idle time."""
    sandbox = await access.find(sandbox_id)
    if setting in _INTERVALS:
        access.note(sandbox.id).settings[_INTERVALS[setting]] = _whole(value)
    elif setting not in ("public", "ttl"):
        raise ApiError(404, f"There is no setting {setting[:40]}")
    return _json(request, access, sandbox)


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ApiError(400, f"{value[:40]!r} is not a number of minutes") from None


# The web application: the gate, the routes, and how errors are told.

TOOLBOX = "/toolbox"
"""Where the calls that go into one sandbox begin; its id follows."""


def create_app(table: AccessTable, base_url: Callable[[], str]) -> FastAPI:
    """The application for the tokens in `table`, reached at `base_url()`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.toolbox_url = lambda: f"{base_url()}{TOOLBOX}"
    app.include_router(router, prefix="/api/sandbox")
    for module in (commands, sessions, ptys, file_routes):
        app.include_router(module.router, prefix=f"{TOOLBOX}/{{sandbox_id}}")
    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(SandboxError, _tell)
    app.add_exception_handler(HTTPException, _tell)
    app.add_exception_handler(RequestValidationError, _tell)
    app.add_exception_handler(ClientDisconnect, _tell_no_one)
    app.add_exception_handler(Exception, _tell_nothing)
    app.add_middleware(RevocableRequests)
    app.add_middleware(RequestGate, admit=GrantAdmission(table).admit, answer=answer, limit=limit)
    return app


async def _tell(connection: HTTPConnection, error: Exception) -> Response:
    return answer(connection.scope, _as_api_error(error))


async def _tell_no_one(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


async def _tell_nothing(request: Request, _error: Exception) -> Response:
    # The error itself goes to the log by way of the server; it may name files of this machine.
    return JSONResponse(error_body(500, "The sandbox server failed; its log says why", request.url.path), 500)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SandboxError):
        return api_error(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail, headers=dict(error.headers or {}))
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors()[:5])
    return ApiError(400, f"The request is not understood: {wrong}")
