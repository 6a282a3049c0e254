"""Contract: artifacts come back as they were put, whole or not at all, and keys stay where they belong."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from valkyrie.artifact_store.protocol import ArtifactStore
from valkyrie.errors import UnknownError, UsageError, UserError

ODD_KEYS = (
    "two words/and three.txt",
    "schlüssel/雪/☃.txt",
    "100%/a%2Fb/%25.txt",
    "a+b=c@d(e)[f]{g}~h!i$j&k'l.txt",
    "x#y?z=1;w,v.txt",
    ".hidden/..not-up/...",
    'back\\slash/star*colon:quote".txt',
)
BAD_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "../up",
    "a/../../up",
    "a/./b",
    "a//b",
    "a/b/",
    "a/..",
    "nul\0byte",
    "new\nline",
    "x" * 1100,
)


class ArtifactStoreContract:
    """A subclass gives a `store` fixture: an empty store of its own for each test."""

    has_links = False
    """Links can be given to who has no access."""

    @pytest.fixture
    def store(self) -> Iterator[ArtifactStore]:
        raise NotImplementedError("give a `store` fixture")
        yield

    def again(self, store: ArtifactStore) -> ArtifactStore:
        """The same store, opened from its `place` by another program."""
        raise NotImplementedError("open the store from store.place")

    def test_files_come_back_as_they_were(self, store: ArtifactStore, tmp_path: Path) -> None:
        content = bytes(range(256)) * 999
        put(store, "benchmarks/r1/task/out.bin", content, tmp_path)
        assert taken(store, "benchmarks/r1/task/out.bin") == content
        target = tmp_path / "new" / "folder" / "out.bin"
        store.get("benchmarks/r1/task/out.bin", target)
        assert target.read_bytes() == content
        assert [file.name for file in target.parent.iterdir()] == ["out.bin"]

    def test_an_empty_file_is_a_file(self, store: ArtifactStore, tmp_path: Path) -> None:
        put(store, "empty", b"", tmp_path)
        assert taken(store, "empty") == b""
        store.get("empty", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == b""
        found = store.find("empty")
        assert found is not None and found.size == 0

    def test_texts(self, store: ArtifactStore) -> None:
        store.put_text("benchmarks/r1/b.json", '{"ü": "☃"}')
        assert taken(store, "benchmarks/r1/b.json").decode() == '{"ü": "☃"}'

    def test_the_later_of_two_wins(self, store: ArtifactStore, tmp_path: Path) -> None:
        put(store, "a/b", b"first and longer", tmp_path, {"digest": "1"})
        put(store, "a/b", b"second", tmp_path)
        assert taken(store, "a/b") == b"second"
        found = store.find("a/b")
        assert found is not None and (found.size, found.metadata) == (6, None)

    def test_what_it_was_put_with(self, store: ArtifactStore, tmp_path: Path) -> None:
        metadata = {"digest": "sha256:abc", "origin": "https://example.com/ü", "size": 3, "none": None}
        before = time.time()
        put(store, "agents/a.zip", b"zip", tmp_path, metadata)
        found = store.find("agents/a.zip")
        assert found is not None
        assert (found.key, found.size, found.metadata) == ("agents/a.zip", 3, metadata)
        assert before - 5 < found.modified_at < time.time() + 5

    def test_what_is_not_there(self, store: ArtifactStore, tmp_path: Path) -> None:
        store.put_text("is/there", "x")
        for key in ("none", "is", "is/there/not", "is/ther", "is/there2"):
            assert store.find(key) is None
            with pytest.raises(UnknownError):
                taken(store, key)
            with pytest.raises(UnknownError):
                store.get(key, tmp_path / "got")
            with pytest.raises(UnknownError):
                store.copy(key, "copy")
        assert not (tmp_path / "got").exists()
        assert store.find("copy") is None
        assert list(store.list("none/")) == []

    def test_a_file_that_is_not_there_cannot_be_put(self, store: ArtifactStore, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="missing"):
            store.put("key", tmp_path / "missing")
        assert store.find("key") is None

    def test_keys_are_kept_to_the_letter(self, store: ArtifactStore, tmp_path: Path) -> None:
        for key in ODD_KEYS:
            put(store, key, key.encode(), tmp_path, {"key": key})
            assert taken(store, key) == key.encode()
            assert [artifact.key for artifact in store.list("")] == [key]
            found = store.find(key)
            assert found is not None and found.metadata == {"key": key}
            store.copy(key, f"copies/{key}")
            assert taken(store, f"copies/{key}") == key.encode()
            store.delete(key)
            assert [artifact.key for artifact in store.list("")] == [f"copies/{key}"]
            store.delete("copies/")

    def test_keys_that_lead_away_are_refused(self, store: ArtifactStore, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        store.put_text("kept", "kept")
        acts: tuple[Callable[[str], object], ...] = (
            lambda key: store.put(key, file),
            lambda key: store.put_text(key, "x"),
            lambda key: taken(store, key),
            lambda key: store.get(key, tmp_path / "got"),
            lambda key: store.find(key),
            lambda key: store.copy("kept", key),
            lambda key: store.copy(key, "copy"),
            lambda key: store.url(key),
        )
        for key in BAD_KEYS:
            for act in acts:
                with pytest.raises(UsageError) as refused:
                    act(key)
                assert refused.value.cause == "artifact_key"
        assert [artifact.key for artifact in store.list("")] == ["kept"]

    def test_lists_are_whole_and_in_order(self, store: ArtifactStore) -> None:
        keys = ["a/b", "a-b", "a/b-c", "a/b.c", "a/c/d", "b", "ab", "aü"]
        for key in keys:
            store.put_text(key, key)
        assert [artifact.key for artifact in store.list("")] == sorted(keys, key=str.encode)
        assert [artifact.key for artifact in store.list("a/")] == ["a/b", "a/b-c", "a/b.c", "a/c/d"]
        assert [artifact.key for artifact in store.list("a/b/")] == []
        assert [(artifact.key, artifact.size) for artifact in store.list("a/c/")] == [("a/c/d", 5)]

    @pytest.mark.slow
    def test_lists_have_no_end_at_a_thousand(self, store: ArtifactStore) -> None:
        keys = [f"many/{number:05}" for number in range(1_203)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put_text(key, "x"), keys))
        assert [artifact.key for artifact in store.list("many/")] == keys
        store.put_text("other", "x")
        store.delete("many/")
        assert [artifact.key for artifact in store.list("")] == ["other"]

    def test_a_copy_is_another_object(self, store: ArtifactStore, tmp_path: Path) -> None:
        put(store, "agents/a.zip", b"first", tmp_path, {"digest": "1"})
        store.copy("agents/a.zip", "benchmarks/r1/a.zip")
        put(store, "agents/a.zip", b"second", tmp_path)
        assert taken(store, "benchmarks/r1/a.zip") == b"first"
        found = store.find("benchmarks/r1/a.zip")
        assert found is not None and found.metadata == {"digest": "1"}

    def test_removing_takes_what_is_below_and_nothing_beside(self, store: ArtifactStore) -> None:
        for key in ("runs/1/a", "runs/1/b/c", "runs/10/a", "runs/1.json", "runs/2/a"):
            store.put_text(key, key)
        store.delete("runs/1/")
        assert [artifact.key for artifact in store.list("runs/")] == ["runs/1.json", "runs/10/a", "runs/2/a"]
        store.delete("runs/2/a")
        store.delete("runs/2/a")
        store.delete("runs/10")
        store.delete("none/")
        assert [artifact.key for artifact in store.list("")] == ["runs/1.json", "runs/10/a"]
        for prefix in ("", "/", "../", "runs/../"):
            with pytest.raises(UsageError):
                store.delete(prefix)

    def test_many_hands_at_once(self, store: ArtifactStore, tmp_path: Path) -> None:
        """Readers see one of the versions, never a mixture and never nothing."""
        versions = [bytes([letter]) * 300_000 for letter in b"abcdef"]
        files = []
        for number, content in enumerate(versions):
            files.append(tmp_path / f"version-{number}")
            files[-1].write_bytes(content)
        store.put("shared/key", files[0])
        done = threading.Event()

        def write(file: Path) -> None:
            for turn in range(4):
                store.put("shared/key", file)
                store.put_text(f"own/{file.name}/{turn}", file.name)

        def look(reader: int) -> int:
            seen = 0
            while not done.is_set() or not seen:
                target = tmp_path / f"read-{reader}"
                store.get("shared/key", target)
                assert target.read_bytes() in versions
                seen += 1
            return seen

        with ThreadPoolExecutor(12) as pool:
            readers = [pool.submit(look, number) for number in range(3)]
            try:
                for writer in [pool.submit(write, file) for file in files]:
                    writer.result()
            finally:
                done.set()
            assert all(reader.result() for reader in readers)
        assert len(list(store.list("own/"))) == 4 * len(files)
        assert len(list(store.list("shared/"))) == 1

    def test_big_files_pass_in_pieces(self, store: ArtifactStore, tmp_path: Path) -> None:
        """More than one part of an upload, and never the whole in our memory."""
        file, size = tmp_path / "big", 24 << 20
        piece = os.urandom(1 << 20)
        with file.open("wb") as big:
            for number in range(size >> 20):
                big.write(number.to_bytes(8, "big") + piece[8:])
        wanted = hashlib.sha256(file.read_bytes()).hexdigest()
        tracemalloc.start()
        try:
            store.put("big", file)
            digest = hashlib.sha256()
            for part in store.read("big"):
                digest.update(part)
            store.get("big", tmp_path / "got")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert digest.hexdigest() == wanted
        assert hashlib.sha256((tmp_path / "got").read_bytes()).hexdigest() == wanted
        assert peak < size // 3

    def test_its_place_leads_back_to_it(self, store: ArtifactStore) -> None:
        store.put_text("a/b", "kept")
        assert taken(self.again(store), "a/b") == b"kept"
        assert self.again(store).place == store.place

    def test_addresses_for_people(self, store: ArtifactStore) -> None:
        assert store.url("a/b c").endswith("a/b c")
        link = store.link("a/b c", 60)
        assert (link is not None) == self.has_links

    def test_the_check_leaves_nothing(self, store: ArtifactStore) -> None:
        store.put_text("kept", "x")
        store.check()
        assert [artifact.key for artifact in store.list("")] == ["kept"]


def put(store: ArtifactStore, key: str, content: bytes, tmp_path: Path, metadata: object = None) -> None:
    """Put these bytes, from a file."""
    file = tmp_path / "put"
    file.write_bytes(content)
    store.put(key, file, metadata)  # type: ignore[arg-type]


def taken(store: ArtifactStore, key: str) -> bytes:
    """Return all bytes of an object."""
    return b"".join(store.read(key))
