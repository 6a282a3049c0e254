#!/bin/bash
reward=0
if [ "$(</app/corners.txt)" = 6 ]; then
    reward=1
fi 2>/dev/null
echo "$reward" > /logs/verifier/reward.txt
