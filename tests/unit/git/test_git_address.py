"""Which addresses are taken, and what git is given for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.errors import UsageError
from valkyrie.git.command import hide_credentials
from valkyrie.git.repository import GitSource, parse_source

WEB = ("https", "ssh")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("https://github.com/o/r", GitSource("https://github.com/o/r", WEB, "r")),
        ("https://github.com/o/r.git/", GitSource("https://github.com/o/r.git", WEB, "r")),
        ("http://127.0.0.1:3000/o/r", GitSource("http://127.0.0.1:3000/o/r", ("http", "https"), "r")),
        ("https://gitlab.com/g/sub/r", GitSource("https://gitlab.com/g/sub/r", WEB, "r")),
        ("ssh://git@h:2222/o/r.git", GitSource("ssh://git@h:2222/o/r.git", WEB, "r")),
        ("git@github.com:o/r.git", GitSource("git@github.com:o/r.git", ("ssh",), "r")),
        ("host.example:r", GitSource("host.example:r", ("ssh",), "r")),
        ("file:///srv/r.git", GitSource("file:///srv/r.git", ("file",), "r")),
        ("file:///srv/tree/r", GitSource("file:///srv/tree/r", ("file",), "r")),
        (
            "https://github.com/o/r/tree/main/sub/folder",
            GitSource("https://github.com/o/r", WEB, "r", None, ("main", "sub", "folder")),
        ),
        (
            "https://github.com/o/r/tree/main/a%20b/",
            GitSource("https://github.com/o/r", WEB, "r", None, ("main", "a b")),
        ),
        (
            "https://gitlab.com/g/sub/r/-/tree/main/x",
            GitSource("https://gitlab.com/g/sub/r", WEB, "r", None, ("main", "x")),
        ),
        (
            "git@github.com:o/r/tree/main/x",
            GitSource("git@github.com:o/r", ("ssh",), "r", None, ("main", "x")),
        ),
        (
            "file:///srv/r.git/tree/main",
            GitSource("file:///srv/r.git", ("file",), "r", None, ("main",)),
        ),
        ("https://github.com/tree/tree", GitSource("https://github.com/tree/tree", WEB, "tree")),
    ],
)
def test_addresses(text: str, source: GitSource) -> None:
    assert parse_source(text) == source


def test_a_ref_beside_a_tree_must_be_the_same() -> None:
    both = parse_source("https://github.com/o/r/tree/feature/x/sub", "feature/x")
    assert (both.ref, both.tree) == ("feature/x", ("feature", "x", "sub"))
    with pytest.raises(UsageError, match="leave one of them out"):
        parse_source("https://github.com/o/r/tree/main/sub", "v1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no address"),
        ("-oProxyCommand=touch x", "no address"),
        ("--upload-pack=touch x", "no address"),
        ("ext::sh -c touch% x", "no address"),
        ("ext::touch", "no address"),
        ("git://host/o/r", "no address"),
        ("ftp://host/o/r", "no address"),
        ("https://", "no address"),
        ("https:///o/r", "names no host"),
        ("https://-x/o/r", "names no host"),
        ("ssh://-oProxyCommand=x/o/r", "names no host"),
        ("ssh://-x@host/o/r", "names no user"),
        ("https://host", "names no repository"),
        ("https://host/../r", "names no repository"),
        ("https://host:99999/o/r", "no URL"),
        ("https://host/o/r?x=1", "no query"),
        ("https://host/o/r#x", "no query"),
        ("git@host:-x", "no address"),
        ("git@-host:x/y", "no address"),
        ("https://host/o/r/tree/", "names no branch|no address"),
        ("https://host/o/r/tree/main/../../etc", "names no repository|no branch and folder"),
        ("https://host/o/r/tree/main/%2e%2e/x", "no branch and folder"),
        ("https://host/o/r/tree/main/a%2fb", "no branch and folder"),
        ("https://host/o/r/tree/main/.git/hooks", "no branch and folder"),
        ("https://host/o/r/tree/main/a%00b", "no branch and folder"),
        ("github.com/o/r", r"Did you mean https://github\.com/o/r\?"),
        ("./nowhere", "no such folder"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_source(text)


@pytest.mark.parametrize(
    "text", ["https://me:hush@host/o/r", "https://hush@host/o/r", "ssh://git:hush@host/o/r"]
)
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match=r"https://\*\*\*@host|ssh://\*\*\*@host") as caught:
        parse_source(text)
    assert "hush" not in str(caught.value)
    assert "credential helpers" in str(caught.value)


@pytest.mark.parametrize(
    "ref", ["", "-x", "--upload-pack=x", "a..b", "a b", "a^", "a~1", "@{1}", "x.lock", "a:b", "/a"]
)
def test_refs_that_are_none(ref: str) -> None:
    with pytest.raises(UsageError, match="no branch, tag or commit"):
        parse_source("https://github.com/o/r", ref)


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match=r"is no git repository\. `valk agent push"):
        parse_source(str(tmp_path / "plain"))


def test_hiding() -> None:
    assert hide_credentials("x https://a:b@h/p and http://h/p@q") == "x https://***@h/p and http://h/p@q"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://github.com/o/r", "https://github.com/o/r/tree/main/x"),
        ("git@h:o/r", "git@h:o/r/tree/main/x"),
        ("https://gitlab.com/g/s/r", "https://gitlab.com/g/s/r/-/tree/main/x"),
        ("file:///srv/deep/r.git", "file:///srv/deep/r.git/tree/main/x"),
        ("file:///srv/deep/r", "file:///srv/deep/r/-/tree/main/x"),
    ],
)
def test_how_a_folder_of_it_is_named(text: str, url: str) -> None:
    source = parse_source(text)
    assert source.folder_url("main", "x") == url
    again = parse_source(url)
    assert (again.url, again.tree) == (source.url, ("main", "x"))
