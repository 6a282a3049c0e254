"""For authors of benchmark services: base class, app, wire schemas and client, independent of the platform.

Empty so far: the package is reserved, and nothing can be imported from it yet.
"""

__version__ = "0.1.0"
