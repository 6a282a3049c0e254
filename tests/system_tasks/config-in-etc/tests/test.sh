#!/bin/bash
reward=0
if [ "$(</etc/weatherd.conf)" = $'station = Davos\ninterval = 30' ]; then
    reward=1
fi 2>/dev/null
echo "$reward" > /logs/verifier/reward.txt
