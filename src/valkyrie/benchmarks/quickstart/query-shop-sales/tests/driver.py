"""Runs the agent's query on a database made of what comes as JSON; it may read that and nothing else."""

import json
import sqlite3
import sys
import time

ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}

given = json.load(sys.stdin)
connection = sqlite3.connect(":memory:")
connection.executescript(given["schema"])
for table, rows in given["tables"].items():
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
connection.commit()
deadline = time.process_time() + 5
connection.set_progress_handler(lambda: time.process_time() > deadline, 10_000)
allow, deny = sqlite3.SQLITE_OK, sqlite3.SQLITE_DENY
connection.set_authorizer(lambda action, *_: allow if action in ALLOWED else deny)
cursor = connection.execute(given["query"])
answer = {"columns": [column[0] for column in cursor.description], "rows": cursor.fetchmany(1_000)}
sys.stdout.write(json.dumps(answer))
