#!/bin/bash
set -e
place=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$place/greetlib"
printf 'def greet(name):\n    return f"Hello, {name}."\n' > "$place/greetlib/__init__.py"
