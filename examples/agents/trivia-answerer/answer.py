"""An agent that has learned a few answers by heart, one of them wrong, and leaves the rest alone."""

import sys
from pathlib import Path

KNOWN = {
    "legs does a spider": "Eight.",
    "planet of the solar system": "jupiter",
    "symbol of gold": "Au",
    "capital of Portugal": "Lisboa",
    "sides does a hexagon": "6",
    "language Python": "Guido van Rossum",
    "water boil": "100 °C",
    "river that flows mostly": "the Seine",
    "bits are in a byte": "8",
}


def main() -> int:
    problem, answer = Path(sys.argv[1]), Path(sys.argv[2])
    question = problem.read_text()
    found = next((text for words, text in KNOWN.items() if words in question), None)
    if found is None:
        sys.stdout.write("I do not know.\n")
        return 0
    answer.write_text(f"{found}\n")
    sys.stdout.write(f"I say: {found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
