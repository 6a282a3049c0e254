"""Several opinions of one model, and what comes of them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from benchmark_runner.chat import ChatModel, Message

FORM = "Think briefly, then end with one line: ANSWER: and the answer alone."
REMINDER = "I found no line that begins with ANSWER: in this. Give only that line, now."
KINDS = {"number": "The answer is a number; write it in digits.", "name": "The answer is a name."}


class OutOfTurnsError(Exception):
    """The model was asked as often as it may be."""


class Council:
    """One model that is asked as several voters."""

    def __init__(self, chat: ChatModel, *, max_turns: int) -> None:
        self._chat = chat
        self._max_turns = max_turns
        self.turns = 0
        self._votes: Counter[str] = Counter()
        self._spelling: dict[str, str] = {}

    async def decide(self, question: str, kind: str, votes: int) -> str:
        """The answer most voters give; the model chooses between answers with equally many."""
        for number in range(1, votes + 1):
            await self._hear(number, question, kind)
            if self._lead() > votes - number:
                break
        best = max(self._votes.values(), default=0)
        tied = [self._spelling[answer] for answer, count in self._votes.items() if count == best]
        return await self._choose(question, kind, tied) if len(tied) > 1 else "".join(tied)

    async def _hear(self, number: int, question: str, kind: str) -> None:
        answer = await self._answer(f"You are voter {number} of a quiz team. {KINDS[kind]} {FORM}", question)
        if answer is not None:
            self._votes[_plain(answer)] += 1
            self._spelling.setdefault(_plain(answer), answer)

    async def _choose(self, question: str, kind: str, answers: list[str]) -> str:
        listed = "\n".join(f"- {answer}" for answer in answers)
        asked = f"{question}\n\nThe team is divided between these answers:\n{listed}\n\nWhich one is right?"
        chosen = await self._answer(f"You are the captain of a quiz team. {KINDS[kind]} {FORM}", asked)
        return chosen if chosen is not None else answers[0]

    async def _answer(self, instructions: str, question: str) -> str | None:
        """The answer of one voter, who is reminded once of the form."""
        messages: list[Message] = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": question},
        ]
        for _ in range(2):
            if self.turns == self._max_turns:
                raise OutOfTurnsError(f"no decision after {self.turns} turns")
            self.turns += 1
            reply = await self._chat.ask(messages)
            if found := _said(reply.text):
                return found
            messages += [reply.message, {"role": "user", "content": REMINDER}]
        return None

    def _lead(self) -> int:
        """Votes by which the first is ahead of the second."""
        counts = [count for _, count in self._votes.most_common(2)]
        return counts[0] - sum(counts[1:]) if counts else 0

    def minutes(self) -> dict[str, Any]:
        """Who got how many votes, and what it took."""
        usage = self._chat.usage
        return {
            "votes": {self._spelling[answer]: count for answer, count in self._votes.items()},
            "turns": self.turns,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        }


def _said(text: str) -> str | None:
    """What stands in the last line of the form `ANSWER: …`."""
    for line in reversed(text.splitlines()):
        head, _, answer = line.partition(":")
        if head.strip(" *").casefold() == "answer" and (found := answer.strip(" *")):
            return found
    return None


def _plain(answer: str) -> str:
    """An answer as it is compared with others."""
    return re.sub(r"\W+", " ", answer).strip().casefold()
