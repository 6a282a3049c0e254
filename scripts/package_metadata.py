"""Hatchling's metadata hook: the package's page on an index, where relative links and pictures lead nowhere.

VALKYRIE_PROJECT_URL names the repository's address when a release is built: links become absolute and the
package gets its project URLs. Without it, links are reduced to their text and pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n?")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)


class PackageMetadata(MetadataHookInterface):
    """Set `readme` and `urls`, which pyproject.toml leaves to this hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in both fields from README.md and the environment."""
        url = os.environ.get("VALKYRIE_PROJECT_URL", "").rstrip("/") or None
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": published_readme(text, url)}
        metadata["urls"] = project_urls(url)


def project_urls(url: str | None) -> dict[str, str]:
    """Return the package's URLs, or none where the repository's address is not known."""
    if url is None:
        return {}
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {
        "Homepage": url,
        "Source": url,
        **{name: f"{url}/blob/main/{page}" for name, page in pages.items()},
    }


def published_readme(text: str, url: str | None) -> str:
    """Return the README as it reads outside the repository."""
    text = _COMMENT.sub("", text)
    if url is None:
        return _LINK.sub(_words, _PICTURE.sub("", text))
    text = _PICTURE.sub(lambda found: f"![{found[1]}]({url}/raw/main/{found[2]})\n", text)
    return _LINK.sub(lambda found: _absolute(found, url), text)


def _absolute(found: re.Match[str], url: str) -> str:
    return found[0] if found[2].startswith("#") else f"[{found[1]}]({url}/blob/main/{found[2]})"


def _words(found: re.Match[str]) -> str:
    return found[0] if found[2].startswith("#") else found[1]
