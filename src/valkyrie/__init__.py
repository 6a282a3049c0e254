"""The benchmark orchestration platform for AI agents."""

__version__ = "0.1.0"
