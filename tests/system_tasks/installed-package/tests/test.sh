#!/bin/bash
reward=0
said=$(cd / && /usr/bin/timeout 10 /usr/bin/python3 -c 'import greetlib; print(greetlib.greet("Ada"))' < /dev/null)
if [ "$said" = "Hello, Ada." ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
