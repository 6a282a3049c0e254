"""Where a database is, and what is said of it."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from valkyrie.errors import UsageError
from valkyrie.store import Store
from valkyrie.store.database import parse


@pytest.mark.parametrize(
    ("given", "kind", "place"),
    [
        (Path("/x/v.db"), "sqlite", "/x/v.db"),
        ("sqlite:////x/v.db", "sqlite", "/x/v.db"),
        ("postgresql://me:hush@h:5433/v", "postgresql", "postgresql://me@h:5433/v"),
        ("postgres://me:hush@h/v?sslmode=require", "postgresql", "postgresql://me@h/v"),
        ("postgresql+psycopg://h/v?password=hush", "postgresql", "postgresql://h/v"),
        ("postgresql:///v?host=/run/pg", "postgresql", "postgresql:///run/pg/v"),
    ],
)
def test_an_address_shows_no_password(given: Path | str, kind: str, place: str) -> None:
    address = parse(given)
    assert (address.kind, address.place) == (kind, place)
    assert "hush" not in repr(address)


def test_a_relative_file_is_meant_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("sqlite:///v.db").path == tmp_path / "v.db"


@pytest.mark.parametrize(
    "given",
    [
        "mysql://me:hush@h/v",
        "hush",
        "postgresql://me:hush@h:port/v",
        "postgresql://me:hush@h",
        "sqlite://",
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(given)
    said = "".join(traceback.format_exception(caught.value)).split("parse(given)")[-1]
    assert "hush" not in said
    assert "postgresql://" in said or "sqlite:///" in said


def test_without_its_driver_postgresql_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from valkyrie.store import Store\n"
        "try: Store('postgresql://me:hush@h/v')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("UsageError")
    assert "pip install 'psycopg" in said
    assert "hush" not in said


def test_a_store_shows_no_password(postgres_url: str) -> None:
    store = Store(postgres_url.replace("postgres@", "postgres:hush@"))
    assert "hush" not in f"{store!r} {store.place}"
    store.close()
