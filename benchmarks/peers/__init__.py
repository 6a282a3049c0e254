"""Other harnesses, measured on the same machine in the same run, each in a virtual environment of its own."""
