"""Which folders a sandbox has, and what they are."""

from __future__ import annotations

SYSTEM_TREES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "var/lib/dpkg", "var/lib/rpm")
"""Folders shown as they are on the host, where they are real folders; links among them are copied."""

PRIVATE_FOLDERS = ("app", "workspace", "bundle", "tests", "logs", "solution", "opt", "srv", "home", "mnt")
"""Empty folders tasks, agents and graders expect to find and to write to."""

MOUNT_POINTS = ("proc", "dev", "sys", "run")

HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {HOSTNAME}\n"
