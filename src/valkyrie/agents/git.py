"""An agent's folder out of a git repository, at one commit: shallow, nothing executed, bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from benchmark_runner.agent_bundle import CONTRACT_FILES
from valkyrie.agents.library import check_name
from valkyrie.errors import BundleError, paths_shown_as
from valkyrie.git.address import GitSource
from valkyrie.git.command import Progress
from valkyrie.git.fetching import MOST_NAMED, TIMEOUT_S, Repository, Wanted, not_fetched, opened


@dataclass(frozen=True, slots=True)
class Checkout:
    """An agent's folder as the repository has it at one commit."""

    folder: Path
    name: str
    """What to keep it under."""
    commit: str
    origin: str
    """`address[/folder]@commit`."""
    notices: Sequence[str] = ()
    """What is not as its author meant it, and keeps nothing from running."""


@contextmanager
def checked_out(
    source: GitSource,
    name: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> Iterator[Checkout]:
    """The agent's folder, there while the context lasts; it has a contract, which is not read yet."""
    with opened(source, timeout, progress) as repository:
        wanted = repository.resolve()
        chosen = check_name(name or PurePosixPath(wanted.folder).name or source.repository)
        commit = repository.fetch(wanted)
        tree = repository.tree(commit, wanted.folder)
        entries = repository.check_listing(tree)
        if not any(path in CONTRACT_FILES for _, path in entries):
            raise _no_contract(repository, commit, wanted)
        repository.check_out(tree)
        place = f"{source.url}/{wanted.folder}" if wanted.folder else source.url
        notices = not_fetched(entries, repository.files)
        with paths_shown_as({repository.files: place}):
            yield Checkout(repository.files, chosen, commit, f"{place}@{commit}", notices)


def _no_contract(repository: Repository, commit: str, wanted: Wanted) -> BundleError:
    """Say where contracts are, if there are any."""
    source = repository.source
    where = f"folder {wanted.folder!r} of {source.url}" if wanted.folder else source.url
    paths = [PurePosixPath(path) for _, path in repository.entries(commit)]
    folders = [str(path.parent) for path in paths if path.name in CONTRACT_FILES and str(path.parent) != "."]
    said = f"{where} has no contract.yaml at {commit[:12]}"
    if len(folders) == 1:
        url = source.folder_url(wanted.word, folders[0])
        return BundleError(f"{said}. There is one in {folders[0]!r}: valk agent install {url}")
    if folders:
        more = f" and {len(folders) - MOST_NAMED} more" if len(folders) > MOST_NAMED else ""
        return BundleError(
            f"{said}; these folders have one: {', '.join(folders[:MOST_NAMED])}{more}. "
            f"Name one: {source.folder_url(wanted.word, 'FOLDER')}"
        )
    return BundleError(f"{said}, and no other folder of it has; an agent is a folder with one.")
