"""Where tasks and grades come from: `open_benchmark` finds a benchmark, `open_frozen` makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from valkyrie.benchmarks.catalog import open_benchmark, open_frozen, shipped
    from valkyrie.benchmarks.task_dir.upload import pack_upload, unpack_upload

__all__ = ["open_benchmark", "open_frozen", "pack_upload", "shipped", "unpack_upload"]

# Reading task.toml needs pydantic, which `valk --help` must not pay for.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "valkyrie.benchmarks.catalog": ["open_benchmark", "open_frozen", "shipped"],
        "valkyrie.benchmarks.task_dir.upload": ["pack_upload", "unpack_upload"],
    },
)
