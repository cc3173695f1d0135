"""A convolutional network on scikit-learn's digits as a LightningModule, with a product that warms up from P to PR."""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import prproduct as pr


class Classifier(lightning.LightningModule):
    """Convert the model where it is built; training_step and checkpoints are as for any other model."""

    def __init__(self, warmup: int) -> None:
        super().__init__()
        self.warmup = warmup
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 10),
        )  # fmt: skip
        pr.convert(self.model, "p")

    def on_train_batch_start(self, batch: list[Tensor], index: int) -> None:
        """The direction gradient's length goes from ‖x‖·|sin θ| (P) to ‖x‖ (PR) in the first `warmup` steps."""
        pr.convert(self.model, pr.products.Tempered(min(1.0, self.global_step / max(1, self.warmup))))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def main() -> None:
    """Train and test on the CPU; on GPUs, `accelerator="auto"` is all that changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=42, help="steps from P to PR; 0: PR from the start")
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32)[:, None] / 16  # (images, 1, 8, 8)
    train, test = random_split(TensorDataset(images, torch.as_tensor(digits.target)), [1347, 450])
    module = Classifier(options.warmup)
    trainer = lightning.Trainer(
        max_epochs=options.epochs, accelerator="cpu", gradient_clip_val=1.0, logger=False, enable_checkpointing=False
    )
    trainer.fit(module, DataLoader(train, batch_size=64, shuffle=True))
    trainer.test(module, DataLoader(test, batch_size=450))
    print(module.model)


if __name__ == "__main__":
    main()
