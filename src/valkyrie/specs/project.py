"""`.vally.yaml`: where evals and skills are, named environments, suites and plugins."""

from __future__ import annotations

import shlex
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.nouns import Json
from valkyrie.permissions import outside
from valkyrie.specs.environments import read_environment
from valkyrie.specs.fields import Fields, Notes, texts_of
from valkyrie.specs.model import Project, Suite
from valkyrie.specs.nodes import Node
from valkyrie.specs.yaml_places import load_yaml
from valkyrie.trust import foreign_owner, home_folder, trust_state, trusted_projects

FILENAMES = (".vally.yaml", ".vally.yml")
PLUGIN_KINDS = {
    "graders": ("graders", "grader"),
    "executors": ("executors", "executor"),
    "evals": ("evals", "eval"),
    "reporters": ("reporters", "reporter"),
}
OTHERS = {
    "backend": "is not used here: the sandbox is chosen on the command line.",
}


def find_project(start: Path) -> Project:
    """Return the project around a folder; without a file everything is as by default, below `start`.

    The search ends at the top of the repository, or at the home folder: what lies above is somebody else's.
    """
    file = find_file(start)
    return read_project(file) if file else Project(file=None, folder=start.absolute())


def find_file(start: Path) -> Path | None:
    """Return the project file around a folder, not yet read."""
    start = start.absolute()
    for folder in (start, *start.parents):
        for name in FILENAMES:
            if (folder / name).is_file():
                return folder / name
        if _is_top(folder):
            break
    return None


def file_root(folder: Path) -> Path:
    """Return the folder that files of a project may come from.

    It is the top of the repository around `folder`, else the folder of the project's file, else the nearest
    folder that `valk trust` was told of, else `folder` itself.
    """
    folder = folder.resolve()
    named: Path | None = None
    for above in (folder, *folder.parents):
        if _has_repository(above) and above != home_folder():
            return above
        if named is None and any((above / name).is_file() for name in FILENAMES):
            named = above
        if _is_top(above):
            break
    if named is None:
        trusted = {one.folder for one in trusted_projects()}
        named = next((above for above in (folder, *folder.parents) if above in trusted), None)
    return named or folder


def _is_top(folder: Path) -> bool:
    """Whether a search for files of a project ends here."""
    return _has_repository(folder) or folder.resolve() == home_folder()


def _has_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:
        return False


def read_project(file: Path) -> Project:
    """Read this project file; raises SpecError with everything that is wrong.

    UsageError for a file of another user's, unless the project is trusted, and for a link that leaves.
    """
    file = file.absolute()
    if (real := outside(file, file.parent)) is not None:
        raise UsageError(f"{file} is a link to {real}, outside its folder; put the file itself there.")
    owner = foreign_owner(file)
    project, notes = examine_project(file)
    if owner is not None and ((code := project.code()) is None or trust_state(code) != "trusted"):
        raise UsageError(
            f"{file} belongs to {owner}, not to you, and is not read. "
            f"`valk trust {shlex.quote(str(file.parent))}` allows it."
        )
    notes.raise_errors()
    return project


def examine_project(file: Path) -> tuple[Project, Notes]:
    """The project, and what is wrong or doubtful about its file."""
    notes = Notes()
    usual = Project(file=None, folder=file.parent)
    fields = Fields(load_yaml(file), notes, file.name)
    paths = Fields(fields.take("paths") or Node(None, fields.node.place, file.parent), notes, "paths")
    project = Project(
        file=file.absolute(),
        folder=file.absolute().parent,
        skills=paths.texts("skills") or usual.skills,
        evals=paths.texts("evals") or usual.evals,
        results=paths.text("results"),
        eval_filenames=paths.texts("evalFilenames", "eval_filenames") or usual.eval_filenames,
        suites=_suites(fields.take("suites"), notes),
        environments=_environments(fields.take("environments"), notes),
        plugins=_plugins(fields.take("plugins"), notes),
        metadata=_metadata(fields.take("metadata"), fields),
    )
    paths.finish()
    fields.finish(others=OTHERS)
    return project, notes


def named_environment(project: Project, name: str) -> Json:
    """A named environment as a spec may hold it: working folders of MCP servers are the project's."""
    data = dict(project.environments[name])
    for key in ("mcpServers", "mcp_servers"):
        if isinstance(servers := data.get(key), dict):
            data[key] = {server: _placed(config, project.folder) for server, config in servers.items()}
    return data


def _placed(server: object, folder: Path) -> object:
    if isinstance(server, dict) and isinstance(server.get("cwd"), str):
        return {**server, "cwd": str((folder / server["cwd"]).resolve())}
    return server


def _environments(node: Node | None, notes: Notes) -> dict[str, Json]:
    if node is None:
        return {}
    found = Fields(node, notes, "environments")
    for name, one in (node.mapping or {}).items():
        # Read here for its faults alone; a spec that names it reads it again, against its own folder.
        read_environment(one, notes, f"environment {name!r}")
    return {name: one.data() or {} for name, one in (node.mapping or {}).items() if found.given}


def _suites(node: Node | None, notes: Notes) -> dict[str, Suite]:
    if node is None:
        return {}
    Fields(node, notes, "suites")
    return {name: _suite(name, one, notes) for name, one in (node.mapping or {}).items()}


def _suite(name: str, node: Node, notes: Notes) -> Suite:
    fields = Fields(node, notes, f"suite {name!r}")
    wanted = _filter(fields)
    evals = fields.texts("evals") or ()
    if wanted is None and not evals:
        message = f"suite {name!r} needs `filter` or `evals` (`filter: {{}}` takes everything)."
        notes.error("empty-suite", message, node)
    suite = Suite(name, fields.text("description") or "", wanted, evals)
    fields.finish(others={**OTHERS, "metadata": "is not used here."})
    return suite


def _filter(fields: Fields) -> dict[str, tuple[str, ...]] | None:
    """Tag → values. Some files put the tags one level deeper, below `tags`."""
    given = fields.take("filter")
    if given is None:
        return None
    if given.mapping is None:
        fields.wrong("filter", "a map such as {tier: smoke}", given)
        return {}
    tags = dict(given.mapping)
    if (inner := tags.get("tags")) is not None and inner.mapping is not None:
        tags = {**{key: value for key, value in tags.items() if key != "tags"}, **inner.mapping}
    return {key: texts_of(value, fields.notes, f"{fields.what}: tag `{key}`") for key, value in tags.items()}


def _metadata(node: Node | None, fields: Fields) -> Json:
    if node is None:
        return {}
    if node.mapping is None:
        fields.wrong("metadata", "a map", node)
        return {}
    found: Json = node.data()
    return found


def _plugins(node: Node | None, notes: Notes) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {}
    fields = Fields(node, notes, "plugins")
    found = {kind: fields.texts(*names) for kind, names in PLUGIN_KINDS.items()}
    fields.finish()
    return {kind: specifiers for kind, specifiers in found.items() if specifiers}
