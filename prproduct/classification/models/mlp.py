"""The fully connected network of the paper's first study."""

from __future__ import annotations

from torch import nn

from prproduct.classification.models.layers import kaiming_fan_in


class MLP(nn.Sequential):
    """`layers` linear layers on the flattened image, with a ReLU after each but the last.

    The paper says "5-layer" without a width; 256 is our choice.

    >>> MLP(784, 10)
    MLP(
      (flatten): Flatten(start_dim=1, end_dim=-1)
      (fc1): Linear(in_features=784, out_features=256, bias=True)
      (relu1): ReLU(inplace=True)
      (fc2): Linear(in_features=256, out_features=256, bias=True)
      (relu2): ReLU(inplace=True)
      (fc3): Linear(in_features=256, out_features=256, bias=True)
      (relu3): ReLU(inplace=True)
      (fc4): Linear(in_features=256, out_features=256, bias=True)
      (relu4): ReLU(inplace=True)
      (fc): Linear(in_features=256, out_features=10, bias=True)
    )
    """

    def __init__(self, in_features: int, classes: int, layers: int = 5, width: int = 256) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        for number in range(1, layers):
            self.add_module(f"fc{number}", nn.Linear(in_features, width))
            self.add_module(f"relu{number}", nn.ReLU(inplace=True))
            in_features = width
        self.fc = nn.Linear(in_features, classes)
        kaiming_fan_in(self)
