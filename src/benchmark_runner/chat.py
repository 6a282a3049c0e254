"""Ask models for answers, at any server that speaks OpenAI's or Anthropic's API.

    async with ChatModel(model, llm_config, log_dir=log_dir) as chat:
        reply = await chat.ask("How many legs does a spider have?")
    reply.text, reply.usage, reply.finish_reason

Names load on first use; aiohttp with the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

_HOME = {
    "benchmark_runner.models.client": ["ChatModel", "kept_connections"],
    "benchmark_runner.models.dialect": ["Message", "Reply", "Usage"],
    "benchmark_runner.models.endpoint": [
        "Endpoint",
        "find_endpoint",
        "ChatConfigError",
        "ChatError",
        "ChatRefusalError",
        "ChatTooLongError",
        "ChatUnavailableError",
    ],
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from benchmark_runner.models.client import ChatModel as ChatModel
    from benchmark_runner.models.client import kept_connections as kept_connections
    from benchmark_runner.models.dialect import Message as Message
    from benchmark_runner.models.dialect import Reply as Reply
    from benchmark_runner.models.dialect import Usage as Usage
    from benchmark_runner.models.endpoint import ChatConfigError as ChatConfigError
    from benchmark_runner.models.endpoint import ChatError as ChatError
    from benchmark_runner.models.endpoint import ChatRefusalError as ChatRefusalError
    from benchmark_runner.models.endpoint import ChatTooLongError as ChatTooLongError
    from benchmark_runner.models.endpoint import ChatUnavailableError as ChatUnavailableError
    from benchmark_runner.models.endpoint import Endpoint as Endpoint
    from benchmark_runner.models.endpoint import find_endpoint as find_endpoint
