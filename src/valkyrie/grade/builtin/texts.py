"""What the agent said: its final output, or all of its messages."""

from __future__ import annotations

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult
from valkyrie.grade.seeking import sought_by, wanted_by
from valkyrie.trajectory.transcript import Event


class OutputGrader(BuiltIn):
    """`output-contains`, `output-matches` and their `-not-` forms."""

    def read(self, config: Config) -> None:
        self.sought = sought_by(config, self.spec.type)
        self.wanted = wanted_by(config, self.spec.type)
        self.absence_only = not self.wanted

    async def look(self, given: Given) -> GraderResult:
        output = given.transcript.output
        place = self.sought.where(output)
        if place is not None:
            return self.found(self.wanted, f"the output has {self.sought.name}: {place}")
        shown = f"it is: {clipped(output, 200)}" if output else "it is empty"
        return self.found(not self.wanted, f"the output does not have {self.sought.name}; {shown}")


class TranscriptGrader(BuiltIn):
    """`transcript-contains`, `transcript-matches` and their `-not-` forms."""

    def read(self, config: Config) -> None:
        self.sought = sought_by(config, self.spec.type)
        self.wanted = wanted_by(config, self.spec.type)
        self.absence_only = not self.wanted

    async def look(self, given: Given) -> GraderResult:
        messages = [
            text for event in given.transcript.of_type("assistant_message") if (text := spoken(event))
        ]
        if not messages:
            return self.failed("there are no messages of the assistant")
        for number, message in enumerate(messages, 1):
            if (place := self.sought.where(message)) is not None:
                return self.found(self.wanted, f"message {number} has {self.sought.name}: {place}")
        return self.found(not self.wanted, f"none of the {len(messages)} messages has {self.sought.name}")


def spoken(event: Event) -> str:
    """What a message says; foreign records have it in parts, some of which are no text."""
    content = event.data.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))
