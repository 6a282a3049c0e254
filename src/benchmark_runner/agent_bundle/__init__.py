"""An agent as a folder: its contract, the values that fill its command, and its archive.

The platform and the runner install and run the same agents; both read, fill, pack and unpack them here.
"""

from __future__ import annotations

CONTRACT_FILES = ("contract.yaml", "contract.yml")
"""What the contract in an agent's folder may be called."""
