"""Lay out what a workspace starts from: repository, files, skills, and one digest over all of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxError
from sandboxes.protocol import Command, Sandbox
from sandboxes.rooted_files import FOLDER, RootedFiles
from sandboxes.streams import uninterrupted
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.benchmarks.task_dir.benchmark import ContentDigests
from valkyrie.domain import content_digest as digest_of
from valkyrie.errors import AccessError, BenchmarkError, BundleError, InfrastructureError, UsageError
from valkyrie.git.command import GitCommand
from valkyrie.git.local import COMMIT, commit_in, git_dir_of, head_of, object_in
from valkyrie.git.repository import (
    TIMEOUT_S,
    Repository,
    WantedCommit,
    may_log_in,
    open_in,
    parse_source,
    without_login,
)
from valkyrie.git.repository import GitSource as Address
from valkyrie.specs.model import FileEntry, Finding, SkillRef, SpecError, Stimulus, WorkspaceRepository
from valkyrie.specs.project import SKILL_FILE, Skill, find_skills, read_skill, skill_folders

# CI systems make shallow clones, and workspaces start from those.
_FETCH = ("--quiet", "--no-tags", "--no-recurse-submodules", "--update-shallow")
_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
{sparse}[user]
\tname = agent
\temail = agent@localhost
{remote}{extensions}"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
_REMOTE = """\
[remote "origin"]
\turl = {url}
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""


def git_problems(source: WorkspaceRepository) -> Iterator[Finding]:
    """Yield what keeps a repository from being laid out, as far as it shows without the network."""
    try:
        address = _address(source)
        if source.folder is not None:
            commit_of(source)
        elif not may_log_in(address):
            without_login(address)
    except AccessError as error:
        yield Finding("environment-git", "warning", f"environment.git: {error}", source.place)
    except (UsageError, InfrastructureError) as error:
        yield Finding("environment-git", "error", f"environment.git: {error}", source.place)
    for path in source.sparse:
        if not path.strip("/") or ".." in path.split("/") or "\n" in path:
            message = f"environment.git: sparse path {path!r} must be a path in the repository"
            yield Finding("environment-git", "error", message, source.place)


def commit_of(source: WorkspaceRepository) -> str | None:
    """The commit of a source on this machine, or one named in full; None when only its host knows."""
    path = source.folder
    if path is None:
        return source.ref if source.ref and COMMIT.fullmatch(source.ref) else None
    found = commit_in(path, source.ref or "HEAD")
    if found is None:
        what = f"no branch, tag or commit {source.ref!r}" if source.ref else "no commit yet"
        raise UsageError(f"{path} has {what}.")
    return found


def is_committed(path: Path) -> bool:
    """Return whether the repository around a file or folder has it in its last commit."""
    whole = path.resolve()
    for folder in whole.parents:
        try:
            if git_dir_of(folder) is not None:
                return object_in(folder, f"HEAD:{whole.relative_to(folder).as_posix()}") is not None
        except (UsageError, InfrastructureError, OSError):
            return False  # it leads elsewhere or cannot be read: nothing is known of its history
    return False


def _address(source: WorkspaceRepository) -> Address:
    path = source.folder
    if path is None:
        return parse_source(source.source, source.ref)
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {os.path.normpath(path)}; `source` is relative to {source.base.absolute()}."
        )
    if git_dir_of(path) is None:
        raise UsageError(f"{os.path.normpath(path)} is no git repository.")
    return parse_source(str(path.resolve()), None)


@dataclass(slots=True)
class Checkouts:
    """Repositories as they were laid out here, each fetched once for all trials that start from it.

    Without a folder to lay them out in, they are in a temporary one until `close`.
    """

    folder: Path | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None
    _made: dict[tuple[object, ...], Path] = field(default_factory=dict)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def of(self, source: WorkspaceRepository) -> Path:
        """The folder with the repository's files and its `.git`; not to be changed."""
        key = (source.type, source.source, source.base, source.ref, source.shallow, source.sparse)
        # Who waits for someone else's fetch waits here, and not in one of the few threads.
        async with self._making:
            if key not in self._made:
                self._made[key] = await uninterrupted(asyncio.to_thread(self._lay_out, source))
            return self._made[key]

    def _lay_out(self, source: WorkspaceRepository) -> Path:
        private = Path(tempfile.mkdtemp(dir=self._place()))
        try:
            return lay_out_repository(source, private)
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise

    def close(self) -> None:
        """Remove them."""
        self._made.clear()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _place(self) -> Path:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return self.folder
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="valkyrie-git-")
        return Path(self._temporary.name)


def lay_out_repository(source: WorkspaceRepository, private: Path) -> Path:
    """Fetch a repository into an empty private folder; return the folder with its files and its `.git`."""
    try:
        address = _address(source)
        repository = open_in(private, address, TIMEOUT_S, logins=False)
        git = repository.git
        wanted = _wanted(source, repository)
        options = (*_FETCH, "--depth=1") if source.shallow else _FETCH
        commit = repository.fetch(wanted, options)
        if source.sparse:
            _make_sparse(git, source.sparse)
        repository.check_listing(commit)
        repository.check_out(commit)
        _settle(git, source, address, wanted, commit)
    except BundleError as error:
        hint = "" if source.shallow else " `shallow: true` in environment.git fetches one commit only."
        raise BundleError(f"{error}{hint}", cause="task_setup_failed") from error
    return git.files


def _wanted(source: WorkspaceRepository, repository: Repository) -> WantedCommit:
    """For a repository of this machine, what its own git takes the word for: short commits, `HEAD~2`."""
    if source.folder is None:
        return repository.resolve()
    commit = commit_of(source)
    assert commit is not None, "a local source has a commit, or is refused"
    return WantedCommit(commit, "", source.ref or "HEAD")


def _make_sparse(git: GitCommand, paths: tuple[str, ...]) -> None:
    info = git.repository / "info"
    info.mkdir(exist_ok=True)
    (info / "sparse-checkout").write_text("".join(f"/{path.strip('/')}\n" for path in paths))
    git.run("config", "core.sparseCheckout", "true")


def _settle(
    git: GitCommand, source: WorkspaceRepository, address: Address, wanted: WantedCommit, commit: str
) -> None:
    """Make the private repository the workspace's own: on its branch, with plain settings."""
    branch = _branch(source, wanted)
    git.run("update-ref", "--no-deref", f"refs/heads/{branch}" if branch else "HEAD", commit)
    if branch:
        git.run("symbolic-ref", "HEAD", f"refs/heads/{branch}")
    for name in ("FETCH_HEAD", "info/attributes"):
        (git.repository / name).unlink(missing_ok=True)
    remote = _REMOTE.format(url=address.url) if source.folder is None else ""
    sparse = "\tsparseCheckout = true\n" if source.sparse else ""
    sha256 = len(commit) == 64
    extensions = _SHA256 if sha256 else ""
    (git.repository / "config").write_text(
        _CONFIG.format(version=int(sha256), sparse=sparse, remote=remote, extensions=extensions)
    )
    git.repository.rename(git.files / ".git")


def _branch(source: WorkspaceRepository, wanted: WantedCommit) -> str | None:
    """The branch the workspace is on; None leaves it at a commit."""
    if wanted.what.startswith("refs/heads/"):
        return wanted.what.removeprefix("refs/heads/")
    path = source.folder
    if wanted.word == "HEAD":
        return "main"
    is_branch = path is not None and commit_in(path, f"refs/heads/{wanted.word}") is not None
    return wanted.word if is_branch else None


# The static part of a workspace: files and skills, put together in a folder of the host.
#
# What is copied may hold links. One that stays inside what is copied is kept, one that leaves it is refused,
# and none is ever written through: no entry of a spec reaches beyond the folder it is put into.

SETUP_FAILED = "task_setup_failed"
LINKS_AT_ONCE = 200
_MAKE_LINKS = 'while [ $# -gt 1 ]; do ln -sfn -- "$2" "$1" || exit; shift 2; done'


def destination(entry: FileEntry) -> str | None:
    """Return where below the workspace an entry goes, `.` for the workspace itself; None when it would leave
    it."""
    dest = entry.dest.strip()
    path = PurePosixPath(dest)
    if not dest or "\0" in dest or "\\" in dest or path.is_absolute() or ".." in path.parts:
        return None
    if dest.endswith("/") and entry.source.is_file():
        path /= entry.source.name
    return str(path)


def file_problems(entries: Iterable[FileEntry], what: str) -> Iterator[Finding]:
    """Yield what keeps entries from being staged, as far as it shows beforehand."""
    for entry in entries:
        if destination(entry) is None:
            message = (
                f"{what}: dest {entry.dest!r} must be a path below the workspace, with `/` between its parts "
                "and without `..`"
            )
            yield Finding("environment-file-outside", "error", message, entry.place)
        if problem := _source_problem(entry):
            yield Finding(
                "environment-file-missing", "error", f"{what}: src {entry.src!r} {problem}", entry.place
            )


def _source_problem(entry: FileEntry) -> str | None:
    try:
        mode = entry.source.stat().st_mode
    except (OSError, ValueError):
        return f"is not there: no {_shown(entry.source)}; paths are relative to {entry.base.absolute()}"
    if stat.S_ISDIR(mode):
        link = next(leaving_links(entry.source), None)
        return (
            f"holds the link {link}, which leads out of it; copy what it leads to instead" if link else None
        )
    if not stat.S_ISREG(mode):
        return "is neither a file nor a folder"
    return None if os.access(entry.source, os.R_OK) else "cannot be read"


def _shown(path: Path) -> str:
    return os.path.normpath(path)


def leaving_links(folder: Path) -> Iterator[str]:
    """Links below a folder that lead out of it, relative to it."""
    top = os.path.realpath(folder)
    for parent, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.is_symlink() and not _inside(os.path.realpath(path), top):
                yield os.path.relpath(path, top)


def _inside(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def lay_out(folder: Path, entries: Iterable[tuple[Path, str]]) -> None:
    """Copy files and folders of the host to places below `folder`, made if missing; later ones win."""
    folder.mkdir(parents=True, exist_ok=True)
    top = os.open(folder, FOLDER)
    try:
        files = RootedFiles(top, (os.geteuid(), os.getegid()))
        for source, place in entries:
            try:
                files.copy_in(source, place)
            except (OSError, SandboxError) as error:
                raise BenchmarkError(
                    f"cannot stage {source} as {place}: {error}", cause=SETUP_FAILED
                ) from error
    finally:
        os.close(top)


def placed(entries: Iterable[FileEntry]) -> Iterator[tuple[Path, str]]:
    """Entries as (what, where); those that cannot be staged raise BenchmarkError."""
    for entry in entries:
        place = destination(entry)
        if place is None or not entry.source.exists():
            finding = next(iter(file_problems((entry,), "files")))
            raise BenchmarkError(str(finding), cause=SETUP_FAILED)
        # The entry itself may be a link: its author named what it leads to.
        yield Path(os.path.realpath(entry.source)), place


async def put_tree(sandbox: Sandbox, source: Path, target: str, *, without: Set[str] = frozenset()) -> None:
    """A folder of the host in the sandbox as it is: links that lead out of it lead elsewhere in there.

    Sockets, pipes and devices stay behind, and what is to be left out, by paths below the folder.
    """
    if without:
        with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
            rest = Path(scratch, "tree")
            await asyncio.to_thread(_copy_without, source, rest, without)
            await put_tree(sandbox, rest, target)
        return
    links, left_out = await asyncio.to_thread(_unfit, source)
    if not links and not left_out:
        await sandbox.upload_folder(source, target)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        fit = Path(scratch, "tree")
        await asyncio.to_thread(_copy_without, source, fit, links.keys() | left_out)
        await sandbox.upload_folder(fit, target)
    words = [word for path, leads in links.items() for word in (f"{target}/{path}", leads)]
    for start in range(0, len(words), 2 * LINKS_AT_ONCE):
        command = Command(("/bin/sh", "-c", _MAKE_LINKS, "links", *words[start : start + 2 * LINKS_AT_ONCE]))
        if (code := await sandbox.run(command)) != 0:
            raise BenchmarkError(f"cannot make the links of {source} in the sandbox: exit code {code}")


def _unfit(folder: Path) -> tuple[dict[str, str], set[str]]:
    """(links that lead out, with where to; what is neither file, folder nor link) below a folder."""
    links = {path: str((folder / path).readlink()) for path in leaving_links(folder)}
    special: set[str] = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            mode = os.lstat(f"{parent}/{name}").st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                special.add(os.path.relpath(f"{parent}/{name}", folder))
    return links, special


def _copy_without(source: Path, target: Path, left_out: Set[str]) -> None:
    def ignored(parent: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.relpath(f"{parent}/{name}", source) in left_out]

    shutil.copytree(source, target, symlinks=True, ignore=ignored)


# The skills of a stimulus: which there are, and where they go in its workspace.

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def skills_of(stimulus: Stimulus, options: EvalOptions) -> list[Skill]:
    """Return what the agent may load: the declared list, or else what is below `--skill-dir`.

    Raises SpecError for a skill that cannot be loaded: missing, without SKILL.md, or with a bad one.
    """
    declared = stimulus.environment.skills
    if declared is not None:
        found = _read_all(declared)
    elif options.skill_dir is not None:
        found = _find_all(Path(options.skill_dir))
    else:
        return []
    if wrong := list(_wrong(found, stimulus)):
        raise SpecError(wrong)
    return found


def skill_places(skills: Sequence[Skill], options: EvalOptions) -> Iterator[tuple[Path, str]]:
    """Skills as (what, where below the workspace)."""
    for skill in skills:
        yield skill.folder, f"{options.skills_at.strip('/')}/{skill.name}"


def skill_problems(stimulus: Stimulus, options: EvalOptions) -> Iterator[Finding]:
    """Yield what keeps skills from being loaded."""
    place = stimulus.environment.place or stimulus.place
    try:
        skills = skills_of(stimulus, options)
    except SpecError as error:
        yield from error.findings
        return
    for skill in skills:
        if link := next(leaving_links(skill.folder), None):
            message = f"skill {skill.name!r} holds the link {link}, which leads out of it; copy that instead"
            yield Finding("skill-link-outside", "error", message, place)


def _find_all(folder: Path) -> list[Skill]:
    folders = list(skill_folders(folder)) if folder.is_dir() else []
    # Where there is none, the finder has the words for it.
    return _read_all([SkillRef(str(one), one) for one in folders]) if folders else find_skills(folder)


def _read_all(declared: Sequence[SkillRef]) -> list[Skill]:
    found, wrong = [], []
    for one in declared:
        try:
            found.append(_read(one))
        except SpecError as error:
            # What is missing has no place of its own: then it is the line that names it.
            wrong += [replace(finding, place=finding.place or one.place) for finding in error.findings]
    if wrong:
        raise SpecError(wrong)
    return found


@lru_cache(maxsize=256)
def _known(folder: Path, _changed_ns: int, _inode: int) -> Skill:
    """A skill read once for all trials, as long as its SKILL.md stays the same."""
    return read_skill(folder)


def _read(declared: SkillRef) -> Skill:
    file = declared.folder / SKILL_FILE
    if not file.is_file():
        return read_skill(declared.folder)
    info = file.stat()
    return _known(declared.folder, info.st_mtime_ns, info.st_ino)


def _wrong(skills: Sequence[Skill], stimulus: Stimulus) -> Iterator[Finding]:
    place = stimulus.environment.place or stimulus.place
    seen: dict[str, Path] = {}
    for skill in skills:
        if not _FOLDER_NAME.fullmatch(skill.name):
            yield Finding(
                "skill-name", "error", f"{skill.name!r} is no name a skill's folder can have", place
            )
        earlier = seen.setdefault(skill.name, skill.folder)
        if earlier.resolve() != skill.folder.resolve():
            message = f"two skills are called {skill.name!r}: {earlier} and {skill.folder}; rename one"
            yield Finding("duplicate-skill", "error", message, place)


# One digest over everything a stimulus' workspace is made of, so that a later run notices what changed.


def content_digest(stimulus: Stimulus, options: EvalOptions, digests: ContentDigests | None = None) -> str:
    """Over the contents of files and skills, and the commit of a repository.

    Of `--work-dir` only the commit it is at counts: people work in it, and evals write their results there.
    """
    known = digests or ContentDigests()
    git = stimulus.environment.git
    work_dir = options.work_dir if stimulus.environment.empty else None
    return digest_of(
        {
            "files": _digests(stimulus.environment.files, known),
            "attachments": _digests(stimulus.attachments, known),
            "grading": _digests(stimulus.grading_files, known),
            "skills": [[skill.name, known.whole(skill.folder)] for skill in skills_of(stimulus, options)],
            "git": commit_of(git) if git else None,
            "work_dir": head_of(Path(work_dir)) if work_dir else None,
        }
    )


def _digests(entries: Iterable[FileEntry], known: ContentDigests) -> list[list[str]]:
    return [[entry.dest, _digest(entry.source, known)] for entry in entries]


def _digest(path: Path, known: ContentDigests) -> str:
    if path.is_dir():
        return known.whole(path)
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{content} {'x' if path.stat().st_mode & 0o100 else '-'}"
