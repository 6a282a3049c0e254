"""`benchmark-job` (`job`, `bmj`): several agents side by side."""
