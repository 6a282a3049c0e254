"""Exercises as the Aider polyglot benchmark lays them out, made up here, one or two per language."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

INSTRUCTIONS = "# Instructions\n\nDouble a number: `{x}` and @PLACE@ are just text.\n"

PYTHON = {
    "double_it.py": "def double(x):\n    pass\n",
    "double_it_test.py": "import unittest\nfrom double_it import double\n\n\n"
    "class DoubleTest(unittest.TestCase):\n    def test_two(self):\n        self.assertEqual(double(2), 4)\n",
    ".meta/example.py": "def double(x):\n    return 2 * x\n",
}
CPP = {
    "double_it.cpp": '#include "double_it.h"\n',
    "double_it.h": "#pragma once\nint twice(int x);\n",
    "double_it_test.cpp": '#include "double_it.h"\n#include <cstdio>\nint main() {\n'
    "#ifdef EXERCISM_RUN_ALL_TESTS\n  if (twice(2) != 4) return 1;\n"
    '  std::puts("All tests passed");\n#endif\n}\n',
    ".meta/example.cpp": '#include "double_it.h"\nint twice(int x) { return 2 * x; }\n',
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.5)
get_filename_component(exercise ${CMAKE_CURRENT_SOURCE_DIR} NAME)
project(${exercise} CXX)
string(REPLACE "-" "_" file ${exercise})
add_executable(${exercise} ${file}_test.cpp ${file}.cpp)
if(EXERCISM_RUN_ALL_TESTS)
  target_compile_definitions(${exercise} PRIVATE EXERCISM_RUN_ALL_TESTS)
endif()
add_custom_target(test_${exercise} ALL DEPENDS ${exercise} COMMAND ${exercise})
""",
}
GO = {
    "double_it.go": "package double\n\nfunc Double(x int) int { panic(1) }\n",
    "double_it_test.go": 'package double\n\nimport "testing"\n\nfunc TestDouble(t *testing.T) {}\n',
    "cases_test.go": "package double\n\nvar cases = []int{1}\n",
    "go.mod": "module double\n\ngo 1.18\n",
    ".meta/example.go": "package double\n\nfunc Double(x int) int { return 2 * x }\n",
}
JAVASCRIPT = {
    "double-it.js": "export const double = (x) => {};\n",
    "double-it.spec.js": "import { double } from './double-it';\n\ntest('one', () => {});\n"
    "xtest('two', () => {});\n"
    "describe.skip('later', () => { xit('three', () => {}); });\n",
    "package.json": '{"scripts": {"test": "jest ./*"}}\n',
    "babel.config.js": "module.exports = {};\n",
    "LICENSE": "MIT\n",
    ".meta/proof.ci.js": "export const double = (x) => 2 * x;\n",
}
JAVA = {
    "src/main/java/Double.java": "class DoubleIt {}\n",
    "src/main/java/Helper.java": "class Helper {}\n",
    "src/test/java/DoubleTest.java": "import org.junit.jupiter.api.Disabled;\nclass DoubleTest {\n"
    '    @Disabled("Remove to (run) test")\n    @Test void a() {}\n    @Disabled\n    @Test void b() {}\n'
    '    @org.junit.jupiter.api.Disabled("x")\n    @Test void c() {}\n'
    '    @Ignore("Remove")  @Test void d() {}\n'
    "    @DisabledOnMars @Test void e() {}\n}\n",
    "build.gradle": "plugins { id 'java' }\n",
    "gradlew": "#!/bin/sh\n",
    "gradle/wrapper/gradle-wrapper.jar": "not text",
    ".meta/src/reference/java/Double.java": "class DoubleIt { int twice; }\n",
    ".meta/src/reference/java/Extra.java": "class Extra {}\n",
}
RUST = {
    "src/lib.rs": "pub fn double(x: u32) -> u32 { todo!() }\n",
    "Cargo.toml": '[package]\nname = "double-it"\nversion = "1.0.0"\nedition = "2021"\n',
    "tests/double-it.rs": "#[test]\n#[ignore]\nfn two() { assert_eq!(double_it::double(2), 4); }\n",
    ".meta/example.rs": "pub fn double(x: u32) -> u32 { 2 * x }\n",
    ".meta/Cargo-example.toml": '[package]\nname = "double-it"\nversion = "1.0.1"\nedition = "2021"\n',
}
FILES = {
    "python": {"solution": ["double_it.py"], "test": ["double_it_test.py"], "example": [".meta/example.py"]},
    "cpp": {
        "solution": ["double_it.cpp", "double_it.h"],
        "test": ["double_it_test.cpp"],
        "example": [".meta/example.cpp"],
    },
    "go": {
        "solution": ["double_it.go"],
        "test": ["double_it_test.go"],
        "example": [".meta/example.go"],
        "editor": ["cases_test.go"],
        "invalidator": ["go.mod"],
    },
    "javascript": {
        "solution": ["double-it.js"],
        "test": ["double-it.spec.js"],
        "example": [".meta/proof.ci.js"],
    },
    "java": {
        "solution": ["src/main/java/Double.java"],
        "test": ["src/test/java/DoubleTest.java"],
        "example": [".meta/src/reference/java/Double.java", ".meta/src/reference/java/Extra.java"],
        "editor": ["src/main/java/Helper.java"],
        "invalidator": ["build.gradle"],
    },
    "rust": {
        "solution": ["src/lib.rs", "Cargo.toml"],
        "test": ["tests/double-it.rs"],
        "example": [".meta/example.rs"],
    },
}
EXERCISES: Mapping[str, Mapping[str, str]] = {
    "python": PYTHON,
    "cpp": CPP,
    "go": GO,
    "javascript": JAVASCRIPT,
    "java": JAVA,
    "rust": RUST,
}


def make_clone(folder: Path, *languages: str) -> Path:
    """A clone with one exercise for each of these languages, or for all."""
    for language in languages or EXERCISES:
        exercise = folder / language / "exercises" / "practice" / "double-it"
        about = {"authors": ["somebody"], "files": FILES[language], "source": "a book"}
        files = {
            **EXERCISES[language],
            ".docs/instructions.md": INSTRUCTIONS,
            ".docs/introduction.md": "# Introduction\n\nNumbers.\n",
            ".docs/instructions.append.md": "# More\n\nIt is easy.\n",
            ".meta/config.json": json.dumps(about),
        }
        for name, content in files.items():
            (exercise / name).parent.mkdir(parents=True, exist_ok=True)
            (exercise / name).write_text(content)
    return folder
