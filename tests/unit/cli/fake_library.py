"""Agents, secrets and benchmarks of a data folder: the verbs a fake tracker answers in earnest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from valkyrie.config.values import data_folder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import AgentView, BenchmarkView, SecretView, TasksRequest, TasksView


class FakeLibrary:
    """As embedded mode has them; each verb opens the data folder the environment names."""

    def agents(self) -> Sequence[AgentView]:
        return LocalTracker(data_folder()).agents()

    def push_agent(self, folder: Path, name: str | None = None, *, origin: str | None = None) -> AgentView:
        return LocalTracker(data_folder()).push_agent(folder, name, origin=origin)

    def remove_agent(self, name: str) -> None:
        LocalTracker(data_folder()).remove_agent(name)

    def download_agent(self, name: str, output_dir: Path) -> Path:
        return LocalTracker(data_folder()).download_agent(name, output_dir)

    def secrets(self) -> Sequence[SecretView]:
        return LocalTracker(data_folder()).secrets()

    def set_secret(self, name: str, value: str) -> None:
        LocalTracker(data_folder()).set_secret(name, value)

    def remove_secret(self, name: str) -> None:
        LocalTracker(data_folder()).remove_secret(name)

    def benchmarks(self) -> Sequence[BenchmarkView]:
        return LocalTracker(data_folder()).benchmarks()

    def benchmark_tasks(self, request: TasksRequest) -> TasksView:
        return LocalTracker(data_folder()).benchmark_tasks(request)
