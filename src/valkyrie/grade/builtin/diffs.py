"""What the agent changed in the workspace, as a diff from the end of set-up."""

from __future__ import annotations

from valkyrie.errors import GraderError
from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.config import Config
from valkyrie.grade.patches import Change, changes_of
from valkyrie.grade.protocol import Given, GraderResult, Need
from valkyrie.grade.seeking import Matching, Sought, Substring, wanted_by

MOST_PATCH = 16 * 1024 * 1024


class _DiffGrader(BuiltIn):
    needs = frozenset({Need.DIFF})

    def read(self, config: Config) -> None:
        self.turn = config.whole("turn", low=0, high=10_000, default=self.spec.turn)

    def diff_of(self, given: Given) -> str:
        """The diff after the grader's turn: all that changed since set-up."""
        last = len(given.stimulus.turns) - 1
        if self.turn is not None and self.turn < last:
            if self.turn not in given.turn_diffs:
                raise GraderError(f"there is no diff of turn {self.turn}: nobody said when it ended.")
            return given.turn_diffs[self.turn]
        if given.diff is None:
            raise GraderError(
                "there is no diff to look at. `valk grade` takes it from --artifact-dir, the folder of the "
                "results, or --diff-file."
            )
        return given.diff


class DiffTextGrader(_DiffGrader):
    """`diff-contains`, `diff-not-contains`: `value` is a text, `pattern` a regex."""

    def read(self, config: Config) -> None:
        super().read(config)
        self.wanted = wanted_by(config, self.spec.type)
        self.sought: Sought
        if not config.has("pattern"):
            self.sought = Substring(config.text("value", "substring"), case_sensitive=True)
        elif config.value("value", "substring") is None:
            self.sought = Matching(config.pattern("pattern"))
        else:
            raise config.wrong("give `value` or `pattern`, not both.")

    async def look(self, given: Given) -> GraderResult:
        place = self.sought.where(self.diff_of(given))
        if place is None:
            return self.found(not self.wanted, f"the diff does not have {self.sought.name}")
        return self.found(self.wanted, f"the diff has {self.sought.name}: {place}")


class DiffEmptyGrader(_DiffGrader):
    """`diff-empty`: nothing was changed."""

    type = "diff-empty"

    def read(self, config: Config) -> None:
        super().read(config)
        self.negate = config.flag("negate")

    async def look(self, given: Given) -> GraderResult:
        diff = self.diff_of(given)
        if not diff.strip():
            return self.found(not self.negate, "nothing was changed")
        names = ", ".join(changes_of(diff)) or clipped(diff, 200)
        return self.found(self.negate, f"changed: {clipped(names, 500)}")


class ExpectedDiffGrader(_DiffGrader):
    """`expected-diff`: the same lines go and come in the same files as in a patch the author gives."""

    type = "expected-diff"

    def read(self, config: Config) -> None:
        super().read(config)
        self.ignore_whitespace = config.flag("ignore_whitespace")
        self.subset = config.flag("allow_other_files")
        config.known.update(("patch", "file"))
        if config.has("patch") == config.has("file") and config.has("patch"):
            raise config.wrong("give `patch` or `file`, not both.")
        self.patch = config.text("patch") if config.has("patch") else None
        if config.has("file"):
            self.patch = _read(config, config.text("file"))
        if self.patch is None:
            self.needs = frozenset({*type(self).needs, Need.GOLDEN_PATCH})  # type: ignore[misc]  # only then

    async def look(self, given: Given) -> GraderResult:
        patch = self.patch if self.patch is not None else given.golden_patch
        if patch is None:
            raise GraderError("there is no patch to compare with: set `patch` or `file`, or a golden patch.")
        expected = changes_of(patch, ignore_whitespace=self.ignore_whitespace)
        if not expected and patch.strip():
            raise GraderError("the expected patch is no unified diff.")
        actual = changes_of(self.diff_of(given), ignore_whitespace=self.ignore_whitespace)
        problems = [f"{path} is not changed" for path in expected if path not in actual]
        problems += [
            f"{path} is changed otherwise: {_difference(change, actual[path])}"
            for path, change in expected.items()
            if path in actual and not _same(change, actual[path])
        ]
        if not self.subset:
            problems += [f"{path} should not be changed" for path in actual if path not in expected]
        same = f"the changes of {len(expected)} files are as expected"
        return self.found(not problems, "; ".join(problems) or same)


def _same(expected: Change, actual: Change) -> bool:
    """The same lines; notes (new, deleted, renamed) count where the patch has any."""
    return expected.lines == actual.lines and (not expected.notes or expected.notes == actual.notes)


def _difference(expected: Change, actual: Change) -> str:
    missing = [line for line in expected.lines if line not in actual.lines]
    extra = [line for line in actual.lines if line not in expected.lines]
    told = [f"expected {clipped(missing[0], 120)}"] if missing else []
    told += [f"found {clipped(extra[0], 120)}"] if extra else []
    return ", ".join(told) or "the same lines in another order or number, or another kind of change"


def _read(config: Config, name: str) -> str:
    path = config.beside_spec(name)
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read(MOST_PATCH + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise config.wrong(f"`file`: {path} cannot be read as text: {error}.") from None
    if len(content) > MOST_PATCH:
        raise config.wrong(f"`file`: {path} is larger than {MOST_PATCH // 1024 // 1024} MiB.")
    return content
