"""For authors of standalone runners: generate answers to a benchmark's tasks, have a service grade them.

Names load on first use: importing this package costs next to nothing and pulls in no vendor's SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

__version__ = "0.1.0"

_HOME = {
    "benchmark_runner.base": ["BenchmarkRunner"],
    "benchmark_runner.cli": ["make_cli"],
    "benchmark_runner.schemas": [
        "EvalResult",
        "EvalResultData",
        "EvalStatus",
        "GenerationResult",
        "GenerationStatus",
        "ScoreResult",
        "Task",
    ],
    "benchmark_runner.artifacts": ["RunArtifacts"],
    "benchmark_runner.chat": ["ChatError", "ChatModel"],
    "benchmark_runner.checkpoint": ["RunConfig"],
    "benchmark_runner.client": ["build_client"],
    "benchmark_runner.llm": ["LLMConfig", "build_llm_config"],
    "benchmark_service.schemas": ["EvaluateResponseRequest", "FinalScoreResponse"],
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from benchmark_runner.artifacts import RunArtifacts as RunArtifacts
    from benchmark_runner.base import BenchmarkRunner as BenchmarkRunner
    from benchmark_runner.chat import ChatError as ChatError
    from benchmark_runner.chat import ChatModel as ChatModel
    from benchmark_runner.checkpoint import RunConfig as RunConfig
    from benchmark_runner.cli import make_cli as make_cli
    from benchmark_runner.client import build_client as build_client
    from benchmark_runner.llm import LLMConfig as LLMConfig
    from benchmark_runner.llm import build_llm_config as build_llm_config
    from benchmark_runner.schemas import EvalResult as EvalResult
    from benchmark_runner.schemas import EvalResultData as EvalResultData
    from benchmark_runner.schemas import EvalStatus as EvalStatus
    from benchmark_runner.schemas import GenerationResult as GenerationResult
    from benchmark_runner.schemas import GenerationStatus as GenerationStatus
    from benchmark_runner.schemas import ScoreResult as ScoreResult
    from benchmark_runner.schemas import Task as Task
    from benchmark_service.schemas import EvaluateResponseRequest as EvaluateResponseRequest
    from benchmark_service.schemas import FinalScoreResponse as FinalScoreResponse
