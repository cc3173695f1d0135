"""A small detector of Hugging Face (YOLOS), converted and trained on drawn rectangles: the paper's outlook.

Each picture has one to three filled rectangles in red, green or blue on a noisy grey ground; the detector says where
they are and which colour they have. The model is built from a configuration, so nothing is downloaded.
"""

from __future__ import annotations

import argparse

import torch
from rich.progress import track
from torch import Tensor
from transformers import YolosConfig, YolosForObjectDetection

import prproduct as pr

SIZE = 64
COLOURS = ("red", "green", "blue")
Target = dict[str, Tensor]


def draw(generator: torch.Generator) -> tuple[Tensor, Target]:
    """A picture (3, SIZE, SIZE), and the classes and boxes (cx, cy, width, height in [0, 1]) of its rectangles."""
    picture = 0.1 * torch.randn(3, SIZE, SIZE, generator=generator)
    boxes, classes = [], []
    for _ in range(int(torch.randint(1, 4, (), generator=generator))):
        width, height = torch.randint(SIZE // 6, SIZE // 2, (2,), generator=generator).tolist()
        left = int(torch.randint(SIZE - width, (), generator=generator))
        top = int(torch.randint(SIZE - height, (), generator=generator))
        colour = int(torch.randint(len(COLOURS), (), generator=generator))
        picture[:, top : top + height, left : left + width] = -1.0
        picture[colour, top : top + height, left : left + width] = 1.0
        boxes.append([left + width / 2, top + height / 2, width, height])
        classes.append(colour)
    return picture, {"class_labels": torch.tensor(classes), "boxes": torch.tensor(boxes) / SIZE}


def draw_batch(count: int, generator: torch.Generator) -> tuple[Tensor, list[Target]]:
    """Pictures (count, 3, SIZE, SIZE) and their rectangles."""
    pictures, targets = zip(*(draw(generator) for _ in range(count)), strict=True)
    return torch.stack(pictures), list(targets)


def build() -> YolosForObjectDetection:
    """A ViT of four layers over 8×8 patches, with eight detection tokens: 0.2 million weights."""
    config = YolosConfig(
        image_size=[SIZE, SIZE], patch_size=8, num_detection_tokens=8, use_mid_position_embeddings=False,
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, initializer_range=0.1,
        id2label=dict(enumerate(COLOURS)), label2id={colour: i for i, colour in enumerate(COLOURS)},
    )  # fmt: skip
    return YolosForObjectDetection(config)


@torch.no_grad()
def evaluate(model: YolosForObjectDetection, pictures: Tensor, targets: list[Target]) -> dict[str, float]:
    """The loss and its parts: cross entropy of the classes, L1 distance of boxes, 1 − generalised IoU."""
    model.eval()
    output = model(pictures, labels=targets)
    parts = {name: output.loss_dict[name].item() for name in ("loss_ce", "loss_bbox", "loss_giou")}
    return {"loss": output.loss.item(), **parts}


def main() -> None:
    """Train, and print the loss on pictures that training has not seen, before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--product", default="pr", help="p, pr, tempered:0.5, … (prproduct.products)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = build()
    pr.convert(model, options.product)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    unseen = draw_batch(64, torch.Generator().manual_seed(1_000_000))
    generator = torch.Generator().manual_seed(options.seed)
    before = evaluate(model, *unseen)
    for _ in track(range(options.steps), description=options.product):
        model.train()
        pictures, targets = draw_batch(options.batch, generator)
        optimizer.zero_grad()
        model(pictures, labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = evaluate(model, *unseen)
    for name in before:
        print(f"{name:9}  before {before[name]:.3f}  after {after[name]:.3f}")


if __name__ == "__main__":
    main()
