"""The work given to Inspect. Runs inside Inspect's own virtual environment, never in ours."""

# mypy: ignore-errors
import asyncio

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes, match
from inspect_ai.solver import Generate, TaskState, generate, solver
from inspect_ai.util import sandbox as current_sandbox

MOCK_ANSWER = "Default output from mockllm/model"
NAP_SECONDS = 5.0


def samples(n: int, target: str) -> MemoryDataset:
    return MemoryDataset([Sample(id=i, input=f"sample {i}", target=target) for i in range(1, n + 1)])


@solver
def one_command():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await current_sandbox().exec(["sh", "-c", "echo graded"])
        state.output.completion = done.stdout
        return state

    return solve


@solver
def nap():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await asyncio.sleep(NAP_SECONDS)
        state.output.completion = "graded"
        return state

    return solve


@task
def trivial(n: int = 100) -> Task:
    """One call of the mock model, one string comparison."""
    return Task(dataset=samples(n, MOCK_ANSWER), solver=generate(), scorer=includes())


def echo(messages, tools, tool_choice, config) -> ModelOutput:
    """What Valkyrie's mock agent answers: the prompt."""
    return ModelOutput.from_content("mockllm/model", messages[-1].text)


@task
def graded(n: int = 500) -> Task:
    """The cases of `benchmarks/evals.py`: one answer, the word somewhere in it, and at its end."""
    cases = [
        Sample(id=i, input=f"Case {i}: explain the change, then say word-{i}", target=f"word-{i}")
        for i in range(1, n + 1)
    ]
    return Task(
        dataset=MemoryDataset(cases),
        model=get_model("mockllm/model", custom_outputs=echo),
        solver=generate(),
        scorer=[includes(), match()],
    )


@task
def sandbox(n: int = 100) -> Task:
    """One shell command in Inspect's `local` sandbox: a temporary folder on the host, no isolation."""
    return Task(dataset=samples(n, "graded"), solver=one_command(), scorer=includes(), sandbox="local")


@task
def sleepy(n: int = 2000) -> Task:
    """Nothing but a wait."""
    return Task(dataset=samples(n, "graded"), solver=nap(), scorer=includes())
