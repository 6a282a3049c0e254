#!/bin/bash
reward=0
if [ -s /app/french.txt ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
