#!/bin/bash
reward=0
if [ -f /app/sum.txt ] && [ ! -L /app/sum.txt ] && [ "$(</app/sum.txt)" = 129 ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
