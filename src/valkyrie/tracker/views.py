from valkyrie.views import *  # noqa: F403
