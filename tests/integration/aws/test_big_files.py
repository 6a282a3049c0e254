"""Big files pass through a program in pieces, in and out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aws_server import Ministack

pytest_plugins = ["tests.aws_server"]

SCRIPT = """
import hashlib, resource, sys
from pathlib import Path
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.session import AwsSession

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

bucket, source, target = sys.argv[1:]
store = S3Artifacts(AwsSession(), bucket)
store.check()
before = most()
store.put("big", Path(source))
after_put = most()
store.get("big", Path(target))
print(after_put - before, most() - after_put)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(ministack: Ministack, tmp_path: Path) -> None:
    source, target, piece = tmp_path / "source", tmp_path / "target", os.urandom(1 << 20)
    with source.open("wb") as file:
        for number in range(256):
            file.write(number.to_bytes(8, "big") + piece[8:])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ministack.bucket(), str(source), str(target)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **ministack.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    put, got = map(int, done.stdout.split())
    assert put < 64 and got < 32, f"{put} and {got} MiB for 256"
    with source.open("rb") as one, target.open("rb") as other:
        assert hashlib.file_digest(one, "sha256").digest() == hashlib.file_digest(other, "sha256").digest()
