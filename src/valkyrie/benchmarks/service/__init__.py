"""Benchmarks that are web services: found by name, spoken to over HTTP and WebSockets."""
