"""`python -m valkyrie.testing.model_server`: the same as `valkyrie model-server`."""

from __future__ import annotations

import sys

from valkyrie.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main(["model-server", *sys.argv[1:]]))
