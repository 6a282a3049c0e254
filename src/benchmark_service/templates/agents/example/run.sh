#!/bin/sh
# An agent that knows the two example tasks, to see the benchmark at work. Called as: run.sh STATEMENT_FILE
set -eu

case $(cat "$1") in
  *"Hello, World!"*) answer="Hello, World!" ;;
  *"2 + 2"*) answer=4 ;;
  *) answer="I do not know." ;;
esac
echo "$answer" > /workspace/answer.txt
