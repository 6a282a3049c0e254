"""Which `program` graders run the agent's code and read its words as their verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.evals.lint.specs import program_findings
from valkyrie.specs.model import FileEntry, GraderSpec, Stimulus

SCRIPTS = {
    "runs.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'solution.py'])\nprint('{}')\n",
    "system.py": "import os\nos.system('python3 solution.py')\n",
    "keeps.py": "import subprocess\nsubprocess.run(['python3', 'solution.py'], capture_output=True)\n",
    "pipes.py": "import subprocess\nsubprocess.run(['./a.out'], stdout=subprocess.DEVNULL)\n",
    "looks.py": "import subprocess\nsubprocess.run(['git', 'status'])\nopen('answer.txt').read()\n",
    "broken.py": "def (:\n",
    "runs.sh": "#!/bin/sh\nset -e\nif timeout 5 python3 solution.py; then echo ok; fi\n",
    "tests.sh": "cd sub && pytest -q\n",
    "own.sh": "#!/bin/sh\n./build.sh\n",
    "keeps.sh": "#!/bin/sh\nsaid=$(python3 a.py)\npython3 a.py > out.txt\npython3 a.py | grep -q 4\n",
    "hidden.sh": "#!/bin/sh\npython3 hidden/looks.py\n",
}
AGENTS = [
    {"program": "python3", "args": ["solution.py"]},
    {"program": "./check"},
    {"program": "pytest", "args": ["-q"]},
    {"program": "python3", "args": ["-m", "pytest"]},
    {"program": "cd sub && npm test", "shell": True},
    {"program": "X=1 node main.js", "shell": True},
    {"program": "python3", "args": ["-I", "hidden/runs.py"]},
    {"program": "python3", "args": ["hidden/system.py"]},
    {"program": "hidden/runs.sh"},
    {"program": "sh", "args": ["./hidden/tests.sh"]},
    {"program": "bash", "args": ["hidden/own.sh"]},
    {"program": "sh", "args": ["-c", "python3 solution.py"]},
    {"program": "python3", "args": ["-c", "import os; os.system('./a')"]},
]
OWN = [
    {"program": "python3", "args": ["solution.py"], "verdict": "file"},
    {"program": "python3", "args": ["hidden/keeps.py"]},
    {"program": "python3", "args": ["hidden/pipes.py"]},
    {"program": "python3", "args": ["hidden/looks.py"]},
    {"program": "python3", "args": ["hidden/broken.py"]},
    {"program": "sh", "args": ["hidden/keeps.sh"]},
    {"program": "sh", "args": ["hidden/hidden.sh"]},
    {"program": "grep", "args": ["-q", "42", "answer.txt"]},
    {"program": "/usr/bin/python3", "args": ["/opt/check.py"]},
    {"program": "test -f answer.txt", "shell": True},
    {"program": "python3", "args": 3},
    {"program": "it's", "shell": True},
]


def findings(folder: Path, config: dict[str, object]) -> list[str]:
    (folder / "hidden").mkdir()
    for name, text in SCRIPTS.items():
        (folder / "hidden" / name).write_text(text)
    files = (FileEntry("hidden", "hidden", folder),)
    stimulus = Stimulus("s", ("x",), (GraderSpec("program", config),), grading_files=files)
    return [one.message for one in program_findings(stimulus)]


@pytest.mark.parametrize("config", AGENTS, ids=str)
def test_code_of_the_agent_that_prints(tmp_path: Path, config: dict[str, object]) -> None:
    (message,) = findings(tmp_path, config)
    assert "`verdict: file`" in message


@pytest.mark.parametrize("config", OWN, ids=str)
def test_programs_that_say_their_own_verdict(tmp_path: Path, config: dict[str, object]) -> None:
    assert findings(tmp_path, config) == []
