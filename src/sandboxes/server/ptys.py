"""Terminals."""

from __future__ import annotations


class Pty:
    async def end(self) -> None: ...
