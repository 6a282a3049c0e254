#!/bin/bash
# A hostile agent on tasks of two steps: what it attacks with is the task's name, the step is what it is told.
# Anything it gets hold of it reports as LEAK.
attack=$1
read -r step _
report() { echo "LEAK $*"; }
places="/tests /solution /steps /app /logs /tmp /opt /var/lib /mnt /srv"

# Writes a reward of its own for as long as it lives.
cat > /var/tmp/forge.sh <<'FORGE'
while :; do
    mkdir -p /logs/verifier
    echo '{"reward": 1}' > /logs/verifier/reward.json
    echo 1 > /logs/verifier/reward.txt
done
FORGE

case $attack-$step in
spy-*)
    grep -rqs TESTS-CANARY $places && report "tests in $step"
    grep -rqs SOLUTION-CANARY $places && report "a solution in $step"
    [ "$step" = first ] && grep -rqs LATER-CANARY $places && report "what the second step is told"
    ls -A /tests /logs/verifier | grep -qv ':$\|^$' && report "what grading left before $step"
    ;;
planted-*)
    mkdir -p /logs/verifier /tests
    echo '{"reward": 1}' | tee /logs/verifier/reward.json > /tests/reward.json
    echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
    [ "$step" = first ] && kill -9 $$
    ;;
daemon-*)
    setsid nohup bash /var/tmp/forge.sh </dev/null >/dev/null 2>&1 &
    ;;
gathered-*)
    # The task's own collect command runs this.
    printf '#!/bin/bash\nsetsid nohup bash /var/tmp/forge.sh </dev/null >/dev/null 2>&1 &\n' > /app/summary
    chmod +x /app/summary
    ;;
filed-*)
    rm -rf /logs/artifacts; echo mine > /logs/artifacts
    ;;
linked-*)
    rm -rf /logs/artifacts /app/notes; ln -s /etc /logs/artifacts; ln -s /etc /app/notes; ln -s /etc/passwd /app/one.log
    mkfifo /app/two.log; ln -s /etc /app/part
    ;;
taken-*)
    # Every name under which something else is to be kept.
    mkdir -p /logs/artifacts/{report,agent_output.tar.gz/x} /app/part/a /app/part/b; echo mine > /logs/artifacts/report/x
    for name in app notes same; do echo mine > "/logs/artifacts/$name"; done
    echo report > /app/report; mkdir -p /app/notes; echo note > /app/notes/note
    echo a > /app/part/a/same; echo b > /app/part/b/same; echo one > /app/one.log; echo two > /app/two.log
    ;;
monsters-*)
    mkdir -p /app/notes; truncate -s 1T /app/one.log /app/report /app/notes/huge /logs/artifacts/huge
    echo small > /app/two.log
    (cd /logs/artifacts && for _ in $(seq 100); do mkdir d && cd d || break; done; echo deep > file)
    ;;
long-*)
    name=$(printf 'x%.0s' $(seq 200)); mkdir -p /logs/agent
    for top in /logs/artifacts /logs/agent; do
        (cd $top && for _ in $(seq 40); do mkdir $name && cd $name || break; done; echo deep > file)
    done
    ;;
homeless-*)
    cd /; rm -rf /app
    ;;
squatter-*)
    rm -rf /app; echo mine > /app
    ;;
told-*)
    rm -rf /tmp/instruction.md; mkdir -p /tmp/instruction.md/x
    ;;
elsewhere-*)
    rm -rf /tmp; ln -s /nowhere /tmp
    ;;
fill-*)
    cat /dev/zero > /app/fill 2>/dev/null
    ;;
esac
exit 0
