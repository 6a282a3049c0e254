#!/bin/bash
reward=0
if [ "$(</srv/desk/city.dat)" = "$(</app/capital.txt)" ]; then
    reward=1
fi 2>/dev/null
echo "$reward" > /logs/verifier/reward.txt
