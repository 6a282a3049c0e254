"""What a task is open to: classes of cheating, what can be read off its files, agents that try."""
