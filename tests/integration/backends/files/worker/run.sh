# Writes the answer every task asks for, after some thought.
mkdir -p /logs/worker
echo "thinking about $3"
sleep "$2"
echo 42 > answer.txt
echo "notes on $3" > /logs/worker/notes.txt
echo "done with $3"
