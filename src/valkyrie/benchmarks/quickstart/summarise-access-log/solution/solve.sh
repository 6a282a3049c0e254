#!/bin/bash
set -euo pipefail
python3 - <<'EOF'
import json
import re
from collections import Counter
from datetime import datetime, timezone

QUOTED = r'"((?:[^"\\]|\\.)*)"'
LINE = re.compile(rf"(\S+) \S+ \S+ \[([^\]]+)\] {QUOTED} (\d{{3}}) (\d+|-) {QUOTED} {QUOTED}")

malformed, clients, sizes, paths, hours = 0, set(), Counter(), Counter(), Counter()
for line in open("access.log", encoding="utf-8"):
    match = LINE.fullmatch(line.rstrip("\n"))
    if match is None:
        malformed += 1
        continue
    client, stamp, request, status, size, _, _ = match.groups()
    clients.add(client)
    sizes[status] += 0 if size == "-" else int(size)
    moment = datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").astimezone(timezone.utc)
    hours[moment.strftime("%Y-%m-%dT%H")] += 1
    words = request.split(" ")
    if len(words) == 3 and words[0] == "GET" and status.startswith("2"):
        paths[words[1].partition("?")[0]] += 1


def ranked(counter):
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


summary = {
    "requests": sum(hours.values()),
    "malformed": malformed,
    "clients": len(clients),
    "bytes_by_status": dict(sorted(sizes.items())),
    "top_paths": ranked(paths)[:5],
    "busiest_hour_utc": ranked(hours)[0][0],
}
json.dump(summary, open("summary.json", "w"), indent=2)
print(json.dumps(summary))
EOF
