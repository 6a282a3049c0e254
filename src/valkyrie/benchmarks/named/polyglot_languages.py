"""How the exercises of each language are built and tested, with every test switched on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def _as_it_is(text: str) -> str:
    return text


_DISABLED = re.compile(
    r"@(?:org\.junit\.(?:jupiter\.api\.)?)?(?:Disabled|Ignore)\b"
    r'(?:[ \t]*\((?:"(?:[^"\\]|\\.)*"|[^")])*\))?'
)
_SKIPPED = re.compile(r"\bx(test|it|describe)\(|\b(test|it|describe)\.skip\(")


def enable_java(text: str) -> str:
    """Tests without the marks that switch them off, however they are spelled; imports stay."""
    lines = (
        line if line.lstrip().startswith("import ") else _DISABLED.sub("", line)
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)


def enable_javascript(text: str) -> str:
    """`xtest(` becomes `test(`."""
    return _SKIPPED.sub(lambda match: f"{match[1] or match[2]}(", text)


@dataclass(frozen=True, slots=True)
class Language:
    """One of the six."""

    image: str
    """The Dockerfile up to where the exercise's files come in."""
    after: str
    """The Dockerfile behind that: whatever is fetched for the tests, so that they run without network."""
    tool: str
    """A command that succeeds where the language can be graded."""
    command: str
    proof: str
    """What a run that passed says (an extended regular expression)."""
    taken: str
    """Which of the agent's files are graded: words of `find`."""
    limit_s: int = 180
    enable: Callable[[str], str] = _as_it_is
    """Switches on the tests of a test file."""
    in_named_folder: bool = False
    """The build reads the exercise's name from the folder it is in."""


_NODE_MODULES = """RUN npm install --no-audit --no-fund \
    && mkdir -p /opt/polyglot && mv node_modules /opt/polyglot/ \
    && ln -s /opt/polyglot/node_modules node_modules
"""
_CRATES = """COPY fetch/ /tmp/fetch/
RUN cd /tmp/fetch && mkdir -p src && touch src/lib.rs && cargo fetch && rm -r /tmp/fetch
"""
# A test that only exists for Gradle and its libraries to be fetched.
_GRADLE = """RUN mkdir -p /tmp/fetch/src/test/java && cp -R gradle gradlew *.gradle /tmp/fetch/ \
    && cd /tmp/fetch \
    && echo 'class FetchTest { @org.junit.jupiter.api.Test void test() {} }' > src/test/java/FetchTest.java \
    && sh ./gradlew --no-daemon test && rm -r /tmp/fetch
"""

LANGUAGES: Mapping[str, Language] = {
    "python": Language(
        image="FROM python:3.11-slim\nRUN pip install --no-cache-dir pytest==8.3.4\n",
        after="",
        tool="python3 -I -m pytest --version",
        # From outside and isolated: a pytest.py of the agent is not the pytest that runs.
        command='cd / && python3 -I -m pytest -p no:cacheprovider --rootdir="$work" "$work"',
        proof="[0-9]+ passed",
        taken="-name '*.py' -not -name '*_test.py' -not -name 'test_*.py' -not -name conftest.py",
    ),
    "go": Language(
        image="FROM golang:1.21.5\n",
        after="RUN go mod download\n",
        tool="go version",
        command="go test ./...",
        proof="^ok[[:space:]]",
        taken="-name '*.go' -not -name '*_test.go'",
    ),
    "javascript": Language(
        image="FROM node:20-slim\n",
        after=_NODE_MODULES,
        tool="npm --version",
        command='ln -sfn /opt/polyglot/node_modules "$work/node_modules"; npm run test',
        proof="Tests: .*[0-9]+ passed",
        taken="-name '*.js' -not -name '*.spec.js' -not -name '*.config.js' -not -path './node_modules/*'",
        enable=enable_javascript,
    ),
    "rust": Language(
        image="FROM rust:1.83-slim\n",
        after=_CRATES,
        tool="cargo --version",
        command="cargo test --offline -- --include-ignored",
        proof="test result: ok\\. [1-9]",
        taken="-path './src/*' -name '*.rs'",
        limit_s=600,
    ),
    "cpp": Language(
        image="FROM buildpack-deps:jammy\nRUN apt-get update && apt-get install -y --no-install-recommends "
        "cmake libboost-all-dev libtbb-dev && rm -rf /var/lib/apt/lists/*\n",
        after="",
        tool="cmake --version",
        command='mkdir build && cd build && cmake -DEXERCISM_RUN_ALL_TESTS=1 -G "Unix Makefiles" .. && make',
        proof="All tests passed",
        taken="'(' -name '*.cpp' -o -name '*.h' -o -name '*.hpp' ')' -not -name '*_test.cpp' "
        "-not -path './build/*' -not -path './test/*'",
        limit_s=600,
        in_named_folder=True,
    ),
    "java": Language(
        image="FROM eclipse-temurin:21-jdk\n",
        after=_GRADLE,
        tool="java -version",
        command="sh ./gradlew --offline --no-daemon test",
        proof="BUILD SUCCESSFUL",
        taken="-path './src/main/java/*' -name '*.java'",
        limit_s=600,
        enable=enable_java,
    ),
}
