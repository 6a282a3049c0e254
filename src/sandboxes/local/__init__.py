"""Sandboxes on this machine: bubblewrap, a keeper process that owns the mounts, a warden per sandbox."""
