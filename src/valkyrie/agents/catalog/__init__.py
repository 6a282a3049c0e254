"""Public agents that are installed once as a layer, run headless, and whose logs are read afterwards."""
