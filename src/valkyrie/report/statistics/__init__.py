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
from valkyrie.report.statistics.paired import (
    NoWorse,
    Paired,
    holm,
    mcnemar,
    no_worse_than,
    paired,
    sign_flip,
    tango,
)
from valkyrie.report.statistics.power import POWER, Needed, Spread, detectable, needed, spread
from valkyrie.report.statistics.repeats import pass_all, pass_at

__all__ = [
    "FEW_TASKS",
    "MANY_TASKS",
    "POWER",
    "RESAMPLES",
    "Z_95",
    "Needed",
    "NoWorse",
    "Paired",
    "Spread",
    "bootstrap",
    "detectable",
    "holm",
    "mcnemar",
    "mean",
    "mean_interval",
    "needed",
    "no_worse_than",
    "paired",
    "pass_all",
    "pass_at",
    "sign_flip",
    "spread",
    "student",
    "tango",
    "wilson",
]
