#!/bin/bash
# The checks write the reward. -I and -S keep Python files and settings of the agent out of them.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
exec "$python" -ISB "$(dirname "$0")"
