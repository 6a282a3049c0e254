"""The `config` commands."""
