"""Checks that every relative link in the Markdown pages leads to a file, and every anchor to a heading."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The ids a Markdown renderer gives to the headings of a page."""
    text = FENCE.sub("", page.read_text())
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        name = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
        later = (f"{name}-{number}" for number in itertools.count(1))
        found.add(name if name not in found else next(one for one in later if one not in found))
    return found


def broken_links(page: Path) -> list[str]:
    """What is wrong with the links of one page."""
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    problems = []
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists():
            problems.append(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif anchor and aim.suffix == ".md" and anchor not in anchors(aim):
            problems.append(f"{page.relative_to(ROOT)}: {target} has no such heading")
    return problems


def main() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    problems = [problem for page in sorted(pages) for problem in broken_links(page)]
    print("\n".join(problems) if problems else f"{len(pages)} pages, all links lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
