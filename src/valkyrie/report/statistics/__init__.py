"""Numbers people can bet on, with their uncertainty. Plain Python: no number library is needed to run it."""
