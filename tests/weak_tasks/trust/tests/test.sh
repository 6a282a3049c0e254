#!/bin/bash
reward=0
if /usr/bin/timeout 10 /bin/bash /app/selfcheck.sh 1 2 3 < /dev/null; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
