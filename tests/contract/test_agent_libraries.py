"""Pushed agents in a folder, on a shared disk and in S3 keep the same contract."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from benchmark_runner.agent_bundle.bundle import digest_folder
from tests.aws_server import Ministack
from valkyrie import agents
from valkyrie.agents.library import AgentLibrary, Library, StoredLibrary
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.protocol import ArtifactStore, agent_key
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.errors import BundleError, ContractValidationError, UnknownError, UsageError
from valkyrie.views import AgentView

pytest_plugins = ["tests.aws_server"]
HELLO = Path(__file__).parents[2] / "examples" / "agents" / "hello"
ORIGIN = "https://example.com/ö/r/sub folder@" + "a" * 40


def zipped(folder: Path, target: Path, **extra: str) -> Path:
    """An archive as anyone's tool makes it, under a top folder of another name."""
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, f"top/{file.relative_to(folder)}")
        for name, text in extra.items():
            archive.writestr(f"top/{name}", text)
    return target


class LibraryContract(ABC):
    @pytest.fixture
    @abstractmethod
    def library(self) -> Library: ...

    @abstractmethod
    def again(self, library: Library) -> Library:
        """The same library, opened by another process."""

    def test_a_life(self, library: Library, tmp_path: Path) -> None:
        assert (library.names(), list(library.list())) == ([], [])
        pushed = library.push(HELLO, "hi.v2")
        assert (pushed.name, pushed.digest, pushed.origin) == ("hi.v2", digest_folder(HELLO), None)
        assert abs(pushed.modified.timestamp() - time.time()) < 60
        assert list(self.again(library).list()) == [pushed] == [library.get("hi.v2")]
        assert library.push(HELLO).digest == pushed.digest, "the name is no content"
        assert library.names() == ["hello", "hi.v2"]
        out = library.download("hi.v2", tmp_path / "out")
        assert digest_folder(out) == pushed.digest
        with pytest.raises(BundleError, match="nothing is overwritten"):
            library.download("hi.v2", tmp_path / "out")
        library.remove("hello")
        assert self.again(library).names() == ["hi.v2"]

    def test_the_archive(self, library: Library) -> None:
        pushed = library.push(HELLO)
        size, pieces = library.archive("hello")
        content = b"".join(pieces)
        assert size == pushed.size == len(content)
        assert library.path("hello").read_bytes() == content
        assert self.again(library).path("hello").read_bytes() == content

    def test_where_it_came_from(self, library: Library) -> None:
        pushed = library.push(HELLO, origin=ORIGIN)
        assert pushed.origin == self.again(library).get("hello").origin == ORIGIN
        assert library.view(pushed) == AgentView(
            "hello", pushed.modified.timestamp(), pushed.size, pushed.digest, ORIGIN
        )
        assert library.push(HELLO).origin is None, "pushed by hand since"
        assert library.push(HELLO, person="ädä@example.org").pushed_by == "ädä@example.org"
        assert self.again(library).get("hello").pushed_by == "ädä@example.org"
        secretive = library.push(HELLO, origin="https://me:hush@example.com/r@1")
        assert secretive.origin == "https://***@example.com/r@1"
        for wrong in ("", "x" * 501, "a\nb"):
            with pytest.raises(UsageError, match="origin"):
                library.push(HELLO, origin=wrong)

    def test_an_archive_becomes_what_its_folder_would(self, library: Library, tmp_path: Path) -> None:
        pushed = library.push(HELLO)
        own = library.path("hello").read_bytes()
        file = zipped(HELLO, tmp_path / "a.zip", **{".env": "KEY=1"})
        sent = library.push_archive(file, "hello", ORIGIN)
        assert (sent.digest, sent.origin) == (pushed.digest, ORIGIN)
        assert library.path("hello").read_bytes() == own, "no .env, and under its own name"
        again = tmp_path / "again.zip"
        again.write_bytes(own)
        assert library.push_archive(again, "other").digest == pushed.digest

    def test_what_is_not_taken(self, library: Library, tmp_path: Path) -> None:
        good = zipped(HELLO, tmp_path / "good.zip")
        for name in ("oracle", "a b", "-x", "", "../x", "a/b", "x" * 65):
            with pytest.raises(UsageError):
                library.push(HELLO, name or "..")
            with pytest.raises(UsageError):
                library.push_archive(good, name)
        (tmp_path / "bad").mkdir()
        with pytest.raises(ContractValidationError, match=r"^agent has no contract\.yaml"):
            library.push_archive(zipped(tmp_path / "bad", tmp_path / "bad.zip", x="1"), "agent")
        contract = (HELLO / "contract.yaml").read_text()
        (tmp_path / "bad" / "contract.yaml").write_text(contract + "extra: 1\n")
        with pytest.raises(ContractValidationError, match=r"agent/contract\.yaml.*unknown key"):
            library.push_archive(zipped(tmp_path / "bad", tmp_path / "bad.zip"), "agent")
        (tmp_path / "bad" / "contract.yaml").write_text("#" * (1024**2 + 1))
        with pytest.raises(ContractValidationError, match=r"agent/contract\.yaml: too large"):
            library.push_archive(zipped(tmp_path / "bad", tmp_path / "bad.zip"), "agent")
        (tmp_path / "bad.zip").write_bytes(b"no zip")
        with pytest.raises(BundleError, match=r"^agent\.zip is no usable zip"):
            library.push_archive(tmp_path / "bad.zip", "agent")
        assert library.names() == []

    def test_names_that_are_not_there(self, library: Library, tmp_path: Path) -> None:
        library.push(HELLO, "hi.v2")
        for name, says in (
            ("hi.v1", r"Did you mean 'hi\.v2'"),
            ("../x", "no pushed agent"),
            ("zzz", r"Pushed: hi\.v2"),
        ):
            for ask in (library.remove, library.get, library.path, library.archive):
                with pytest.raises(UnknownError, match=says):
                    ask(name)
            with pytest.raises(UnknownError, match=says):
                library.download(name, tmp_path)

    def test_agents_are_opened_from_it(self, library: Library, tmp_path: Path) -> None:
        library.push(HELLO, "pushed")
        prepared = agents.open_agent("pushed", library=library, trusted=False)
        assert prepared.digest == agents.open_agent(str(HELLO), library=library).digest
        frozen = agents.freeze(prepared, tmp_path / "run")
        library.remove("pushed")
        assert agents.open_frozen(frozen, tmp_path / "run", tmp_path / "cache").name == "pushed"


class TestFolder(LibraryContract):
    @pytest.fixture
    def library(self, tmp_path: Path) -> AgentLibrary:
        return AgentLibrary(tmp_path / "library")

    def again(self, library: Library) -> AgentLibrary:
        assert isinstance(library, AgentLibrary)
        return AgentLibrary(library.folder)

    def test_nothing_is_left_over(self, library: AgentLibrary, tmp_path: Path) -> None:
        library.push(HELLO, origin=ORIGIN)
        library.push_archive(zipped(HELLO, tmp_path / "a.zip"), "hello", ORIGIN)
        assert {file.name for file in library.folder.iterdir()} == {"hello.zip", "hello.json"}
        library.remove("hello")
        assert list(library.folder.iterdir()) == []

    def test_an_origin_is_not_taken_for_that_of_another_archive(self, library: AgentLibrary) -> None:
        library.push(HELLO, origin=ORIGIN)
        (library.folder / "hello.json").write_text('{"digest": "other", "origin": "x"}')
        assert library.get("hello").origin is None
        (library.folder / "hello.json").write_text("{broken")
        assert library.get("hello").origin is None


class StoredContract(LibraryContract):
    @pytest.fixture
    @abstractmethod
    def store(self) -> ArtifactStore: ...

    @pytest.fixture
    def library(self, store: ArtifactStore, tmp_path: Path) -> StoredLibrary:
        self.store, self.caches = store, tmp_path / "caches"
        return StoredLibrary(store, self.caches / "first")

    def again(self, library: Library) -> StoredLibrary:
        return StoredLibrary(self.store, self.caches / "second")

    def test_the_layout(self, library: StoredLibrary) -> None:
        library.push(HELLO)
        assert [artifact.key for artifact in self.store.list("")] == ["agents/hello.zip"]

    def test_an_archive_is_fetched_once_and_again_when_it_changed(
        self, library: StoredLibrary, tmp_path: Path
    ) -> None:
        library.push(HELLO)
        first = library.path("hello")
        assert library.path("hello") == first
        folder = tmp_path / "changed"
        shutil.copytree(HELLO, folder)
        (folder / "more").write_text("x")
        self.again(library).push(folder, "hello")
        second = library.path("hello")
        assert second != first
        assert first.is_file(), "someone may still be reading it"
        os.utime(first, (0, 0))
        (folder / "more").write_text("y")
        library.push(folder, "hello")
        third = library.path("hello")
        assert sorted(third.parent.iterdir()) == sorted([second, third])

    def test_what_others_put_there(self, library: StoredLibrary, tmp_path: Path) -> None:
        self.store.put(agent_key("by-hand"), zipped(HELLO, tmp_path / "a.zip"))
        self.store.put_text("agents/notes.txt", "x")
        self.store.put_text("agents/deep/x.zip", "x")
        assert library.names() == ["by-hand"]
        assert (library.get("by-hand").digest, library.get("by-hand").origin) == ("", None)
        assert library.view(library.get("by-hand")).digest is None
        assert digest_folder(library.download("by-hand", tmp_path / "out")) == digest_folder(HELLO)

    def test_what_is_not_what_it_was_pushed_as(self, library: StoredLibrary, tmp_path: Path) -> None:
        file = zipped(HELLO, tmp_path / "a.zip")
        self.store.put(agent_key("hello"), file, {"digest": "0" * 64})
        with pytest.raises(BundleError, match="is not what it was pushed as"):
            library.path("hello")
        self.store.put(agent_key("hello"), file, {"digest": "../../../x"})
        with pytest.raises(BundleError, match="is not what it was pushed as"):
            library.path("hello")


class TestDisk(StoredContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> DiskArtifacts:
        return DiskArtifacts(tmp_path / "kept")

    def test_one_places_word_does_not_open_anothers_cache(
        self, library: StoredLibrary, store: DiskArtifacts, tmp_path: Path
    ) -> None:
        digest = library.push(HELLO).digest
        assert library.path("hello").is_file()
        thief = DiskArtifacts(tmp_path / "thief")
        thief.put_text("x", "no zip")
        thief.put(agent_key("hello"), tmp_path / "thief" / "x", {"digest": digest})
        with pytest.raises(BundleError):
            StoredLibrary(thief, tmp_path / "caches" / "first").path("hello")


class TestS3(StoredContract):
    @pytest.fixture
    def store(self, ministack: Ministack) -> S3Artifacts:
        return S3Artifacts(ministack.session(), ministack.bucket(), "team")
