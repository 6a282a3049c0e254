"""The process that leases trials and runs them. One class, several hosts.

Embedded: started detached by the CLI, one per data folder, exits when idle.
"""
