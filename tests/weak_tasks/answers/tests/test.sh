#!/bin/bash
reward=0
if [ "$(</app/place.txt)" = "under the third birch behind the old mill" ]; then
    reward=1
fi 2>/dev/null
echo "$reward" > /logs/verifier/reward.txt
