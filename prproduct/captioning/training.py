"""Training a captioner: `train(config, folder, dataset)` makes a run's folder (docs/runs.md, docs/captioning.md).

The first phase minimizes the cross-entropy of the references. The second, REINFORCE on CIDEr-D, starts from the weights
of such a run, with a new optimizer and another learning rate. Both select their best epoch by the CIDEr of validation
captions. The two task classes are what `lab.engine` calls: batches, a loss, an evaluation.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.batches import CaptionBatch, CaptionBatches, collate, padded
from prproduct.captioning.data.prepared import VOCABULARY, Image, vocabulary_json
from prproduct.captioning.dataset import CaptionDataset, check_fits, check_ids
from prproduct.captioning.decoding import Limits, beam, greedy, sample
from prproduct.captioning.inference import PHASE_NAMES, Search, config_of, generate_captions
from prproduct.captioning.losses import caption_mask, cross_entropy, log_probabilities, reinforce, targets_of
from prproduct.captioning.metrics import score
from prproduct.captioning.metrics.reward import CiderReward, PackedCaptions
from prproduct.lab import checkpoints, runs
from prproduct.lab.engine import Settings
from prproduct.lab.environment import is_first_process
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable
from prproduct.lab.hardware import Hardware, gathered, summed
from prproduct.lab.progress import NoTrainingProgress
from prproduct.lab.report.content import display
from prproduct.lab.session import train_task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EVALUATION_BATCH = 50  # images


class StartingPoint(NamedTuple):
    """The cross-entropy run that REINFORCE starts from."""

    config: CaptionerConfig
    weights: dict[str, Tensor]  # of the chosen epoch
    identity: dict[str, Any]  # what config.json of the REINFORCE run records about it


class CrossEntropyTask:
    """Cross-entropy with the references, with scheduled sampling.

    `ReinforceTask` derives from it: batches, learning rate and evaluation are the same.
    """

    select_by: str | None = "validation_cider"
    select_largest = True

    def __init__(
        self, config: CaptionerConfig, dataset: CaptionDataset, fabric: Fabric, start: StartingPoint | None
    ) -> None:
        self.config, self.seed, self._fabric = config, config.seed, fabric
        self.captions, self.features = dataset
        torch.manual_seed(config.seed)
        self.captioner = config.build(len(self.captions.vocabulary), self.features.width)
        if start:
            self.captioner.load_state_dict(start.weights)
        self.model: nn.Module = self.captioner.to(fabric.device)
        # `or 1` is for mypy: none of them is None in a resolved configuration.
        epochs, batch_size, self.samples = config.epochs or 1, config.batch_size or 1, config.samples or 1
        self.optimizer: Optimizer = Adam(self.model.parameters(), lr=config.rate(0.0), betas=(0.9, 0.999))
        self._train = self.captions.of("train")[: config.limit_train]
        self.title = (
            f"captioner with the product {display(str(config.product))}, {PHASE_NAMES[config.phase]}, "
            f"{len(self._train):,} training images, seed {config.seed}"
        )
        self._batches = CaptionBatches(
            self._train,
            self.features,
            batch_size=batch_size,
            captions=config.captions_per_image if config.phase == "xe" else self.samples,
            seed=config.seed,
            by_caption=config.phase == "rl",
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        self.epochs, self.steps = epochs, self._batches.steps
        self._feedback = 0.0
        self._validation = self.captions.of("val")
        if not self._validation:
            raise InputError("there are no validation images; an epoch is chosen by their captions' CIDEr")
        if config.batch_norm and config.phase == "xe" and self._batches.least == 1:
            raise InputError(
                f"batches of {batch_size} of {len(self._train)} images leave a single one to a process, and BatchNorm "
                "needs two; choose another batch size"
            )

    def batches(self, epoch: int, start_step: int) -> Iterable[CaptionBatch]:
        """Batches of `epoch` for this process, starting at `start_step`."""
        self._feedback = self.config.feedback(epoch)
        return (batch.to(self._fabric.device) for batch in self._batches.epoch(epoch, start_step))

    def learning_rate(self, epoch: int, step: int) -> float:
        """Learning rate of a step: a cosine decay over all steps."""
        return self.config.rate((epoch * self.steps + step) / (self.epochs * self.steps))

    def sums(self, model: nn.Module, batch: CaptionBatch) -> dict[str, Tensor]:
        """The cross-entropy summed over the words and end tokens of the batch."""
        targets = targets_of(batch.words)
        logits = model(*batch.regions, batch.words, self._feedback, caption_mask(targets))
        return {"loss": cross_entropy(logits.float(), targets)}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Cross-entropy per word of the validation captions, and CIDEr of the captions that the model generates."""
        share = range(self._fabric.global_rank, len(self._validation), self._fabric.world_size)  # of this process
        images = [self._validation[index] for index in share]
        loss = words = 0.0
        for first in range(0, len(images), EVALUATION_BATCH):
            batch = images[first : first + EVALUATION_BATCH]
            for image, total in zip(batch, self._losses(model, batch), strict=True):
                loss, words = loss + total, words + sum(len(caption) + 1 for caption in image.captions)
        search = Search(beams=self.config.beams, longest=self.captions.longest)
        ids = [image.id for image in images]
        generated = generate_captions(self.captioner, self.captions.vocabulary, self.features, ids, search)
        own = [(index, one.caption) for index, one in zip(share, generated, strict=True)]
        captions = dict(gathered(self._fabric, own))
        loss, words = summed(self._fabric, [loss, words])
        references = [image.references for image in self._validation]
        scored = score.evaluate(references, [captions[index] for index in range(len(references))], ["cider"])
        return {"validation_loss": loss / words, "validation_cider": float(scored.scores["CIDEr"].total)}

    def _losses(self, model: nn.Module, images: list[Image]) -> list[float]:
        """Cross-entropy summed over the captions of each image.

        The model takes the same number of captions for each image, so empty ones are added, and left out of the sums.
        """
        device, most = self._fabric.device, max(len(image.captions) for image in images)
        regions = collate([self.features.of(image.id) for image in images]).to(device)
        words = padded([c for image in images for c in (*image.captions, *[()] * (most - len(image.captions)))])
        words = words.to(device)
        targets = targets_of(words)
        logits = model(*regions, words, mask=caption_mask(targets))
        each = -log_probabilities(logits.float(), targets).sum(1).view(len(images), most)
        return [float(row[: len(image.captions)].sum()) for row, image in zip(each, images, strict=True)]

    def seconds(self) -> dict[str, float]:
        """No times besides those that the engine measures."""
        return {}


class ReinforceTask(CrossEntropyTask):
    """REINFORCE: candidate captions of the model are rewarded by CIDEr-D, relative to a baseline.

    Dropout is off, both where candidates are decoded and where their probability is differentiated: the two must be the
    same distribution.
    """

    def __init__(self, config: CaptionerConfig, dataset: CaptionDataset, fabric: Fabric, start: StartingPoint) -> None:
        super().__init__(config, dataset, fabric, start)
        train = [image.captions for image in self._train]
        self._reward = CiderReward.of(PackedCaptions.pack(train), self.captions.frequencies)
        # Another module with the same tensors: hooks of a probe on the model must not record what decoding computes.
        shared = [*self.model.parameters(), *self.model.buffers()]
        self._decoder = copy.deepcopy(self.captioner, {id(tensor): tensor for tensor in shared}).eval()
        self._seconds = {"decoding_seconds": 0.0, "reward_seconds": 0.0}

    def sums(self, model: nn.Module, batch: CaptionBatch) -> dict[str, Tensor]:
        """Sums over the candidates: the loss −(reward − baseline)·log-probability, rewards, baselines and lengths."""
        model.eval()
        began = time.perf_counter()
        candidates, greedy_words = self._candidates(batch)
        decoded = time.perf_counter()
        rewards, baseline = self._rewards(candidates, greedy_words, batch.images)
        rewarded = time.perf_counter()
        self._seconds["decoding_seconds"] += decoded - began
        self._seconds["reward_seconds"] += rewarded - decoded
        words = candidates.flatten(0, 1)  # (images · candidates, steps)
        inputs = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], 1)
        logits = model(*batch.regions, inputs, mask=caption_mask(words)).float()
        advantages = rewards - baseline
        loss = reinforce(log_probabilities(logits, words), words, advantages.flatten().to(logits))
        sums = {"reward": rewards.sum(), "baseline": baseline.sum(), "advantage": advantages.abs().sum()}
        return {"loss": loss, **{name: value.to(loss) for name, value in sums.items()}, "words": (words != 0).sum()}

    @torch.no_grad()
    def _candidates(self, batch: CaptionBatch) -> tuple[Tensor, Tensor | None]:
        """Words (images, candidates, steps) of the candidates, and (images, steps) of greedy captions or None.

        The greedy captions are for the baseline "greedy".
        """
        config, limits = self.config, Limits(self.captions.longest)
        with self._fabric.autocast():
            memory = self._decoder.encode(*batch.regions)
            if config.candidates == "beam":
                found = beam(self._decoder, memory, beams=self.samples, n_best=self.samples, limits=limits)
            else:
                found = sample(self._decoder, memory, samples=self.samples, limits=limits)
            if config.baseline != "greedy":
                return found.words, None
            return found.words, greedy(self._decoder, memory, limits=limits).words[:, 0]

    def _rewards(self, words: Tensor, greedy_words: Tensor | None, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards and baselines, each (images, candidates) in float64 on the CPU, of words (images, candidates, steps).

        The baseline is the reward of the image's greedy caption, or the mean reward of its other candidates.
        `indices` (images,) are those of the training images.
        """
        images, count, _ = words.shape
        flat, flat_indices = words.flatten(0, 1).cpu(), indices.cpu().repeat_interleave(count)
        if greedy_words is None:
            rewards = self._reward(flat, flat_indices).view(images, count)
            return rewards, (rewards.sum(1, keepdim=True) - rewards) / (count - 1)
        both = self._reward(torch.cat([flat, greedy_words.cpu()]), torch.cat([flat_indices, indices.cpu()]))
        return both[: len(flat)].view(images, count), both[len(flat) :, None].expand(images, count)

    def seconds(self) -> dict[str, float]:
        """The seconds of decoding and rewarding since the last call."""
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return seconds


def train(
    config: CaptionerConfig,
    folder: str | Path,
    dataset: CaptionDataset,
    *,
    start: str | Path | None = None,
    start_from: str = "last",
    resume: bool = False,
    restart: bool = False,
    places: Mapping[str, Path | str | None] | None = None,
    hardware: Hardware | None = None,
    checkpoint_minutes: float = 10.0,
    tensorboard: bool = True,
    progress: NoTrainingProgress | None = None,
) -> Path:
    """Train a captioner, and return the run's folder.

    `resume` continues from the last checkpoint, if the run is not finished; `restart` removes the records and
    checkpoints of this run and trains it again. `places` are the paths of the data set by the names of the command's
    options, which are stored for a later `--resume`. REINFORCE needs `start`, a finished cross-entropy run, and begins
    with the weights of its last or its best epoch (`start_from`).
    """
    if is_first_process():
        check_writable(Path(folder))
    check_ids(dataset)
    if start is None and start_from != "last":
        raise InputError(f"--from {start_from} is an epoch of the run that REINFORCE starts from: give --start")
    if (config.phase == "rl") != (start is not None):
        what = "needs a run of cross-entropy: give" if config.phase == "rl" else "starts from no other run: leave out"
        raise InputError(f"phase {config.phase} {what} --start")
    origin = None if start is None else read_start(start, start_from, dataset)
    config = config.resolved(origin.config if origin else None)
    identity = {"task": "captioner", "config": asdict(config), "data": dataset.identity}
    if origin:
        identity["start"] = origin.identity

    def make(fabric: Fabric) -> CrossEntropyTask:
        if origin:
            return ReinforceTask(config, dataset, fabric, origin)
        return CrossEntropyTask(config, dataset, fabric, None)

    settings = Settings(
        clip_value=config.clip_value,
        max_steps=config.max_steps,
        angles=config.angles,
        log_every=config.log_every,
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
    )
    return train_task(
        make,
        folder,
        identity,
        settings,
        resume=resume,
        restart=restart,
        places={**(places or {}), "start": None if start is None else Path(start)},
        files={VOCABULARY: vocabulary_json(dataset.captions.vocabulary)},
        hardware=hardware,
        precision=config.precision,
        progress=progress,
        summary=lambda: _summary(folder),
    )


def read_start(folder: str | Path, which: str, dataset: CaptionDataset) -> StartingPoint:
    """The last or best epoch of a finished cross-entropy run on the same captions and features."""
    record = runs.read(folder)
    config = config_of(record)
    if config.phase != "xe" or not record.finished:
        state = "is not finished" if config.phase == "xe" else "is of REINFORCE itself"
        raise InputError(f"{folder}: {state}; REINFORCE starts from a finished run of cross-entropy")
    check_fits(record, dataset)
    for name in ("captions", "features"):
        trained, given = record.config["data"][name], dataset.identity[name]
        if trained != given:
            raise InputError(
                f"{folder}: was trained on other {name}: {trained}, not {given}; REINFORCE goes on with the same ones"
            )
    step = checkpoints.step_of(record, which)
    checkpoint = checkpoints.load(record.folder / runs.CHECKPOINTS, step, record.identity)
    identity = {"config": record.config["config"], "from": which, "step": step, "weights": _digest(checkpoint.model)}
    return StartingPoint(config, checkpoint.model, identity)


def _digest(weights: dict[str, Tensor]) -> str:
    """Sixteen hexadecimal digits that change with any weight."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _summary(folder: str | Path) -> str:
    end = runs.read(folder).of("end")[0]
    last, best = end["last"]["validation_cider"], end["selected"]
    chosen = f", best {best['validation_cider']:.3f} after epoch {best['epoch'] + 1}" if best else ""
    return f"{folder}: finished, validation CIDEr {math.nan if last is None else last:.3f} after the last epoch{chosen}"
