"""Which skills were used."""

from __future__ import annotations

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult

ANY = "*"


class SkillInvocationGrader(BuiltIn):
    """`skill-invocation`: exact names against the skills that were activated; `*` forbids every skill."""

    type = "skill-invocation"

    def read(self, config: Config) -> None:
        self.required = config.texts("required")
        self.disallowed = config.texts("disallowed")
        self.absence_only = not self.required
        if not self.required and not self.disallowed:
            raise config.wrong("`required` or `disallowed` must name at least one skill.")
        both = sorted(set(self.required) & set(self.disallowed))
        if both or (self.required and ANY in self.disallowed):
            raise config.wrong(f"{', '.join(both) or ANY} is both required and disallowed.")

    async def look(self, given: Given) -> GraderResult:
        used = list(
            dict.fromkeys(
                str(event.data.get("name")) for event in given.transcript.of_type("skill_activation")
            )
        )
        missing = [name for name in self.required if name not in used]
        wrong = used if ANY in self.disallowed else [name for name in used if name in self.disallowed]
        problems = [f"required but not used: {', '.join(missing)}"] if missing else []
        problems += [f"used but disallowed: {', '.join(wrong)}"] if wrong else []
        return self.found(not problems, "; ".join([*problems, f"used: {', '.join(used) or 'none'}"]))
