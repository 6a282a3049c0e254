#!/bin/bash
cd /app
reward=0
if PYTHONPATH=/tests:/app /usr/bin/python3 -m unittest -q check_doubling; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
