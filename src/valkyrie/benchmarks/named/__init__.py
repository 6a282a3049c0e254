"""Public benchmarks by name: what is known of each, and how its published records become task directories."""
