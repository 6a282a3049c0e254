"""Generated requests against every operation of the description: whatever comes, never a 5xx of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from tests.integration.api.stage import Stage, open_stage, serving_aside
from valkyrie.api.app import bare_app
from valkyrie.api.capacity import ApiSettings
from valkyrie.domain import Identity
from valkyrie.views import RunRequest
from valkyrie.views.jobs import JobAgent, JobRequest

pytestmark = pytest.mark.slow

QUIETLY = settings(
    deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@dataclass
class Served:
    """A tracker, and the ids of an ended run and an ended job, by their addresses."""

    stage: Stage
    url: str
    looked_at: dict[str, str]
    reopened: dict[str, str]


@schemathesis.serializer("application/zip")
def as_it_is(_context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root: Path = tmp_path_factory.mktemp("nonsense")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "valkyrie.yaml"))
        patch.delenv("VALKYRIE_DATABASE_URL", raising=False)
        stage = open_stage(root / "home")
        looked_at = {"/v1/runs": stage.finished_run(), "/v1/jobs": ended_job(stage)}
        reopened = {"/v1/runs": stage.finished_run(), "/v1/jobs": ended_job(stage)}
        with serving_aside(stage, ApiSettings(keep_alive_s=0.5)) as url:
            yield Served(stage, url, looked_at, reopened)
        stage.tracker_app.close()


def ended_job(stage: Stage) -> str:
    """A job as people start it, all of it worked off."""
    request = JobRequest([JobAgent("nop")], RunRequest("", "quickstart", slice=":2", provider="null"))
    job = stage.tracker_app.tracker(Identity()).start_job(request).job
    for leased in stage.lease(job.runs[0].id):
        stage.finish(leased)
    stage.conclude(job.runs[0].id)
    return job.id


def ask_everything(served: Served, how: settings) -> None:
    """Generated requests to every operation there is, until one is answered as none may be."""
    schema = schemathesis.openapi.from_dict(bare_app().openapi())
    schema.config.update(base_url=served.url)
    for found in schema.get_all_operations():
        operation = found.ok()

        @how
        @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
        def ask(case: schemathesis.Case) -> None:
            if "ref" in (case.path_parameters or {}):
                # Nobody works the runs off here: one that is set going again would be followed for ever.
                again = case.path.endswith(("/retry", "/resume"))
                ids = served.reopened if again else served.looked_at
                case.path_parameters["ref"] = "abcdef" if case.method == "DELETE" else ids[case.path[:8]]
            response = case.call(headers={"Authorization": f"Bearer {served.stage.ours}"}, timeout=60)
            case.validate_response(response, checks=[not_a_server_error])

        # What takes no input has nothing that could be wrong with it.
        with contextlib.suppress(Unsatisfiable):
            ask()


def test_no_request_breaks_the_tracker(served: Served) -> None:
    ask_everything(served, settings(max_examples=2, derandomize=True, parent=QUIETLY))


@pytest.mark.slow
def test_no_request_of_many_breaks_the_tracker(served: Served) -> None:
    ask_everything(served, settings(max_examples=int(os.environ.get("API_EXAMPLES", "30")), parent=QUIETLY))
