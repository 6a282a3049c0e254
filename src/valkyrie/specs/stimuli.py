"""One entry of `stimuli` with what it inherits, and `environment`, which the agent finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import PurePath
from typing import Any, Literal

from valkyrie.domain import Json
from valkyrie.specs.model import (
    DEFAULT_COMMAND_TIMEOUT_S,
    Constraints,
    EnvironmentSpec,
    FileEntry,
    GraderSpec,
    SkillRef,
    SourceLocation,
    Stimulus,
    WorkspaceRepository,
)
from valkyrie.specs.yaml_nodes import Fields, Node, Notes, duration_of, text_of, texts_of, with_entries
from valkyrie.text import did_you_mean

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
        return replace(self, skills=skills)

    def settled(self) -> EnvironmentSpec:
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


# One entry of `stimuli`, with what it inherits merged in.

GRADER_KEYS = ("type", "config", "name", "turn", "weight")
OTHERS = {
    "simulation": "is not supported here; it simulates nothing and is ignored.",
    "expect_activation": "is another tool's own key and is ignored; use a `skill-invocation` grader.",
    "area": "is not part of the format and is ignored; use `tags`.",
    "metadata": "is not part of the format and is ignored; use `tags`.",
}


@dataclass(frozen=True, slots=True)
class InheritedFields:
    """What the file says for all of its stimuli."""

    tags: Mapping[str, tuple[str, ...]]
    environment: DeclaredEnvironment
    artifacts: tuple[tuple[str, ...], tuple[str, ...]]
    """Globs of what is kept, and of what is not."""
    graders: tuple[Node, ...]
    """Run on every stimulus, after its own."""
    grading_files: tuple[FileEntry, ...]
    constraints: Node | None
    named: Callable[[Node], Node | None]
    """The environment an `environment: name` means."""
    skills: tuple[SkillRef, ...] | None = None
    """An experiment's, which replace whatever is declared."""


def read_stimulus(node: Node, at: int, inherited: InheritedFields, notes: Notes) -> Stimulus | None:
    """One stimulus; None where too little of it can be understood."""
    shown = node.get("name")
    what = f"stimulus {shown.raw!r}" if shown and shown.raw else f"stimulus {at}"
    node = with_environment(node, notes, what)
    fields = Fields(node, notes, what)
    if not fields.given:
        if node.value is None:
            notes.error("wrong-type", f"stimulus {at} is empty.", node)
        return None
    name = fields.text("name", required=True)
    turns = _turns(fields)
    constraints = read_constraints(inherited.constraints, fields.take("constraints"), notes, fields.what)
    own = fields.take("config")
    runs, timeout = _own_settings(fields, own, notes)
    include, exclude = read_artifacts(fields)
    golden, golden_file = _golden_patch(fields)
    trajectory, trajectory_file = _golden_trajectory(fields)
    stimulus = Stimulus(
        name=name or "",
        turns=turns,
        graders=_graders(
            fields, turns, constraints != Constraints(place=constraints.place), inherited.graders
        ),
        tags={**inherited.tags, **read_tags(fields)},
        rubric=fields.texts("rubric") or (),
        environment=_environment(fields, inherited),
        grading_files=inherited.grading_files + read_grading(fields, inherited.named),
        constraints=constraints,
        artifacts_include=inherited.artifacts[0] + include,
        artifacts_exclude=inherited.artifacts[1] + exclude,
        attachments=_attachments(fields),
        golden_patch=golden,
        golden_patch_file=golden_file,
        golden_trajectory=trajectory,
        golden_trajectory_file=trajectory_file,
        golden_command=_golden_command(fields),
        supported_executors=fields.texts("supported_executors") or (),
        runs=runs,
        timeout=timeout,
        place=node.place,
    )
    _refuse_simulation(fields)
    fields.finish(others=OTHERS)
    return stimulus if name else None


def _refuse_simulation(fields: Fields) -> None:
    """Tools that answer from a record are not to be had: with real ones the stimulus is another."""
    node = fields.node.get("simulation")
    said = node.data() if node is not None else None
    if node is None or not said or (isinstance(said, dict) and not any(said.values())):
        return
    fields.take("simulation")
    fields.notes.error(
        "unsupported-key",
        f"{fields.what}: `simulation` is not supported: with real tools in place of simulated ones the agent "
        "would be tested on something else. Leave the key out, or keep such stimuli in a file of their own.",
        fields.key_place("simulation"),
    )


def _turns(fields: Fields) -> tuple[str, ...]:
    prompt, turns = fields.take("prompt"), fields.take("turns")
    if prompt is not None and turns is not None:
        fields.notes.error(
            "prompt-and-turns", f"{fields.what} has `prompt` and `turns`: keep one of them.", turns
        )
    if turns is not None:
        if not turns.items:
            fields.wrong("turns", "a list of texts with at least one", turns)
            return ()
        found = texts_of(turns, fields.notes, f"{fields.what}: `turns`")
    elif prompt is not None:
        found = (text_of(prompt, fields.notes, f"{fields.what}: `prompt`") or "",)
    else:
        near = fields.slip("prompt") or fields.slip("turns")
        fields.notes.error("missing-key", f"{fields.what} has no `prompt` (or `turns`).{near}", fields.node)
        return ()
    if any(not text.strip() for text in found):
        at = turns if turns is not None else prompt
        fields.notes.error("empty-prompt", f"{fields.what}: a prompt must not be empty.", at)
    return found


def with_environment(node: Node, notes: Notes, what: str) -> Node:
    """The map with its `agent_environment` under the older name `environment`; both at once are an error."""
    newer = node.get("agent_environment")
    if newer is None:
        return node
    if node.get("environment") is not None:
        message = f"{what}: `agent_environment` and `environment` mean the same; keep `agent_environment`."
        notes.error("given-twice", message, node.keys.get("environment", node.place))
    entries = {key: value for key, value in (node.mapping or {}).items() if key != "agent_environment"}
    place = node.keys.get("agent_environment", node.place)
    return with_entries(node, {**entries, "environment": newer}, {"environment": place})


def read_artifacts(fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`artifacts`: globs of what is kept, and of what is not."""
    node = fields.take("artifacts")
    if node is None:
        return (), ()
    inner = Fields(node, fields.notes, "artifacts")
    found = inner.texts("include") or (), inner.texts("exclude") or ()
    inner.finish()
    return found


def _graders(
    fields: Fields, turns: tuple[str, ...], constrained: bool, shared: tuple[Node, ...]
) -> tuple[GraderSpec, ...]:
    node = fields.take("graders")
    entries = [*(fields.items("graders") or ()), *shared]
    if not entries:
        if node is not None and node.items is None:
            return ()
        if constrained:
            fields.notes.warning(
                "no-graders",
                f"{fields.what} has no graders: it is run and not graded. Constraints are only reported, "
                "unless --enforce-constraints is given.",
                fields.node,
            )
        else:
            fields.notes.error(
                "no-graders",
                f"{fields.what} has no graders, so nothing would be checked: add at least one to `graders`.",
                node or fields.node,
            )
        return ()
    found = [_grader(entry, at, len(turns), fields) for at, entry in enumerate(entries, 1)]
    return tuple(grader for grader in found if grader is not None)


def _grader(node: Node, at: int, turns: int, stimulus: Fields) -> GraderSpec | None:
    notes = stimulus.notes
    if isinstance(node.value, str):
        notes.error("wrong-type", f"{stimulus.what}: write `- type: {node.value}` for grader {at}.", node)
        return None
    fields = Fields(node, notes, f"{stimulus.what}, grader {at}")
    kind = fields.text("type", required=True)
    turn = fields.integer("turn")
    if turn is not None and turns and turn >= turns:
        last = f"its turns are 0 to {turns - 1}" if turns > 1 else "it has only turn 0"
        notes.error(
            "turn-out-of-range", f"{fields.what}: there is no turn {turn}, {last}.", fields.take("turn")
        )
    grader = GraderSpec(
        type=kind or "",
        config=fields.data("config"),
        name=fields.text("name"),
        turn=turn,
        weight=fields.number("weight"),
        place=node.place,
    )
    for key in node.mapping or {}:
        if key not in GRADER_KEYS:
            hint = did_you_mean(key, GRADER_KEYS) or " Move it below `config`."
            notes.warning(
                "stray-grader-key",
                f"{fields.what}: `{key}` beside `type` is ignored.{hint}",
                fields.key_place(key),
            )
    return grader if kind else None


def read_tags(fields: Fields) -> dict[str, tuple[str, ...]]:
    """`tags`, every value as a list of texts."""
    node = fields.take("tags")
    if node is None:
        return {}
    if node.mapping is None:
        fields.wrong("tags", "a map such as {tier: smoke}", node)
        return {}
    return {
        key: texts_of(value, fields.notes, f"{fields.what}: tag `{key}`")
        for key, value in node.mapping.items()
        if value.value is not None
    }


def read_constraints(root: Node | None, own: Node | None, notes: Notes, what: str) -> Constraints:
    """The file's constraints with the stimulus's own on top."""
    found: dict[str, Any] = {}
    for node in (root, own):
        if node is not None:
            found.update(_constraints(node, notes, what))
    place = own or root
    return Constraints(**found, place=place.place if place else None)


def _constraints(node: Node, notes: Notes, what: str) -> dict[str, Any]:
    fields = Fields(node, notes, f"{what}: `constraints`")
    found: dict[str, Any] = {
        key: fields.integer(key) for key in ("max_turns", "max_tokens", "max_tool_calls")
    }
    found["max_duration"] = fields.duration("max_duration", "max_wall_time")
    found["max_agent_duration"] = fields.duration("max_agent_duration")
    if (older := fields.number("max_duration_ms")) is not None:
        notes.warning(
            "renamed-key",
            f"{what}: `max_duration_ms` is called `max_duration` now: write `max_duration: {older:g}ms`.",
            fields.key_place("max_duration_ms"),
        )
        found["max_duration"] = found["max_duration"] or older / 1000
    for one in fields_of(Constraints):
        if one.name.startswith(("expect_", "reject_")):
            found[one.name] = fields.texts(one.name)
    fields.finish()
    return {key: value for key, value in found.items() if value is not None}


def _own_settings(fields: Fields, own: Node | None, notes: Notes) -> tuple[int | None, float | None]:
    runs, timeout = fields.integer("runs"), fields.duration("timeout")
    if own is not None:
        config = Fields(own, notes, f"{fields.what}: `config`")
        inner_runs, inner_timeout = config.integer("runs"), config.duration("timeout")
        runs = inner_runs if runs is None else runs
        timeout = inner_timeout if timeout is None else timeout
        config.finish()
    return runs, timeout


def _environment(fields: Fields, inherited: InheritedFields) -> EnvironmentSpec:
    node = fields.take("environment")
    if node is not None and isinstance(node.value, str):
        node = inherited.named(node)
    merged = inherited.environment.under(read_environment(node, fields.notes, f"{fields.what}: environment"))
    if inherited.skills is not None:
        merged = merged.with_skills(inherited.skills)
    return merged.settled()


def read_grading(fields: Fields, named: Callable[[Node], Node | None]) -> tuple[FileEntry, ...]:
    """`grading_environment`: files that are there only while the work is graded."""
    node = fields.take("grading_environment")
    if node is not None and isinstance(node.value, str):
        node = named(node)
    if node is None:
        return ()
    if node.items is not None:
        node = Node({"files": node}, node.place, node.base)
    inner = Fields(node, fields.notes, "grading_environment")
    files = read_files(inner)
    inner.finish()
    return files


def _attachments(fields: Fields) -> tuple[FileEntry, ...]:
    found = []
    for item in fields.items("attachments") or ():
        if item.mapping is None:
            path, dest = text_of(item, fields.notes, f"{fields.what}: an attachment"), None
        else:
            inner = Fields(item, fields.notes, f"{fields.what}: an attachment")
            path, dest = inner.text("path", "src", "file", required=True), inner.text("dest", "name")
            inner.finish(others={"type": "of an attachment is not used here."})
        if path:
            found.append(FileEntry(path, dest or PurePath(path).name, item.base, item.place))
    return tuple(found)


def _golden_trajectory(fields: Fields) -> tuple[Json | None, FileEntry | None]:
    """The trajectory written out (`{inline: …}`), or the file it is in (`{path: …}`, or a text)."""
    node = fields.take("golden_trajectory")
    if node is None:
        return None, None
    if node.mapping is None:
        path = text_of(node, fields.notes, f"{fields.what}: `golden_trajectory`")
        return None, FileEntry(path, "", node.base, node.place) if path else None
    if "schema_version" in node.mapping:
        return dict(node.data()), None
    inner = Fields(node, fields.notes, f"{fields.what}: `golden_trajectory`")
    inline, path = inner.data("inline"), inner.text("path", "file")
    inner.finish()
    return inline or None, FileEntry(path, "", node.base, node.place) if path else None


def _golden_command(fields: Fields) -> str | None:
    """A line for the shell: a text, or `{command: …}`."""
    node = fields.take("golden_command")
    if node is None:
        return None
    if node.mapping is None:
        return text_of(node, fields.notes, f"{fields.what}: `golden_command`")
    inner = Fields(node, fields.notes, f"{fields.what}: `golden_command`")
    command = inner.text("command", required=True)
    inner.finish()
    return command


def _golden_patch(fields: Fields) -> tuple[str | None, FileEntry | None]:
    """The patch written out, or the file it is in (`{path: …}`, or one line of text)."""
    node = fields.take("golden_patch")
    if node is None:
        return None, None
    if node.mapping is not None:
        inner = Fields(node, fields.notes, f"{fields.what}: `golden_patch`")
        text, path = inner.text("content"), inner.text("path", "file")
        inner.finish()
    else:
        said = text_of(node, fields.notes, f"{fields.what}: `golden_patch`")
        text, path = (said, None) if said and "\n" in said else (None, said)
    return text, FileEntry(path, "", node.base, node.place) if path else None
