"""Whether agents would see what is ours: local sandboxes show the system's folders as the host has them."""

from __future__ import annotations

from pathlib import Path

from sandboxes.local.layout import SYSTEM_TREES
from valkyrie import config
from valkyrie.errors import UserError
from valkyrie.settings import config_path
from valkyrie.store.layout import DataFolder


def refuse_exposed(data: DataFolder) -> None:
    """UserError when data, config (with the secrets beside it) or artifacts lie where agents can read.

    An executor that is root shows its sandboxes the system's folders as root sees them: no mode hides a file.
    """
    artifacts = config.effective("artifacts_folder").value
    ours = {
        "the data folder (VALKYRIE_HOME)": data.root,
        "the config file (VALKYRIE_CONFIG_PATH)": config_path(),
        **({"artifacts_folder": Path(str(artifacts)).expanduser()} if artifacts else {}),
    }
    trees = [Path("/", name).resolve() for name in SYSTEM_TREES]
    for what, path in ours.items():
        if tree := next((tree for tree in trees if path.resolve().is_relative_to(tree)), None):
            raise UserError(
                f"{path} is {what}, and local sandboxes show {tree} to their agents. Move it to a place of "
                "its own: below /var/lib or /etc, for instance.",
                cause="exposed",
            )
