"""`valkyrie`, `valk`, `python -m valkyrie`."""

from __future__ import annotations

import sys

from valkyrie import __version__


def _forget_current_folder() -> None:
    """Take off the search path what `python -m` put there: modules beside a stranger's files are not ours."""
    if not sys.flags.safe_path:
        del sys.path[0]


def main() -> int:
    """Run the command line; `--version` alone is answered without loading anything."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"valkyrie {__version__}\n")
        return 0
    from valkyrie.cli.main import main as run

    return run()


if __name__ == "__main__":
    _forget_current_folder()
    sys.exit(main())
