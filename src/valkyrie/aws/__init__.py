"""AWS, where people want it: artifacts, secrets, logs and functions. The SDKs load with the first call."""
