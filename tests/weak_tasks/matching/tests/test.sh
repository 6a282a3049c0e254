#!/bin/bash
reward=0
if /usr/bin/grep -q 366 /app/days.txt; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
