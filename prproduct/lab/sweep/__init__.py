"""Many runs at once, on this machine's cores or on a Ray cluster; a sweep may be stopped and started again."""

from prproduct.lab.sweep.jobs import Ending, Job, Result, sweep
from prproduct.lab.sweep.plan import Plan

__all__ = ["Ending", "Job", "Plan", "Result", "sweep"]
