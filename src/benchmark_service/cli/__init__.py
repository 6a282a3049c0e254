"""`create-benchmark-service`: the command that starts a new benchmark service."""
