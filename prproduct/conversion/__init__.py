"""A whole model under a product and back, a report on its layers, and a check on one batch."""

from prproduct.conversion.check import Check, check
from prproduct.conversion.convert import convert, revert
from prproduct.conversion.registry import register
from prproduct.conversion.report import Report, report

__all__ = ["Check", "Report", "check", "convert", "register", "report", "revert"]
