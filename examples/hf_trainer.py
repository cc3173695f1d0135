"""A small Vision Transformer of Hugging Face on scikit-learn's digits, converted and trained by their `Trainer`.

The model is built from a configuration, so nothing is downloaded; a model of `from_pretrained` is converted alike.
What `Trainer` saves is an ordinary checkpoint that the native model loads.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, random_split
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import prproduct as pr


class Digits(Dataset[dict[str, Any]]):
    """1,797 images of 8×8 pixels in [−1, 1], under the names that the model's forward has for its arguments."""

    def __init__(self) -> None:
        data = load_digits()
        self.images = torch.as_tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1  # (images, 1, 8, 8)
        self.labels = data.target.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def accuracy(evaluation: EvalPrediction) -> dict[str, float]:
    """The share of images whose largest logit is their label's."""
    return {"accuracy": float(np.mean(np.argmax(evaluation.predictions, -1) == evaluation.label_ids))}


def main() -> None:
    """Train, save, and load what was saved into the native model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--product", default="pr", help="p, pr, tempered:0.5, … (prproduct.products)")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("-o", "--output", help="folder for checkpoints; a temporary one if not given")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, id2label={digit: str(digit) for digit in range(10)},
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, initializer_range=0.1,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    pr.convert(model, options.product)  # this line is all that differs from a native run
    train, test = random_split(Digits(), [1347, 450])

    with tempfile.TemporaryDirectory() as temporary:
        arguments = TrainingArguments(
            output_dir=options.output or temporary, num_train_epochs=options.epochs, per_device_train_batch_size=64,
            learning_rate=2e-3, lr_scheduler_type="cosine", warmup_steps=20, logging_steps=21,
            report_to=[], use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test, compute_metrics=accuracy)
        trainer.train()
        trainer.save_model()
        native = ViTForImageClassification.from_pretrained(arguments.output_dir)
    print(f"accuracy on 450 images: {100 * trainer.evaluate()['eval_accuracy']:.1f} %")
    same = torch.equal(native.eval()(test[0]["pixel_values"][None]).logits, model(test[0]["pixel_values"][None]).logits)
    print(f"the saved model, loaded natively, gives the same logits: {same}")


if __name__ == "__main__":
    main()
