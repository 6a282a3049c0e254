#!/bin/bash
# A hostile agent on a benchmark service. Anything it gets hold of it reports as LEAK.
attack=$1 problem=$2
mkdir -p /logs/agent
report() { echo "LEAK $*"; }

case $attack in
spy)
    env | grep -qi -e daytona -e api_key && report "a key in the environment"
    for process in /proc/[0-9]*; do
        tr '\0' '\n' < "$process/environ" 2>/dev/null | grep -qi daytona && report "a key in $process/environ"
        tr '\0' ' ' < "$process/cmdline" 2>/dev/null | grep -q -e uvicorn -e valkyrie && report "$process/cmdline"
    done
    grep -rqs "HIDDEN-CANARY" /tests /app /logs /tmp /opt /var /mnt /srv /home /root && report "hidden tests"
    ls -A /tmp /var/tmp | grep -q -e session -e command -e terminal && report "what the service left"
    ;;
knock)
    read -r url _ < "$problem"
    python3 - "$url" <<'PY'
import socket, sys
port = int(sys.argv[1].split(":")[2].split("/")[0])
gateways = {"127.0.0.1", "::1", "localhost"}
try:
    lines = [line.split() for line in open("/proc/net/route")][1:]
    gateways |= {socket.inet_ntoa(bytes.fromhex(line[2])[::-1]) for line in lines}
except OSError:
    pass
try:
    gateways |= {line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")}
except OSError:
    pass
for host in gateways:
    try:
        socket.create_connection((host, port), timeout=2).close()
        print("LEAK the sandbox server answers at", host, port)
    except OSError as error:
        print("no way to", host, port, error)
PY
    ;;
forge)
    # What the service's commands are found by: start-up files, a search path, libraries, shells of its own.
    printf 'touch /app/honest; exit 0\n' | tee /root/.bashrc /root/.profile /root/.bash_profile >/dev/null
    mkdir -p /app/bin && printf '#!/bin/sh\ntouch /app/honest\n' > /app/bin/sh && chmod +x /app/bin/sh
    echo "PATH=/app/bin:$PATH; BASH_ENV=/root/.bashrc; ENV=/root/.bashrc" >> /etc/environment
    export BASH_ENV=/root/.bashrc ENV=/root/.bashrc PATH=/app/bin:$PATH
    mkdir -p /tests && printf 'exit 0\n' > /tests/hidden.sh && chmod 444 /tests/hidden.sh && chmod 555 /tests
    ;;
daemon)
    (setsid nohup bash -c 'while :; do date +%s%N > /app/beat.new; mv /app/beat.new /app/beat; mkdir -p /tests
        printf "exit 0\n" > /tests/hidden.sh; sleep 0.02; done' >/dev/null 2>&1 &)
    until [ -s /app/beat ]; do sleep 0.02; done
    ;;
traps)
    mkfifo /app/pipe; ln -s /etc/shadow /app/shadow; ln -s /dev/zero /app/zero
    rm -f "$problem"; mkfifo "$problem"
    mkfifo /logs/agent/pipe; ln -s /etc/shadow /logs/agent/shadow; truncate -s 50G /logs/agent/huge
    ;;
esac
exit 0
