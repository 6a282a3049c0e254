"""Eval specs: reading `eval.yaml`, `.vally.yaml` and experiment files, of every age of the format."""
