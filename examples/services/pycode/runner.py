"""Runs in the sandbox: calls the agent's function with the arguments of each case and prints what it returns.

It knows no expected values; those stay with the service. Called as: runner.py SOLUTION FUNCTION CASES
"""

import importlib.util
import json
import sys


def main() -> int:
    solution, name, cases = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("solution", solution)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    with open(cases, encoding="utf-8") as file:
        arguments = json.load(file)
    for number, given in enumerate(arguments):
        try:
            said = {"case": number, "value": function(*given)}
            line = json.dumps(said)
        except Exception as error:  # noqa: BLE001 - the agent's code may raise anything
            line = json.dumps({"case": number, "error": f"{type(error).__name__}: {error}"[:200]})
        sys.stdout.write(f"\n{line}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
