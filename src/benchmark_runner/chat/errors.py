"""What can go wrong when a model is asked."""

from __future__ import annotations


class ChatError(Exception):
    """A model gave no answer. The message names the model and its address, never a key."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; None where there was no answer at all."""


class ChatConfigError(ChatError, ValueError):
    """Nothing says where the model is, or with which key it is asked."""


class ChatRefusalError(ChatError):
    """The model, or a filter before it, declines to answer."""


class ChatTooLongError(ChatError):
    """The messages are longer than the model can read."""


class ChatUnavailableError(ChatError):
    """The server was busy, broken or out of reach at every try."""
