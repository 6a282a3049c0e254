"""What both scaffolders are made of: names, the framework to depend on, templates, and writing a project."""


class GenerationError(Exception):
    """The project cannot be generated; nothing was written."""
