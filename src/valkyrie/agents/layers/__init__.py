"""Software an agent needs, installed once on the host and shown to every trial.

A layer is a folder, seen in the sandbox as `LayerSpec.target`:

- `node_modules/` what npm installed; its programs are in `node_modules/.bin`
- `python/` what pip installed, seen by the commands in `bin/` only
- `bin/` commands that need nothing but a shell: those of Python packages, those of npm packages that are
  for Node.js (`LayerSpec.node`), and `node` itself where the root file system has none
- `layer.json` what it is, and what was installed
"""

from __future__ import annotations

from valkyrie.agents.layers.cache import LayerCache, LayerManifest, read_manifest
from valkyrie.agents.layers.installation import RootKind, kind_of_host, kind_of_root

__all__ = ["LayerCache", "LayerManifest", "RootKind", "kind_of_host", "kind_of_root", "read_manifest"]
