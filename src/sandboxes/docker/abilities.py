"""What sandboxes of an engine can do, in words."""

from __future__ import annotations

from importlib.util import find_spec

from sandboxes.docker.client import missing_client
from sandboxes.docker.engine import Engine
from sandboxes.types import Capabilities

_FENCED = (
    "a bridge of its own; packet filter against private networks, the gateway, link-local and metadata "
    "addresses{more}; sandboxes cannot reach each other"
)


def capabilities(engine: Engine, image: str) -> Capabilities:
    """The provider's word on itself."""
    kind = "Podman" if engine.is_podman else "Docker"
    version = engine.info.get("ServerVersion", "")
    place = "this machine's" if engine.is_local else f"{engine.url}'s"
    problem = missing_client() if find_spec("aiodocker") is None else engine.problem
    here = ", and against this machine's own addresses" if engine.is_local else ""
    if engine.url is None:
        return Capabilities(
            provider="docker",
            isolation="a container of a Docker or Podman engine, of which none answers here",
            images=True,
            builds=True,
            gpus=True,
            networks=frozenset({"none", "public"}),
            missing=(("container engine", problem or "none answers"),),
            problem=problem or "no container engine answers",
        )
    return Capabilities(
        provider="docker",
        isolation=f"a container of {place} {kind} {version}: own files, processes, network; no own kernel",
        images=True,
        builds=True,
        builds_buildkit=engine.is_podman,
        gpus=True,
        mounts=engine.is_local,
        writable_system=True,
        carries_work=True,
        users=True,
        networks=frozenset({"none", "public"}),
        enforcement={
            "cpus": _cgroups(engine),
            "memory": _cgroups(engine) + ", no swap besides",
            "disk": _disk(engine),
            "pids": _cgroups(engine),
            "network": _FENCED.format(more=here),
            "image": f"{image} for tasks that name none",
        },
        missing=() if problem is None else (("container engine", problem),),
        problem=problem,
    )


def _cgroups(engine: Engine) -> str:
    version = engine.info.get("CgroupVersion")
    return f"cgroup v{version}" if version else "cgroups"


def _disk(engine: Engine) -> str:
    if engine.quota:
        return engine.quota
    driver = engine.info.get("Driver", "this storage driver")
    return (
        f"not enforced as a whole: {driver} here has no quota (overlay2 on xfs mounted with pquota has); "
        "one file may not be larger than the limit"
    )
