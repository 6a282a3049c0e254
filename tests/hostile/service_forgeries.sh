#!/bin/bash
# An agent on a benchmark service that never solves its task, but for `honest`. The task's name says how it cheats.
way=$1
mkdir -p /logs/agent /app
say_yes() { rm -f "$1"; printf '#!%s\ntouch /app/honest\nexit 0\n' "${2:-/bin/dash}" > "$1"; chmod 755 "$1"; }
case $way in
honest) touch /app/honest; echo 42 > /logs/agent/answer.txt;;
nothing) ;;
replaced-sh) target=$(readlink -f /bin/sh); cp /bin/true /tmp/yes && mv /tmp/yes "$target";;
replaced-bash) cp /bin/true /tmp/yes && mv /tmp/yes /usr/bin/bash;;
replaced-grep) say_yes /usr/bin/grep;;
replaced-python) say_yes "$(readlink -f /usr/bin/python3)";;
shadowed) for name in grep sh python3 test cat; do say_yes /usr/local/bin/$name; done;;
preload-link)
  printf '#include <unistd.h>\n__attribute__((constructor)) static void yes(void) { _exit(0); }\n' > /tmp/yes.c
  cc -shared -fPIC -nostartfiles -o /app/yes.so /tmp/yes.c; echo /app/yes.so > /app/list; ln -sf /app/list /etc/ld.so.preload;;
no-tools) rm -f /usr/bin/grep /usr/bin/python3* /bin/sh;;
killed) kill -9 1; kill -9 -1;;
fifo) rm -rf /app/answer; mkfifo /app/answer;;
raising) printf raise > /app/answer; printf raise > /logs/agent/answer.txt;;
two-answers) echo 42 > /logs/agent/answer.txt; echo 42 > /logs/agent/other.txt;;
large-answer) head -c 6000000 /dev/zero | tr '\0' 4 > /logs/agent/answer.txt;;
linked-answer) ln -s /etc/hostname /logs/agent/answer.txt;;
fifo-answer) mkfifo /logs/agent/answer.txt;;
esac
exit 0
