"""`environment`: what the agent finds, read from one place and merged from several."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from valkyrie.domain import Json
from valkyrie.specs.fields import Fields, Node, Notes, duration_of, text_of
from valkyrie.specs.model import (
    DEFAULT_COMMAND_TIMEOUT_S,
    EnvironmentSpec,
    FileEntry,
    SkillRef,
    SourceLocation,
    WorkspaceRepository,
)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MCP_TYPES = ("stdio", "local", "http", "sse", "streamable-http")


@dataclass(frozen=True, slots=True)
class DeclaredEnvironment:
    """One `environment` as it was written, before anything is merged."""

    skills: tuple[SkillRef, ...] | None = None
    files: tuple[FileEntry, ...] = ()
    commands: tuple[str, ...] = ()
    command_timeout: float | None = None
    git: WorkspaceRepository | None = None
    mcp_servers: dict[str, Json] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    place: SourceLocation | None = None

    def under(self, own: DeclaredEnvironment) -> DeclaredEnvironment:
        """This one, inherited by a stimulus that declares its own."""
        skills = self.skills
        if own.skills == ():
            skills = ()  # who declares none wants none
        elif own.skills is not None:
            already = {ref.folder for ref in skills or ()}
            skills = (*(skills or ()), *(ref for ref in own.skills if ref.folder not in already))
        return DeclaredEnvironment(
            skills=skills,
            files=self.files + own.files,
            commands=self.commands + own.commands,
            command_timeout=self.command_timeout if own.command_timeout is None else own.command_timeout,
            git=own.git or self.git,
            mcp_servers={**self.mcp_servers, **own.mcp_servers},
            env={**self.env, **own.env},
            place=own.place or self.place,
        )

    def with_skills(self, skills: tuple[SkillRef, ...] | None) -> DeclaredEnvironment:
        """The same with exactly these."""
        return replace(self, skills=skills)

    def settled(self) -> EnvironmentSpec:
        """Return what it comes to."""
        return EnvironmentSpec(
            skills=self.skills,
            files=self.files,
            commands=self.commands,
            command_timeout=self.command_timeout or DEFAULT_COMMAND_TIMEOUT_S,
            git=self.git,
            mcp_servers=self.mcp_servers,
            env=self.env,
            place=self.place,
        )


def read_environment(node: Node | None, notes: Notes, what: str = "environment") -> DeclaredEnvironment:
    """One `environment` map."""
    if node is None:
        return DeclaredEnvironment()
    fields = Fields(node, notes, what)
    declared = DeclaredEnvironment(
        skills=_skills(fields),
        files=read_files(fields),
        commands=fields.texts("commands") or (),
        command_timeout=fields.duration("commandTimeout", "command_timeout"),
        git=_git(fields.take("git"), notes, what),
        mcp_servers=_mcp_servers(fields.take("mcpServers", "mcp_servers"), notes, what),
        env=_variables(fields),
        place=node.place,
    )
    fields.finish()
    return declared


def _variables(fields: Fields) -> dict[str, str]:
    found = _texts_by_name(fields, "env") or {}
    for name in found:
        if not _VARIABLE.fullmatch(name):
            message = f"{fields.what}: `env` has {name!r}, which is no name of a variable."
            fields.notes.error("bad-value", message, fields.key_place("env"))
    return found


def read_files(fields: Fields) -> tuple[FileEntry, ...]:
    """`files: [{src, dest}]`."""
    found = [_file(item, fields.notes) for item in fields.items("files") or ()]
    return tuple(entry for entry in found if entry is not None)


def _file(node: Node, notes: Notes) -> FileEntry | None:
    if node.mapping is None:
        notes.error("wrong-type", f"An entry of `files` must be {{src, dest}}, not {node.kind}.", node)
        return None
    fields = Fields(node, notes, "An entry of `files`")
    src, dest, root = fields.text("src"), fields.text("dest"), fields.text("dest_root")
    fields.finish()
    if root not in (None, "", "workspace"):
        message = f"An entry of `files`: `dest_root` is {root!r}; files go into the workspace only."
        notes.error("bad-value", message, node)
    missing = [key for key, value in (("src", src), ("dest", dest)) if not value]
    if missing:
        keys = " and ".join(f"`{key}`" for key in missing)
        notes.error("environment-file-missing-field", f"An entry of `files` has no {keys}.", node)
        return None
    return FileEntry(src or "", dest or "", node.base, node.place)


def _skills(fields: Fields) -> tuple[SkillRef, ...] | None:
    node = fields.take("skills")
    if node is None:
        return None
    refs = []
    for item in [node] if node.items is None else node.items:
        path = text_of(item, fields.notes, f"{fields.what}: a skill's path")
        if path:
            refs.append(SkillRef(path, item.base, item.place))
    return tuple(refs)


def _git(node: Node | None, notes: Notes, what: str) -> WorkspaceRepository | None:
    if node is None:
        return None
    fields = Fields(node, notes, f"{what}: `git`")
    source = fields.text("source", "url")
    said = fields.text("type")
    ref, shallow, sparse = fields.text("ref"), fields.boolean("shallow"), fields.texts("sparse")
    fields.finish()
    if not fields.given:
        return None
    kind: Literal["worktree", "clone"] = "clone" if said == "clone" or fields.has("url") else "worktree"
    if said not in (None, "worktree", "clone"):
        notes.error("bad-value", f"{what}: git `type` must be worktree or clone, not {said!r}.", node)
    if not source:
        notes.error("missing-key", f"{what}: `git` has no `source` (a path) or `url`.", node)
        return None
    return WorkspaceRepository(kind, source, node.base, ref, bool(shallow), sparse or (), node.place)


def _mcp_servers(node: Node | None, notes: Notes, what: str) -> dict[str, Json]:
    if node is None:
        return {}
    if node.mapping is None:
        notes.error("wrong-type", f"{what}: `mcpServers` must be a map by name, not {node.kind}.", node)
        return {}
    return {
        name: _mcp_server(name, server, notes)
        for name, server in node.mapping.items()
        if server.value is not None
    }


def _mcp_server(name: str, node: Node, notes: Notes) -> Json:
    fields = Fields(node, notes, f"MCP server {name!r}")
    command, url, kind = fields.text("command"), fields.text("url"), fields.text("type")
    server: Json = {"type": kind or ("http" if url and not command else "stdio")}
    if server["type"] not in MCP_TYPES:
        known = ", ".join(MCP_TYPES)
        notes.error("bad-value", f"MCP server {name!r}: `type` must be one of {known}, not {kind!r}.", node)
    elif not (command or url) and fields.given:
        notes.error("missing-key", f"MCP server {name!r} has neither `command` nor `url`.", node)
    cwd = fields.text("cwd")
    found: Json = {
        "command": command,
        "args": list(fields.texts("args") or ()) or None,
        "env": _texts_by_name(fields, "env"),
        "cwd": str((node.base / cwd).absolute()) if cwd else None,
        "url": url,
        "headers": _texts_by_name(fields, "headers"),
        "tools": list(fields.texts("tools") or ()) or None,
        "timeout": _mcp_timeout(fields),
    }
    fields.finish()
    return server | {key: value for key, value in found.items() if value is not None}


def _texts_by_name(fields: Fields, key: str) -> dict[str, str] | None:
    node = fields.take(key)
    if node is None:
        return None
    if node.mapping is None:
        fields.wrong(key, "a map of texts", node)
        return None
    given = ((name, text_of(value, fields.notes, f"`{name}`")) for name, value in node.mapping.items())
    return {name: text for name, text in given if text is not None}


def _mcp_timeout(fields: Fields) -> float | None:
    node = fields.take("timeout")
    if node is None:
        return None
    if isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value > 0:
        # Configurations of MCP clients count in milliseconds, and are copied from one file into another.
        fields.notes.warning(
            "duration-without-unit",
            f"{fields.what}: `timeout` has no unit and is read as milliseconds: write `{node.raw}ms`.",
            node,
        )
        return node.value / 1000
    return duration_of(node, fields.notes, f"{fields.what}: `timeout`")
