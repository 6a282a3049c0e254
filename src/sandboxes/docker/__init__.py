"""Sandboxes that are containers of a Docker or Podman engine."""

from sandboxes.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
