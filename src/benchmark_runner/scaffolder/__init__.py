"""`create-benchmark-runner`: the command that starts a new benchmark runner."""
