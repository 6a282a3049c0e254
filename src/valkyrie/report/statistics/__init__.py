"""Numbers people can bet on, with their uncertainty. Plain Python: no number library is needed to run it."""

from valkyrie.report.statistics.intervals import (
    FEW_TASKS,
    MANY_TASKS,
    RESAMPLES,
    Z_95,
    bootstrap,
    mean,
    mean_interval,
    student,
    wilson,
)
from valkyrie.report.statistics.paired import Paired, holm, mcnemar, paired, sign_flip, tango
from valkyrie.report.statistics.power import POWER, Needed, needed
from valkyrie.report.statistics.repeats import pass_all, pass_at

__all__ = [
    "FEW_TASKS",
    "MANY_TASKS",
    "POWER",
    "RESAMPLES",
    "Z_95",
    "Needed",
    "Paired",
    "bootstrap",
    "holm",
    "mcnemar",
    "mean",
    "mean_interval",
    "needed",
    "paired",
    "pass_all",
    "pass_at",
    "sign_flip",
    "student",
    "tango",
    "wilson",
]
