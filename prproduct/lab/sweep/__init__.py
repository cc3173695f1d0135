"""Many runs at once, on this machine's cores or on a Ray cluster, started and stopped as often as one likes."""

from prproduct.lab.sweep.driver import sweep
from prproduct.lab.sweep.jobs import Ending, Job, Result
from prproduct.lab.sweep.plan import Plan

__all__ = ["Ending", "Job", "Plan", "Result", "sweep"]
