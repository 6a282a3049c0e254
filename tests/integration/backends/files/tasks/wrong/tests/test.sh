#!/bin/bash
out=${VERIFIER_DIR:-/logs/verifier}
mkdir -p "$out"
if [ "$(cat answer.txt)" = 43 ]; then echo 1; else echo 0; fi > "$out/reward.txt"
