"""Little shell scripts that do with a path what the protocol asks. The path is `$1`; no link is followed."""

REMOVE = 'rm -rf -- "$1"'
CLEAR = """
if [ -L "$1" ] || [ ! -d "$1" ]; then rm -rf -- "$1"; mkdir -p -- "$1"; exit; fi
cd -- "$1" && find . -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +
"""
IS_FOLDER = 'if [ -d "$1" ] && [ ! -L "$1" ]; then echo yes; else echo no; fi'
