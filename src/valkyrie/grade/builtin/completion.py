"""Whether the agent came to an end worth the name."""

from __future__ import annotations

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.protocol import Given, GraderResult


class CompletedGrader(BuiltIn):
    """`completed`: an output, no error, and at least one turn that ended."""

    type = "completed"

    async def look(self, given: Given) -> GraderResult:
        transcript = given.transcript
        if not transcript.output.strip():
            return self.failed("the output is empty")
        error = next(transcript.of_type("error"), None)
        if error is not None:
            return self.failed(f"an error occurred: {error.data.get('message', '(no message)')}")
        if next(transcript.of_type("turn_end"), None) is None:
            return self.failed("no turn came to its end")
        return self.found(True, "there is an output, no error, and a turn that ended")


class ExitSuccessGrader(BuiltIn):
    """`exit-success`: an output."""

    type = "exit-success"

    async def look(self, given: Given) -> GraderResult:
        said = bool(given.transcript.output.strip())
        return self.found(said, "there is an output" if said else "the output is empty")
