"""What an agent may be called: it becomes a file name and a folder in the sandbox."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 letters, digits, `.`, `_` or `-`, starting with a letter or digit"
