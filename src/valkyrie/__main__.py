"""`valkyrie`, `valk`, `python -m valkyrie`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; `--version` alone is answered without loading anything."""
    if sys.argv[1:] == ["--version"]:
        from valkyrie.version import VERSION

        sys.stdout.write(f"valkyrie {VERSION}\n")
        return 0
    from valkyrie.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
