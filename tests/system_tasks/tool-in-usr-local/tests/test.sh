#!/bin/bash
reward=0
if [ "$(/usr/bin/timeout 10 /usr/local/bin/shout loud words < /dev/null)" = "LOUD WORDS!" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
