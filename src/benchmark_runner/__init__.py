"""For authors of standalone benchmark runners: base class and CLI factory, independent of the platform.

Empty so far: the package is reserved, and nothing can be imported from it yet.
"""

__version__ = "0.1.0"
