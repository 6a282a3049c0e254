#!/bin/bash
# The checks write the reward. No program is looked up in PATH; -I and -S keep Python files and settings of
# the agent out of them.
for python in /usr/bin/python3 /usr/local/bin/python3; do
    [ -x "$python" ] && exec "$python" -ISB "${0%/*}"
done
echo "there is neither /usr/bin/python3 nor /usr/local/bin/python3" >&2
exit 127
