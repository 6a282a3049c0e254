"""What an agent did, step by step, in the Agent Trajectory Interchange Format (ATIF).

Versions 1.0 to 1.8 are read, 1.8 is written. Reading is strict: an unknown field, a step out of order or a
result of a call that was never made is refused, and the error names the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from valkyrie.trajectory.conversion import TrajectoryBuilder
    from valkyrie.trajectory.json_fields import TrajectoryError
    from valkyrie.trajectory.model import (
        SCHEMA_VERSION,
        AgentInfo,
        ContentPart,
        FinalMetrics,
        Observation,
        ObservationResult,
        Step,
        StepMetrics,
        SubagentRef,
        ToolCall,
        Trajectory,
        TrajectoryImage,
    )

__all__ = [
    "SCHEMA_VERSION",
    "AgentInfo",
    "ContentPart",
    "FinalMetrics",
    "Observation",
    "ObservationResult",
    "Step",
    "StepMetrics",
    "SubagentRef",
    "ToolCall",
    "Trajectory",
    "TrajectoryBuilder",
    "TrajectoryError",
    "TrajectoryImage",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "valkyrie.trajectory.conversion": ("TrajectoryBuilder",),
        "valkyrie.trajectory.json_fields": ("TrajectoryError",),
        "valkyrie.trajectory.model": sorted({*__all__} - {"TrajectoryBuilder", "TrajectoryError"}),
    },
)
