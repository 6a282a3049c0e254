#!/bin/bash
set -euo pipefail
python3 - <<'EOF'
import csv

with open("contacts.csv", encoding="utf-8-sig", newline="") as file:
    records = [row for row in csv.reader(file) if row][1:]

people = {}
for number, row in enumerate(records):
    row[1] = row[1].strip().lower()
    people.setdefault(row[1] or number, []).append((row[4], number, row))

with open("clean.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", "email", "phone", "note", "updated"])
    for found in people.values():
        latest_first = [row for _, _, row in sorted(found, reverse=True)]
        writer.writerow([next((value for value in column if value), "") for column in zip(*latest_first)])
EOF
cat clean.csv
