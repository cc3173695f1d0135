"""Angles and gradient parts of a model during training: `AngleProbe`, its records, and the paper's figure.

>>> import torch, prproduct as pr
>>> net = pr.nn.Linear(3, 2)
>>> with pr.AngleProbe(net) as probe:
...     net(torch.eye(3)).sum().backward()
>>> record = probe.records[0]
>>> record.name, record.product, record.pairs
('Linear', 'pr', 6)
"""

from prproduct.probe.angle_probe import AngleProbe
from prproduct.probe.plot import plot
from prproduct.probe.records import AngleRecord, SummaryWriter, read_jsonl, write_jsonl, write_tensorboard

__all__ = ["AngleProbe", "AngleRecord", "SummaryWriter", "plot", "read_jsonl", "write_jsonl", "write_tensorboard"]
