"""What an agent changed in its sandbox, and which of it is carried as data into another one.

`CarryRules` decide by path: the longest prefix that matches wins, so that a task's working folder below a
system folder is carried although the system folder is not. Providers walk what changed, pack what the rules
carry into a plain tar file on the host, and report the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

ChangeKind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs from what the sandbox was made from."""

    path: str
    kind: ChangeKind


@dataclass(frozen=True, slots=True)
class CarryRules:
    """Which paths of a sandbox are carried. Paths are absolute and normal; `/` is the default for all."""

    carried: tuple[str, ...] = ("/",)
    left: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    """Folders whose hidden entries (names that begin with a dot) are left, unless `carried` names them:
    programs read them when they start. `/home/*` stands for every folder in /home."""
    forbidden: tuple[str, ...] = ()
    """Never carried, whatever `carried` says; a link that leads into one of these, or to a folder above
    one, is left as well."""
    inverted: bool = False
    """Carry what would be left, and leave what would be carried; `forbidden` holds all the same."""

    @property
    def inverse(self) -> CarryRules:
        """The rules for everything these do not carry."""
        return replace(self, inverted=not self.inverted)

    def carries(self, path: str) -> bool:
        """Whether what is at `path` is carried."""
        if _longest(path, self.forbidden) >= 0:
            return False
        carried = _longest(path, self.carried)
        left = max(_longest(path, self.left), self._hidden_in_home(path))
        return (carried >= left) is not self.inverted

    def reaches_below(self, path: str) -> bool:
        """Whether something below the folder `path` may be carried, although it is not itself."""
        if self.inverted:
            return _longest(path, self.forbidden) < 0
        return self.carries(path) or any(is_below(one, path) for one in self.carried if one != "/")

    def is_forbidden_target(self, path: str) -> bool:
        """Whether a link to `path` leads into a forbidden folder, or to a folder above one."""
        return any(path == one or is_below(path, one) or is_below(one, path) for one in self.forbidden)

    def refuses_link_at(self, path: str) -> bool:
        """Whether a link at `path` would bring something to a place that is left or forbidden: below it, or
        in a home that it stands for."""
        if self.inverted:
            return False
        apart = (*self.left, *self.forbidden, *(home.removesuffix("/*") for home in self.homes))
        if any(path == one or is_below(one, path) for one in apart):
            return True
        above = path.rpartition("/")[0]
        return any(home == f"{above}/*" for home in self.homes)

    def _hidden_in_home(self, path: str) -> float:
        """Between the depths of a home and of its hidden entry that `path` is or is below; else -1."""
        for home in self.homes:
            top = home.removesuffix("/*") if home.endswith("/*") else None
            parts, above = path.strip("/").split("/"), (top or home).strip("/").split("/")
            at = len(above) + (1 if top else 0)
            if parts[: len(above)] == above and len(parts) > at and parts[at].startswith("."):
                return at + 0.5
        return -1


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is strictly below `folder`."""
    return path != folder and (folder == "/" or path.startswith(f"{folder}/"))


def _longest(path: str, prefixes: Iterable[str]) -> int:
    """The depth of the longest prefix that `path` is or is below; -1 if there is none."""
    depths = (0 if one == "/" else one.count("/") for one in prefixes if path == one or is_below(path, one))
    return max(depths, default=-1)


@dataclass(slots=True)
class PackedWork:
    """What was packed of a sandbox, and what was not."""

    files: int = 0
    bytes: int = 0
    removed: list[str] = field(default_factory=list)
    """Carried paths that were there when the sandbox was made and are gone, outermost first."""
    left: list[Change] = field(default_factory=list)
    """Changes at paths the rules do not carry (system files, mostly); at most MOST_LISTED are listed."""
    left_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of carried paths that stayed behind: fifos, devices, sockets, links that lead to
    forbidden places, files over a limit; at most MOST_SKIPPED are listed."""
    skipped_count: int = 0
    cut_short: bool = False
    """A limit on bytes or entries was reached: not all of the work was packed."""

    def leave(self, path: str, kind: ChangeKind) -> None:
        """Record a change that is not carried."""
        self.left_count += 1
        if len(self.left) < MOST_LISTED:
            self.left.append(Change(path, kind))

    def skip(self, path: str, reason: str) -> None:
        """Record one entry that stayed behind."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append((path, reason))


MOST_LISTED = 500_000
"""Of changes. What is not listed cannot be put back: a sandbox with more of them gives no verdict."""
MOST_SKIPPED = 200_000


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """How much may be packed."""

    max_bytes: int = 2 << 30
    max_file_bytes: int = 2 << 30
    max_entries: int = 200_000


def outermost(paths: Iterable[str]) -> Sequence[str]:
    """The paths without those that are below another of them."""
    found: list[str] = []
    for path in sorted(paths):
        if not found or not (path == found[-1] or is_below(path, found[-1])):
            found.append(path)
    return found
