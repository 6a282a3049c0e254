"""For sandboxes reached over a line that runs commands and carries single files, and nothing more.

Folders travel as archives that are checked on both sides; paths are worked on by little shell scripts.
"""

from sandboxes.scripted.sandbox import ScriptedSandbox

__all__ = ["ScriptedSandbox"]
