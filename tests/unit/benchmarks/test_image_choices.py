"""What a task leaves to its image, and what of a task no provider can make yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.errors import SandboxImageError
from sandboxes.protocol import Capabilities, ImageDefaults
from valkyrie.agents import PreparedAgent
from valkyrie.benchmarks.task_dir.dockerfile import needs_of_buildkit
from valkyrie.benchmarks.task_dir.task import TaskDirectory
from valkyrie.domain import Category, TaskSpec
from valkyrie.schedule.policy import policy_for
from valkyrie.tracker.checks import unfit
from valkyrie.trial.attempt import classify
from valkyrie.views import RunRequest

IMAGE = ImageDefaults("/work", "worker", ("/entry.sh",))
ENGINE = Capabilities("docker", "", images=True, builds=True, networks=frozenset({"public"}), users=True)


def made(folder: Path, toml: str, environment: dict[str, str], *, host_image: bool = False) -> TaskSpec:
    for name, text in {"tests/test.sh": "true\n", "instruction.md": "Do.", "task.toml": toml}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, text in environment.items():
        (folder / "environment").mkdir(exist_ok=True)
        (folder / "environment" / name).write_text(text)
    return TaskDirectory("one", folder, host_image).spec("digest", {})


def refusals(task: TaskSpec, capabilities: Capabilities = ENGINE, *, host_image: bool = False) -> list[str]:
    request = RunRequest(agent="nop", benchmark="b", provider="docker", host_image=host_image)
    return unfit([task], PreparedAgent("nop", "", {}, {}), capabilities, request)


def test_the_image_decides_what_the_task_does_not(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "x"\n'
    task = made(tmp_path / "all", toml, {}).placed(IMAGE)
    assert (task.cwd, task.user, task.grading_user) == ("/work", "worker", "worker")
    assert "entrypoint" in task.of_image
    toml += 'workdir = "/own"\n[agent]\nuser = 1000\n[verifier]\nuser = "root"\n'
    task = made(tmp_path / "none", toml, {}).placed(IMAGE)
    assert (task.cwd, task.user, task.grading_user) == ("/own", "1000", "root")


def test_a_relative_workdir_is_the_images_to_tell(tmp_path: Path) -> None:
    task = made(tmp_path, "", {"Dockerfile": "FROM base\nWORKDIR below\n"})
    assert task.placed(ImageDefaults("/base/below")).cwd == "/base/below"


def test_without_an_image_nothing_is_left_to_one(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", "", {})
    stand_in = made(tmp_path / "host", "", {"Dockerfile": "FROM base\nWORKDIR /exam\n"}, host_image=True)
    for task, cwd in ((plain, "/app"), (stand_in, "/exam")):
        assert (task.placed(IMAGE).cwd, task.placed(IMAGE).user, task.of_image) == (cwd, None, frozenset())


def test_steps_that_name_a_user_keep_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / "steps" / name / "tests").mkdir(parents=True)
        (tmp_path / "steps" / name / "tests" / "test.sh").write_text("true\n")
        (tmp_path / "steps" / name / "instruction.md").write_text("Do.")
    steps = '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\nagent.user = "other"\n'
    task = made(tmp_path, f'[environment]\ndocker_image = "x"\n{steps}', {}).placed(IMAGE)
    assert [(step.cwd, step.user, step.grading_user) for step in task.steps] == [
        ("/work", "worker", "worker"),
        ("/work", "other", "worker"),
    ]


@pytest.mark.parametrize("recipe", ["Dockerfile", "docker_image", "neither"])
def test_further_containers_are_refused_by_name(tmp_path: Path, recipe: str) -> None:
    files = {"docker-compose.yaml": "services: {}\n"}
    files |= {"Dockerfile": "FROM x\n"} if recipe == "Dockerfile" else {}
    toml = '[environment]\ndocker_image = "x"\n' if recipe == "docker_image" else ""
    (said,) = refusals(made(tmp_path, toml, files))
    assert "'one'" in said and "environment/docker-compose.yaml" in said and "--host-image" in said
    stand_in = made(tmp_path, toml, files, host_image=True)
    assert refusals(stand_in, host_image=True) == []
    assert any("docker-compose.yaml is left out" in text for text in stand_in.metadata["warnings"])


BUILDKIT = """# syntax=docker/dockerfile:1
FROM --platform=$BUILDPLATFORM base
ARG TARGETARCH
ARG VERSION=1
RUN --mount=type=cache,target=/root/.cache pip install x
COPY --chown=a --chmod=755 a /a
COPY --from=base /b /b
RUN <<EOF
echo hello
EOF
RUN cat > /x <<'END' && true
RUN --mount in a text
END
RUN echo "a << b" && ls
"""


def test_lines_for_buildkit_are_refused_by_number(tmp_path: Path) -> None:
    assert needs_of_buildkit(BUILDKIT) == [
        "line 2: FROM --platform=$BUILDPLATFORM",
        "line 3: ARG TARGETARCH (filled by the builder)",
        "line 5: RUN --mount",
        "line 6: COPY --chmod",
        "line 8: RUN with a heredoc",
        "line 11: RUN with a heredoc",
    ]
    task = made(tmp_path, "", {"Dockerfile": BUILDKIT})
    (said,) = refusals(task)
    assert "BuildKit" in said and "line 5: RUN --mount" in said and "docker_image" in said
    podman = Capabilities(
        "docker", "", images=True, builds=True, builds_buildkit=True, networks=frozenset({"public"})
    )
    assert not any("BuildKit" in text for text in refusals(task, podman))
    plain = "FROM x\nRUN a \\\n  --mount=no && b\nCOPY --chown=1 a b\nCOPY --from=x a b\n"
    assert needs_of_buildkit(plain) == []


def test_a_broken_image_is_the_benchmarks_error_and_tried_once() -> None:
    failure = classify(SandboxImageError("cannot build"))
    assert failure.category is Category.BENCHMARK
    assert policy_for(failure.category, failure.cause).attempts == 1
