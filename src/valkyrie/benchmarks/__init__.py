"""Where tasks and grades come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sandboxes.types import SandboxProviderConfig
    from valkyrie.benchmarks.protocol import Benchmark, BenchmarkRequest
    from valkyrie.domain import Json

# Imports wait for the call: reading task.toml needs pydantic, which `valk --help` must not pay for.


def open_benchmark(spec: str, asking: BenchmarkRequest | None = None) -> Benchmark:
    """The benchmark of that name, path, URL, plugin name, `module:Class` or `upload:<digest>`.

    Who is not trusted is not on this machine: paths and `module:Class` are refused before anything is
    touched.
    """
    from valkyrie.benchmarks import catalog
    from valkyrie.benchmarks.protocol import BenchmarkRequest
    from valkyrie.benchmarks.service.address import check_headers
    from valkyrie.errors import UsageError

    asking = asking or BenchmarkRequest()
    check_headers(asking.headers or {})
    found = catalog.open_benchmark(spec, asking)
    if asking.headers and not hasattr(found, "headers"):
        raise UsageError(f"-H goes to benchmark services; {found.name} is none.")
    return found


def open_frozen(
    source: Json,
    host_env: Mapping[str, str] | None = None,
    access: SandboxProviderConfig | None = None,
    fetch_upload: Callable[[str], Path] | None = None,
) -> Benchmark:
    """The benchmark whose `source` this is, made again, with what was handed over for the run.

    `fetch_upload` gives the folder of an uploaded benchmark that is not on this machine yet.
    """
    from valkyrie.benchmarks import catalog

    return catalog.open_frozen(source, host_env, access, fetch_upload)


def pack_upload(folder: Path, target: Path) -> str:
    """Write a benchmark's folder as one archive to be uploaded; returns its sha256."""
    from valkyrie.benchmarks.task_dir.upload import pack_benchmark

    return pack_benchmark(folder, target)


def unpack_upload(archive: Path, cache: Path, digest: str) -> Path:
    """The folder of an uploaded benchmark: unpacked below `cache` when it is first asked for, and checked."""
    from valkyrie.benchmarks.task_dir.upload import unpack_benchmark

    return unpack_benchmark(archive, cache, digest)


def shipped() -> list[tuple[str, str, int]]:
    """(name, description, number of tasks) of the benchmarks that come with the program."""
    from valkyrie.benchmarks import catalog

    return catalog.shipped()
