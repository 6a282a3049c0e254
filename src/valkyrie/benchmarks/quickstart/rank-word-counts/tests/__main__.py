"""Grades /app/topwords.sh on texts of its own."""

import os
import random
import re
from collections import Counter

from checks import APP, FILES, Checks, read_text, remove, run, same, scratch, write_new

SCRIPT = APP / "topwords.sh"
STOPWORDS = FILES["stopwords.txt"].decode().split()


def expected(limit, texts):
    words = re.findall("[a-z]+", "\n".join(texts).lower())
    counts = Counter(word for word in words if word not in STOPWORDS)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return "".join(f"{count} {word}\n" for word, count in ranked)


def random_text(seed):
    rng = random.Random(seed)  # noqa: S311
    words = ["Moss", "moss", "fern", "LICHEN", "The", "stone", "a", "rain-fed", "o'clock", "x1y2", "é-pure"]
    return "".join(rng.choice(words) + rng.choice([" ", "\n", ", ", "...", "\t", "--"]) for _ in range(400))


def grade(folder, limit, files):
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    ran = run([SCRIPT, str(limit), *files], cwd=folder)
    same(ran.code, 0, "exit code")
    same(ran.stdout, expected(limit, files.values()), "output")


CASES = {
    "two texts": (7, {"one.txt": random_text(1), "two.txt": random_text(2)}),
    "all words when there are few": (500, {"one.txt": random_text(3)}),
    "just the first": (1, {"one.txt": random_text(4)}),
    "names with spaces and a leading dash": (5, {"my text.txt": "oak oak elm", "-n": "elm elm ash"}),
    "no newline between files": (5, {"a": "rain", "b": "bow rain"}),
    "equal counts in byte order": (9, {"a": "pear fig Apple fig pear apple date"}),
    "counts of more than one digit": (3, {"a": "ten " * 10 + "nine " * 9 + "hundred " * 100}),
    "an empty file": (3, {"a": ""}),
    "only stop words": (3, {"a": "the The THE and a"}),
    "a stop word inside a word": (4, {"a": "theory andante ant the"}),
}
BAD = {
    "zero": (["0", "a"], 2, ""),
    "negative": (["-3", "a"], 2, ""),
    "not a number": (["many", "a"], 2, ""),
    "a fraction": (["1.5", "a"], 2, ""),
    "no arguments": ([], 2, ""),
    "no file": (["3"], 2, ""),
    "a missing file": (["3", "a", "not here.txt"], 1, "not here.txt"),
}

EXECUTABLE = os.access(SCRIPT, os.X_OK)  # before everybody is let in

checks = Checks()
with checks.check("an executable shell script"):
    text = read_text(SCRIPT)
    assert EXECUTABLE, "topwords.sh is not executable"
    assert re.match(r"#! ?(/usr)?/bin/(ba)?sh\b", text), "the first line is not #!/bin/sh or #!/bin/bash"
    assert not re.search(r"\b(python|perl)", text), "calls Python or Perl"
with checks.check("the stop words are there"):
    read_text(SCRIPT)
    remove(APP / "stopwords.txt")
    write_new(APP / "stopwords.txt", FILES["stopwords.txt"])
for title, (limit, files) in CASES.items():
    with checks.check(title), scratch() as folder:
        grade(folder, limit, files)
for title, (arguments, code, named) in BAD.items():
    with checks.check(title), scratch() as folder:
        (folder / "a").write_text("word\n")
        ran = run([SCRIPT, *arguments], cwd=folder)
        same((ran.code, ran.stdout), (code, ""), "exit code and output")
        assert ran.stderr.strip() and named in ran.stderr, f"message is {ran.stderr!r}"
checks.reward()
