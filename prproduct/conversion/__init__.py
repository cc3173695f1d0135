"""A whole model under a product, and back: what is converted, what is left and why, and what it does to a batch."""

from prproduct.conversion.check import Check, check
from prproduct.conversion.convert import convert, revert
from prproduct.conversion.registry import register
from prproduct.conversion.report import Report, report

__all__ = ["Check", "Report", "check", "convert", "register", "report", "revert"]
