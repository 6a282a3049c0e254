"""Graders: built-in checks, programs, judges and plugins, and how they make a verdict."""
