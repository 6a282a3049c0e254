"""The text behind `--task-ids-file`: a file, stdin, or something on the web."""

from __future__ import annotations

import errno
import sys
import time

import click

from valkyrie.regular_files import read_regular

TIMEOUT_SECONDS = 30.0
LARGEST_BYTES = 50 * 1024**2


def read_text(source: str) -> str:
    """What `source` holds; UsageError says why it cannot be had."""
    try:
        if source.lower().startswith(("http://", "https://")):
            return _download(source).decode("utf-8")
        return _read(source).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file (UTF-8)"
        hint = " A pipe is read as stdin: --task-ids-file -" if _is_special(error) else ""
        raise click.UsageError(f"--task-ids-file {_shown(source)}: {reason}.{hint}") from error


def _read(source: str) -> bytes:
    if source != "-":
        return read_regular(source, LARGEST_BYTES)
    read = sys.stdin.buffer.read(LARGEST_BYTES + 1)
    if len(read) > LARGEST_BYTES:
        raise _refused(source, f"more than {LARGEST_BYTES // 1024**2} MB")
    return read


def _download(url: str) -> bytes:
    import httpx

    received = bytearray()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code != httpx.codes.OK:
                raise _refused(url, f"the server answered {response.status_code} {response.reason_phrase}")
            if response.headers.get("content-type", "").startswith("text/html"):
                raise _refused(url, "the server sent a web page, not a list of ids")
            for piece in response.iter_bytes():
                received += piece
                if len(received) > LARGEST_BYTES:
                    raise _refused(url, f"more than {LARGEST_BYTES // 1024**2} MB")
                if time.monotonic() > deadline:
                    raise _refused(url, f"not read within {TIMEOUT_SECONDS:g} s")
    except httpx.TimeoutException:
        raise _refused(url, f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _refused(url, str(error) or type(error).__name__) from None
    return bytes(received)


def _is_special(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EINVAL


def _refused(url: str, reason: str) -> click.UsageError:
    return click.UsageError(f"--task-ids-file {_shown(url)}: {reason}")


def _shown(source: str) -> str:
    """The source without what may be secret in an address: user, password and query."""
    if "://" not in source:
        return source
    scheme, _, rest = source.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
