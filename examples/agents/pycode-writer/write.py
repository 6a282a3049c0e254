"""An agent that has written a few functions before, not all of them well."""

import re
import sys
from pathlib import Path

KNOWN = {
    "clamp": """
def clamp(value, low, high):
    return max(low, min(value, high))
""",
    "initials": """
def initials(name):
    return "".join(f"{word[0].upper()}." for word in name.split())
""",
    "run_lengths": """
from itertools import groupby

def run_lengths(text):
    return [[letter, len(list(run))] for letter, run in groupby(text)]
""",
    "median": """
def median(numbers):
    return sorted(numbers)[len(numbers) // 2]  # good enough for odd counts
""",
    "balanced": """
def balanced(text):
    return all(text.count(one) == text.count(other) for one, other in ("()", "[]", "{}"))
""",
    "roman": """
def roman(number):
    return "I" * number
""",
}


def main() -> int:
    problem, solution = Path(sys.argv[1]), Path(sys.argv[2])
    asked = re.search(r"`(\w+)\(", problem.read_text())
    code = KNOWN.get(asked[1]) if asked else None
    if code is None:
        sys.stdout.write("I have never written such a function.\n")
        return 0
    solution.write_text(code.lstrip())
    sys.stdout.write(f"wrote {asked[1]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
