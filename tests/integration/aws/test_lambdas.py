"""Real functions that really run."""

from __future__ import annotations

import pytest

from tests.aws_server import Ministack
from valkyrie.aws import services
from valkyrie.aws.services import LambdaFailedError
from valkyrie.errors import InfrastructureError, UserError

pytest_plugins = ["tests.aws_server"]

CODE = """
import pathlib

def handler(event, context):
    calls = pathlib.Path(event["calls"])
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    match event["do"]:
        case "raise":
            raise ValueError("no database\\n\\x1b[31m" + "long " * 1000)
        case "text":
            return "a text"
        case "status":
            return {"statusCode": event["status"], "body": "as asked"}
        case "exit":
            import os
            os._exit(3)
    return {"statusCode": 200, "got": event}
"""


@pytest.fixture(scope="module")
def function(ministack: Ministack) -> str:
    return ministack.function(CODE)


@pytest.fixture
def calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("lambda") / "calls")


def test_it_is_given_the_run(ministack: Ministack, function: str, calls: str) -> None:
    arguments = {"do": "", "calls": calls, "agent": "a", "concurrency": 5, "task_ids": ["ü/1"]}
    payload = services.lambda_payload(arguments, "run-1", "quick")
    answer = services.invoke_function(ministack.session(), function, payload)
    assert answer["got"] == payload
    assert payload == {
        **arguments,
        "benchmark_id": "run-1",
        "run_id": "run-1",
        "benchmark_name": "quick",
    }
    assert arguments.keys() == {"do", "calls", "agent", "concurrency", "task_ids"}


def test_an_answer_that_is_no_object(ministack: Ministack, function: str, calls: str) -> None:
    answer = services.invoke_function(ministack.session(), function, {"do": "text", "calls": calls})
    assert answer == {"answer": "a text"}


def test_a_function_that_raises_is_called_once(ministack: Ministack, function: str, calls: str) -> None:
    with pytest.raises(LambdaFailedError, match=f"{function} failed: no database") as caught:
        services.invoke_function(ministack.session(), function, {"do": "raise", "calls": calls})
    shown = str(caught.value)
    assert len(shown) < 700 and shown.isprintable()
    with open(calls) as file:
        assert file.read() == "x"


def test_a_function_that_says_it_failed(ministack: Ministack, function: str, calls: str) -> None:
    for status in (400, 503, "500"):
        with pytest.raises(LambdaFailedError, match=f"answered {status}: as asked"):
            services.invoke_function(
                ministack.session(), function, {"do": "status", "status": status, "calls": calls}
            )
    for status in (200, 399, None, "fine"):
        services.invoke_function(
            ministack.session(), function, {"do": "status", "status": status, "calls": calls}
        )


def test_a_function_that_dies(ministack: Ministack, function: str, calls: str) -> None:
    with pytest.raises(LambdaFailedError):
        services.invoke_function(ministack.session(), function, {"do": "exit", "calls": calls})


def test_the_check_runs_nothing(ministack: Ministack, function: str, tmp_path: object) -> None:
    services.check_function(ministack.session(), function)
    for name in ("nowhere", "arn:aws:lambda:us-east-1:000000000000:function:nowhere"):
        with pytest.raises(UserError, match=f"no Lambda function {name}"):
            services.check_function(ministack.session(), name)
    for name in ("", "a b", "../x", "x" * 300):
        with pytest.raises(UserError, match="not the name"):
            services.check_function(ministack.session(), name)
    forbidden = ministack.session(ministack.user("s3:GetObject"))
    with pytest.raises(UserError, match=f"grant lambda:InvokeFunction on {function}"):
        services.check_function(forbidden, function)


def test_a_payload_that_is_too_large(ministack: Ministack, function: str) -> None:
    with pytest.raises(UserError, match="more than the"):
        services.invoke_function(ministack.session(), function, {"x": "y" * (6 << 20)})


def test_nobody_answers() -> None:
    from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession

    session = AwsSession(AwsAccess("eu-west-1", AwsKeys("a", "b"), endpoint="http://127.0.0.1:9"))
    with pytest.raises(InfrastructureError) as caught:
        services.invoke_function(session, "function", {})
    assert caught.value.cause == "aws_unreachable"
