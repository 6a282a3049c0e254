"""Answers by an agent's bundle in a sandbox for each task: no tracker, no database, only files.

Names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

_HOME = {
    "benchmark_runner.sandbox.backend": ("SandboxTaskSpec",),
    "benchmark_runner.sandbox.setup": (
        "Bundle",
        "load_bundle",
        "pack_bundle",
        "AgentContract",
        "format_run_cmd",
    ),
    "benchmark_runner.sandbox.manifest": (
        "Manifest",
        "generate_manifest",
    ),
    "benchmark_runner.sandbox.orchestrator": (
        "run_benchmark",
        "evaluate_run",
        "score_run",
    ),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from benchmark_runner.sandbox.backend import SandboxTaskSpec as SandboxTaskSpec
    from benchmark_runner.sandbox.manifest import Manifest as Manifest
    from benchmark_runner.sandbox.manifest import generate_manifest as generate_manifest
    from benchmark_runner.sandbox.orchestrator import evaluate_run as evaluate_run
    from benchmark_runner.sandbox.orchestrator import run_benchmark as run_benchmark
    from benchmark_runner.sandbox.orchestrator import score_run as score_run
    from benchmark_runner.sandbox.setup import AgentContract as AgentContract
    from benchmark_runner.sandbox.setup import Bundle as Bundle
    from benchmark_runner.sandbox.setup import format_run_cmd as format_run_cmd
    from benchmark_runner.sandbox.setup import load_bundle as load_bundle
    from benchmark_runner.sandbox.setup import pack_bundle as pack_bundle
