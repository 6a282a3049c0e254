"""Numbers people can bet on, with their uncertainty. Plain Python: no number library is needed to run it."""

from valkyrie.report.statistics.intervals import (
    FEW_FAMILIES,
    Interval,
    counted_interval,
    mean,
    mean_interval,
    student,
    unseen_share,
)
from valkyrie.report.statistics.paired import (
    SURE,
    NoWorse,
    Paired,
    differences,
    holm,
    mcnemar,
    no_worse_than,
    paired,
    sign_flip,
    surely_alike,
    within_margin,
)
from valkyrie.report.statistics.power import POWER, Needed, Spread, detectable, needed, spread
from valkyrie.report.statistics.repeats import (
    disagreement,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
)

__all__ = [
    "FEW_FAMILIES",
    "POWER",
    "SURE",
    "Interval",
    "Needed",
    "NoWorse",
    "Paired",
    "Spread",
    "counted_interval",
    "detectable",
    "differences",
    "disagreement",
    "holm",
    "mcnemar",
    "mean",
    "mean_interval",
    "needed",
    "no_worse_than",
    "paired",
    "pass_all",
    "pass_all_interval",
    "pass_at",
    "pass_at_interval",
    "sign_flip",
    "spread",
    "student",
    "surely_alike",
    "unseen_share",
    "within_margin",
]
