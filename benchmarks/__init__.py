"""What the engine costs, each number as a ratio against a peer or a floor measured in the same run."""
