"""Sandboxes themselves: made, found, listed, labelled, stopped, deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import TypeAdapter, ValidationError

from sandboxes.errors import SandboxUnsupportedError
from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access, end_note
from sandboxes.server.creation import create, egress_rules
from sandboxes.server.disconnects import unless_gone
from sandboxes.server.errors import ApiError
from sandboxes.server.gate import access_of
from sandboxes.server.wire import CreateSandbox, NetworkSettings, SandboxLabels, sandbox_json

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
    sandbox = await unless_gone(request, create(access, asked))
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
        await end_note(note)
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
    await end_note(note)
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
    request: Request, access: Holder, sandbox_id: str, body: NetworkSettings
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
