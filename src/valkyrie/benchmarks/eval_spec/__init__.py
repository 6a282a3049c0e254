"""A benchmark whose tasks are the stimuli of an eval spec."""
