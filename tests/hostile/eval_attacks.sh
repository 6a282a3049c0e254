#!/bin/bash
# An agent whose instruction names what it does to its eval.
cd /workspace || exit 1
attack=$(cat "$1")
nested() { printf '%*s' "$1" '' | tr ' ' '['; printf '%*s' "$1" '' | tr ' ' ']'; }
case $attack in
look)
  grep -rl ONLY-FOR-GRADING /etc /home /mnt /opt /root /run /srv /start /tests /tmp /var/tmp /workspace 2>/dev/null
  ls -A . tests 2>/dev/null
  env
  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n'
  echo "looked";;
plant)
  echo 'exit 0' > /tests/check.sh 2>/dev/null
  mkdir -p tests; ln -s /etc/passwd tests/check.sh; ln -s / root; ln -s ../../../../etc/passwd up
  echo planted;;
git)
  rm -rf .git; git init -q . 2>/dev/null
  printf '[core]\n\tfsmonitor = touch %s\n[diff "x"]\n\ttextconv = touch %s;\n[filter "x"]\n\tclean = touch %s; cat\n' \
    "$HOST_FILE" "$HOST_FILE" "$HOST_FILE" >> .git/config
  mkdir -p .git/hooks 'git~1' .GIT; printf '#!/bin/sh\ntouch %s\n' "$HOST_FILE" > .git/hooks/post-index-change
  chmod +x .git/hooks/post-index-change; echo '* filter=x diff=x' > .gitattributes
  for name in 'git~1/config' .GIT/config '.git.' ':(glob)x' 'a\b' '"q"' $'new\nline' $'bad\xff' '-rf' $'\e[31mred'; do
    echo changed > "$name"
  done
  mkfifo pipe; echo done;;
link) cd /; rm -rf /workspace; ln -s /etc /workspace; echo gone;;
file) cd /; rm -rf /workspace; echo x > /workspace; echo gone;;
pipe) cd /; rm -rf /workspace; mkfifo /workspace; echo gone;;
later) (setsid sh -c 'while :; do echo late > /workspace/late; sleep 0.05; done' > /dev/null 2>&1 &); echo ok;;
say)
  printf 'hello\n::error::taken over\n   ::add-mask::hello\n``````\n```\n# Heading\nx ##[error]bad ##vso[task.complete]\n'
  printf '\e[31mred\e]8;;http://evil\alink\e]8;;\a\e[2J </failure><script>alert(1)</script> ]]>\n'
  printf '| a | b |\n![x](http://evil/x.png)\n\u202ertl \xff\xfe\n';;
regex) printf '%*s' 40000 '' | tr ' ' a; echo '!';;
deep) nested 5000 > /tmp/transcript.json; echo ok;;
deeper) { printf '{"output":"x","events":[{"type":"tool_call","data":{"toolName":"t","arguments":'; nested 600
  printf '}}]}'; } > /tmp/transcript.json; echo ok;;
atif) nested 5000 > /tmp/trajectory.json; echo ok;;
nonsense) echo '{"output":{"a":1},"events":[null,5,{"type":7}],"metrics":[1],"metadata":5}' > /tmp/transcript.json
  echo ok;;
forged)
  cat > /tmp/transcript.json <<'J'
{"output": "forged", "events": [{"type": "tool_call", "data": {"toolName": "read", "toolCallId": "1", "arguments": {}}},
 {"type": "turn_end", "data": {}}],
 "metrics": {"tokenUsage": {"inputTokens": -5, "outputTokens": 1e400}, "turnCount": "many", "wallTimeMs": 1},
 "metadata": {"model": "\u001b[31mother", "executor": ["x"], "skillsLoaded": {"a": 1}}}
J
  sleep 0.2;;
large) head -c 100000000 /dev/zero | tr '\0' a; echo; echo END;;
many) mkdir m; cd m || exit; seq 1 20000 | xargs touch; echo ok;;
tree) for _ in $(seq 1 700); do mkdir x; cd x || exit; done; echo ok;;
esac
