"""How both of OpenAI's APIs say that something is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from valkyrie.testing.model_server.script import Fault
from valkyrie.testing.model_server.shape import ScriptedFailure

ERRORS: Mapping[str, tuple[int, str, str | None, str]] = {
    "rate_limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    "context_overflow": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "unauthorized": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    "unknown_model": (
        404,
        "invalid_request_error",
        "model_not_found",
        "The model `no-such-model` does not exist or you do not have access to it.",
    ),
    "server_error": (500, "server_error", None, "The server had an error while processing your request."),
    "overloaded": (503, "server_error", None, "The engine is currently overloaded, please try again later."),
}


def openai_failure(fault: Fault) -> ScriptedFailure:
    """The error object, with its status."""
    status, kind, code, message = ERRORS[fault.kind]
    error = {"message": fault.message or message, "type": kind, "param": None, "code": code}
    return ScriptedFailure(status, {"error": error})
