#!/bin/bash
# A hostile agent: what it attacks with is the task's name. Anything it gets hold of it reports as LEAK.
attack=$1 canary=$2
mkdir -p /logs/agent
report() { echo "LEAK $*"; }

case $attack in
spy)
    [ -e "$canary" ] && report "host file $canary"
    env | grep -q HOST_CANARY && report "host environment"
    tr '\0' '\n' < /proc/1/environ 2>/dev/null | grep -q HOST_CANARY && report "environment of pid 1"
    for home in /root /home/*; do
        for name in .ssh .aws .config/valkyrie .netrc .bash_history .local/share/valkyrie; do
            [ -e "$home/$name" ] && report "$home/$name"
        done
    done
    [ -r /etc/shadow ] && grep -q '^root:\$' /etc/shadow && report "password hashes"
    grep -rqs "TESTS-CANARY" /tests /solution /app /logs /tmp /opt /var/lib /mnt /srv && report "tests before grading"
    grep -rqs "SOLUTION-CANARY" /tests /solution /app /logs /tmp /opt /var/lib /mnt /srv && report "the solution"
    for process in /proc/[0-9]*; do
        tr '\0' ' ' < "$process/cmdline" 2>/dev/null | grep -q valkyrie.executor && report "the executor's process"
    done
    find / -xdev -name 'valkyrie.db' -print -quit 2>/dev/null | grep -q . && report "the store"
    ls /app/../workspace/other-trial 2>/dev/null && report "another trial"
    ;;
neighbour)
    echo "NEIGHBOUR-SECRET" > /workspace/mine; echo "NEIGHBOUR-SECRET" > /tmp/mine; echo x > /dev/shm/mine
    sleep 1
    [ "$(cat /workspace/theirs /tmp/theirs 2>/dev/null)" ] && report "a neighbour's files"
    ls /dev/shm | grep -qv '^mine$' && report "a neighbour's shared memory"
    ;;
network)
    timeout 3 python3 - <<'PY' || true
import socket
for address in (("127.0.0.1", 22), ("169.254.169.254", 80), ("1.1.1.1", 53)):
    link = socket.socket(); link.settimeout(0.5)
    try:
        link.connect(address); print("LEAK network", address)
    except OSError:
        pass
PY
    ls /sys/class/net 2>/dev/null | grep -qv '^lo$' && report "a network device"
    ;;
kernel)
    (echo '|/app/own' > /proc/sys/kernel/core_pattern) 2>/dev/null && report "core_pattern"
    mount -t tmpfs none /mnt 2>/dev/null && report "mount"
    mount --bind /app /mnt 2>/dev/null && report "bind mount"
    unshare -m true 2>/dev/null && unshare -m mount -t proc proc /mnt 2>/dev/null && report "mount in a new namespace"
    mknod /app/disk b 254 0 2>/dev/null && head -c1 /app/disk >/dev/null 2>&1 && report "raw disk"
    (echo b > /proc/sysrq-trigger) 2>/dev/null && report "sysrq"
    chroot /proc/1/root true 2>/dev/null && [ -e "/proc/1/root$canary" ] && report "another root"
    ;;
planted)
    mkdir -p /logs/verifier /tests
    echo 1 > /logs/verifier/reward.txt
    echo '{"reward": 1}' > /logs/verifier/reward.json
    printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n' > /tests/test.sh
    chmod 444 /logs/verifier/* /tests/test.sh
    ;;
linked)
    rm -rf /logs/verifier /tests
    mkdir -p /app/mine; echo 1 > /app/mine/reward.txt
    ln -s /app/mine /logs/verifier; ln -s /app /tests
    ;;
daemon)
    cat > /tmp/forge.sh <<'SH'
while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json; done
SH
    setsid nohup bash /tmp/forge.sh </dev/null >/dev/null 2>&1 &
    python3 - <<'PY'
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        while True:
            try:
                os.makedirs("/logs/verifier", exist_ok=True)
                open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
            except OSError:
                pass
    os._exit(0)
PY
    ;;
massacre)
    kill -9 -1
    ;;
bomb)
    bomb() { bomb | bomb & }; bomb; sleep 60
    ;;
hog)
    python3 -c 'x = bytearray(1 << 30); print("LEAK memory", len(x))'
    exit $?
    ;;
fill)
    for place in /app /run /dev/shm /dev /tmp; do
        timeout 10 dd if=/dev/zero of=$place/fill bs=1M count=4096 2>/dev/null && report "filled $place with 4 GB"
    done
    true
    ;;
outputs)
    ln -s /etc/passwd /logs/agent/passwd; ln -s "$canary" /logs/agent/canary; ln -s / /logs/agent/root
    ln -s ../../../../../../../../etc/hostname /logs/agent/up
    truncate -s 10G /logs/agent/sparse
    mkfifo /logs/agent/pipe
    echo fine > /logs/agent/fine.txt
    ;;
crowd)
    mkdir /logs/agent/many && cd /logs/agent/many && seq 100000 | xargs -n 5000 touch
    ;;
esac
