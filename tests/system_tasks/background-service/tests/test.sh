#!/bin/bash
reward=0
if exec 3<> /dev/tcp/127.0.0.1/8123 && read -r -t 10 line <&3 && [ "$line" = "at your service" ]; then
    reward=1
fi 2>/dev/null
echo "$reward" > /logs/verifier/reward.txt
