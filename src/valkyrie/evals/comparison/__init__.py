"""Two result folders compared: verdicts, what was used, and a judge before both answers."""
