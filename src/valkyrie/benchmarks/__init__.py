"""Where tasks and grades come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxes.configs import SandboxProviderConfig
    from valkyrie.benchmarks.protocol import Benchmark
    from valkyrie.nouns import Json

# Imports wait for the call: reading task.toml needs pydantic, which `valk --help` must not pay for.


def open_benchmark(
    spec: str,
    *,
    host_image: bool = False,
    headers: Mapping[str, str] | None = None,
    ignore_custom: bool = False,
) -> Benchmark:
    """The benchmark of that name, path, URL, plugin name or `module:Class`."""
    from valkyrie.benchmarks import catalogue
    from valkyrie.errors import UsageError

    found = catalogue.open_benchmark(
        spec, host_image=host_image, headers=headers, ignore_custom=ignore_custom
    )
    if headers and not hasattr(found, "headers"):
        raise UsageError(f"-H goes to benchmark services; {found.name} is none.")
    return found


def open_frozen(
    source: Json,
    host_env: Mapping[str, str] | None = None,
    access: SandboxProviderConfig | None = None,
) -> Benchmark:
    """The benchmark whose `source` this is, made again, with what was handed over for the run."""
    from valkyrie.benchmarks import catalogue

    return catalogue.open_frozen(source, host_env, access)


def shipped() -> list[tuple[str, str, int]]:
    """(name, description, number of tasks) of the benchmarks that come with the program."""
    from valkyrie.benchmarks import catalogue

    return catalogue.shipped()
