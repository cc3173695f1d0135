"""A character GPT on Python's own documentation, in plain torch, under one product: `--product p`, `--product pr`, ….

The same seed gives every product the same initial weights and the same batches, so runs with one seed can be compared
as pairs. On a CPU, the same arguments give the same losses.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import pydoc_data.topics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import prproduct as pr
from prproduct.lab.environment import commit

HEAD = 32  # width of an attention head


def read_text() -> tuple[Tensor, Tensor, int]:
    """Indices of the characters to train on and to validate on (the last tenth), and the size of the alphabet.

    Topics quote each other. A repeated paragraph is dropped, or validation would see the text of training.
    """
    paragraphs = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).split("\n\n")
    text = "\n\n".join(dict.fromkeys(paragraph.rstrip() for paragraph in paragraphs))
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([index[character] for character in text])
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :], len(index)


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a LayerNorm and inside a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, width)
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, length, 32)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class CharGPT(nn.Module):
    """Logits of the next character at every position; learned positions and initialisation as in GPT-2."""

    def __init__(self, alphabet: int, context: int, layers: int, width: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(alphabet, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, alphabet, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if ends_branch else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: Tensor) -> Tensor:  # (batch, length) -> (batch, length, alphabet)
        x = self.characters(text) + self.positions.weight[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def windows(data: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """The `context` characters from each start on, and those one later: (batch, context) each."""
    text = data[starts[:, None] + torch.arange(context + 1)]
    return text[:, :-1], text[:, 1:]


def loss_of(model: nn.Module, text: Tensor, target: Tensor) -> Tensor:
    """Cross entropy in nats a character."""
    return F.cross_entropy(model(text).flatten(0, 1), target.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Tensor, context: int, count: int) -> float:
    """The mean loss over `count` windows, evenly spaced; the same ones for every seed and product."""
    starts = torch.linspace(0, len(data) - context - 1, count).long()
    losses = [loss_of(model, *windows(data, part, context)) * len(part) for part in starts.split(64)]
    return torch.stack(losses).sum().item() / count


@torch.no_grad()
def measure_angles(model: nn.Module, text: Tensor, step: int) -> dict[str, dict[str, float]]:
    """|sin θ| in every linear layer: the minimum and the mean over all pairs, and the minimum of an average sample."""
    with pr.AngleProbe(model, step=step) as probe:
        model(text)
    statistics = ("min_sin", "sample_min_sin", "mean_sin")
    return {record.name: {name: getattr(record, name) for name in statistics} for record in probe.records}


def compare_gradients(model: nn.Module, data: Tensor, context: int, count: int = 64) -> dict[str, float]:
    """The gradient under the model's product against that of the loss: their cosine and the ratio of their lengths."""
    starts = torch.linspace(0, len(data) - context - 1, count).long()
    gradients = []
    for network in (copy.deepcopy(model), pr.convert(copy.deepcopy(model), "p")):
        network.zero_grad()
        for part in starts.split(16):
            (loss_of(network, *windows(data, part, context)) * len(part) / count).backward()
        parts = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
        gradients.append(torch.cat(parts).double())
    ours, true = gradients
    return {"cosine": F.cosine_similarity(ours, true, dim=0).item(), "length": (ours.norm() / true.norm()).item()}


def learning_rate_factor(step: int, steps: int, warmup: int = 100) -> float:
    """A linear warm-up, then a cosine from 1 down to a tenth."""
    progress = max(0.0, (step - warmup) / max(1, steps - warmup))
    return min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * progress))


def main() -> None:
    """Train one model and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--product", default="pr", help="p, pr, tempered:0.5, … (prproduct.products)")
    sizes = {"layers": 4, "width": 128, "context": 128, "batch": 16}
    for name, default in {**sizes, "steps": 1200, "every": 100, "seed": 0, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    parser.add_argument("--leave", nargs="+", default=[], help="layers that keep the inner product, such as head")
    parser.add_argument(
        "--span",
        nargs=2,
        type=int,
        metavar=("FIRST", "END"),
        help="the steps under the product; those before and after are under the inner product; default: all",
    )
    parser.add_argument("-o", "--output", type=Path, help="a JSON file for the configuration and all evaluations")
    options = parser.parse_args()
    for name in (*sizes, "steps", "every", "threads"):
        if vars(options)[name] < 1:
            parser.error(f"--{name} must be at least 1")
    first, end = options.span or (0, options.steps + 1)  # the evaluation after the last step is under the product, too
    if not 0 <= first < min(end, options.steps):
        parser.error("--span: FIRST must be at least 0, and less than END and --steps")
    if options.width % HEAD:
        parser.error(f"--width must be a multiple of {HEAD}, the width of a head")
    if options.output and (options.output.is_dir() or not options.output.parent.is_dir()):
        parser.error(f"--output: {options.output} must be a file in a folder that exists")
    try:
        pr.products.resolve(options.product)
    except ValueError as error:
        parser.error(f"--product: {error}")

    torch.set_num_threads(options.threads)
    train_data, validation_data, alphabet = read_text()
    if options.context >= len(validation_data):
        parser.error(f"--context must be less than {len(validation_data)}, the characters of the validation text")
    torch.manual_seed(options.seed)
    model = CharGPT(alphabet, options.context, options.layers, options.width)
    if unknown := set(options.leave) - dict(model.named_modules()).keys():
        parser.error(f"--leave: the model has no {', '.join(sorted(unknown))}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, options.steps))
    count = len(validation_data) // options.context  # as many windows as the validation text has, of either text
    probed, _ = windows(validation_data, torch.arange(8) * options.context, options.context)
    batches = torch.Generator().manual_seed(options.seed)
    evaluations, began, began_at = [], time.perf_counter(), commit()
    with Progress(TextColumn(options.product), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        for step in progress.track(range(options.steps + 1)):
            if step == first:
                pr.convert(model, options.product, filter_fn=lambda layer, name: name not in options.leave)
            if step == end:
                pr.revert(model)
            if step % options.every == 0 or step == options.steps:
                train, validation = (evaluate(model, d, options.context, count) for d in (train_data, validation_data))
                losses = {"step": step, "train_loss": train, "validation_loss": validation}
                gradient = compare_gradients(model, train_data, options.context)
                evaluations.append({**losses, "gradient": gradient, "angles": measure_angles(model, probed, step)})
                progress.console.print(f"step {step:5}: train {train:.4f}, validation {validation:.4f}")
            if step < options.steps:
                starts = torch.randint(len(train_data) - options.context, (options.batch,), generator=batches)
                optimizer.zero_grad()
                loss_of(model, *windows(train_data, starts, options.context)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
    if options.output:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "prproduct": pr.__version__}
        config = {name: value for name, value in vars(options).items() if name != "output"}
        text = {"train": len(train_data), "validation": len(validation_data), "alphabet": alphabet}
        seconds = round(time.perf_counter() - began, 1)
        origin = {"config": config, "versions": versions, "commit": began_at}
        run = {**origin, "text": text, "seconds": seconds, "evaluations": evaluations}
        options.output.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
