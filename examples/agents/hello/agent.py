"""The smallest agent that can solve something: it does what a sentence like

    Write `Hello, world` to `greeting.txt`.

asks for, and nothing else.
"""

import argparse
import json
import re
import sys
from pathlib import Path

REQUEST = re.compile(r"(?:write|put)\s+`([^`]*)`\s+(?:to|into|in)\s+`([^`]+)`", re.IGNORECASE)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instruction", type=Path, required=True)
    parser.add_argument("--style", choices=["plain", "loud"], default="plain")
    parser.add_argument("--logs", type=Path, required=True)
    options = parser.parse_args()

    requests = REQUEST.findall(options.instruction.read_text())
    for text, file in requests:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text((text.upper() if options.style == "loud" else text) + "\n")
        sys.stdout.write(f"wrote {file}\n")

    options.logs.mkdir(parents=True, exist_ok=True)
    (options.logs / "summary.json").write_text(json.dumps({"written": [file for _, file in requests]}) + "\n")
    if not requests:
        sys.stderr.write("this is beyond me\n")
    return 0 if requests else 1


if __name__ == "__main__":
    sys.exit(main())
