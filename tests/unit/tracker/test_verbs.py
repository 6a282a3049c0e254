"""A verb's parameters are those of its request, wherever it is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from valkyrie.client import ValkyrieClient
from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import Tracker
from valkyrie.tracker.remote import RemoteTracker
from valkyrie.views import (
    OutputsWanted,
    ResultsWanted,
    ResumeRequest,
    RetryRequest,
    StopRequest,
    UpdateRequest,
)
from valkyrie.views.jobs import JobRetry, JobStop

VERBS = sorted(name for name, found in vars(Tracker).items() if inspect.isfunction(found) and name[0] != "_")
REQUESTS = {
    "stop": StopRequest,
    "resume": ResumeRequest,
    "retry": RetryRequest,
    "update": UpdateRequest,
    "results": ResultsWanted,
    "upload_results": ResultsWanted,
    "outputs": OutputsWanted,
    "stop_job": JobStop,
    "retry_job": JobRetry,
}


def parameters(verb: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(verb).parameters if name != "self"]


@pytest.mark.parametrize("name", VERBS)
def test_both_trackers_take_what_the_protocol_says(name: str, tmp_path: Path) -> None:
    asked = parameters(getattr(Tracker, name))
    local = parameters(getattr(LocalTracker(tmp_path), name))
    assert local[: len(asked)] == asked
    remote = parameters(getattr(RemoteTracker, name))
    assert remote[: len(asked)] == asked


@pytest.mark.parametrize(("name", "request_type"), REQUESTS.items(), ids=REQUESTS)
def test_the_client_takes_the_fields_of_the_request(name: str, request_type: Any) -> None:
    taken = parameters(getattr(ValkyrieClient, name))
    assert [field.name for field in fields(request_type)] == [one for one in taken if one not in _WHICH]


_WHICH = ("ref", "destination")
