"""Asking models for answers, at any server that speaks OpenAI's or Anthropic's API.

    async with ChatModel(model, llm_config, log_dir=log_dir) as chat:
        reply = await chat.ask("How many legs does a spider have?")
    reply.text, reply.usage, reply.finish_reason

Names load on first use; httpx only where a server is behind a proxy, or compresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

_HOME = {
    "benchmark_runner.chat.model": ["ChatModel"],
    "benchmark_runner.chat.connections": ["kept_connections"],
    "benchmark_runner.chat.endpoint": ["Endpoint", "find_endpoint"],
    "benchmark_runner.chat.errors": [
        "ChatConfigError",
        "ChatError",
        "ChatRefusalError",
        "ChatTooLongError",
        "ChatUnavailableError",
    ],
    "benchmark_runner.chat.speaking": ["Message", "Reply", "Usage"],
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from benchmark_runner.chat.connections import kept_connections as kept_connections
    from benchmark_runner.chat.endpoint import Endpoint as Endpoint
    from benchmark_runner.chat.endpoint import find_endpoint as find_endpoint
    from benchmark_runner.chat.errors import ChatConfigError as ChatConfigError
    from benchmark_runner.chat.errors import ChatError as ChatError
    from benchmark_runner.chat.errors import ChatRefusalError as ChatRefusalError
    from benchmark_runner.chat.errors import ChatTooLongError as ChatTooLongError
    from benchmark_runner.chat.errors import ChatUnavailableError as ChatUnavailableError
    from benchmark_runner.chat.model import ChatModel as ChatModel
    from benchmark_runner.chat.speaking import Message as Message
    from benchmark_runner.chat.speaking import Reply as Reply
    from benchmark_runner.chat.speaking import Usage as Usage
