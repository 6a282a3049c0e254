"""Evals and their results in other tools' forms: task directories, JUnit, CSV, JSON lines, Markdown."""
