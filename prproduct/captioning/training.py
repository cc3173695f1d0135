"""Training a captioner: `train(config, folder, material)` makes a run's folder (docs/runs.md, docs/captioning.md).

Cross-entropy with the references comes first; then REINFORCE on CIDEr-D, from the weights of such a run, with an
optimizer and a learning rate of its own. Both choose their epoch by the CIDEr of validation captions.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.batches import collate
from prproduct.captioning.data.features import Features, MadeBy
from prproduct.captioning.data.prepared import SPLITS, VOCABULARY, CaptionSet, vocabulary_json
from prproduct.captioning.data.training_batches import CaptionBatch, CaptionBatches, FeatureSource, padded
from prproduct.captioning.decoding import Captions, Limits, beam, greedy, sample
from prproduct.captioning.describing import Search, describe
from prproduct.captioning.losses import counted, cross_entropy, log_probabilities, reinforce, targets_of
from prproduct.captioning.metrics.cider import cider_d
from prproduct.captioning.metrics.packed import PackedCaptions
from prproduct.captioning.metrics.reward import CiderReward
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.captioning.model import Captioner
from prproduct.lab import checkpoints, runs
from prproduct.lab.engine import Settings
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable, replace_durably, writing
from prproduct.lab.hardware import Hardware, gathered, is_first_process, summed
from prproduct.lab.progress import Silent
from prproduct.lab.report.content import display
from prproduct.lab.session import train_task

CHOICES = ("last", "best")


class Material(NamedTuple):
    """What a captioner is trained on."""

    captions: CaptionSet
    features: FeatureSource

    @property
    def identity(self) -> dict[str, Any]:
        """For a run's config.json; the encoder is what its captioner needs to describe other pictures."""
        made_by = self.features.encoder if isinstance(self.features, Features) else None
        return {
            "captions": self.captions.fingerprint,
            "vocabulary": self.captions.vocabulary.fingerprint,
            "words": len(self.captions.vocabulary),
            "features": self.features.fingerprint,
            "width": self.features.width,
            "encoder": made_by.name if made_by else None,
            "encoder_fingerprint": made_by.fingerprint if made_by else None,
        }


class Start(NamedTuple):
    """The run that REINFORCE goes on from, and which of its epochs."""

    record: runs.Record
    config: CaptionerConfig
    weights: dict[str, Tensor]
    identity: dict[str, Any]


class Captioning:
    """What the engine trains, in either phase."""

    select_by: str | None = "validation_cider"
    select_largest = True

    def __init__(self, config: CaptionerConfig, material: Material, fabric: Fabric, start: Start | None) -> None:
        self.config, self.seed, self._fabric = config, config.seed, fabric
        self.captions, self.features = material
        torch.manual_seed(config.seed)
        self.captioner = config.build(len(self.captions.vocabulary), self.features.width)
        if start:
            self.captioner.load_state_dict(start.weights)
        self.model: nn.Module = self.captioner.to(fabric.device)
        # Given, in a resolved configuration.
        epochs, batch_size, self.samples = config.epochs or 1, config.batch_size or 1, config.samples or 1
        self.optimizer: Optimizer = Adam(self.model.parameters(), lr=config.rate(0.0), betas=(0.9, 0.999))
        self._train = self.captions.of("train")[: config.limit_train]
        phase = {"xe": "cross-entropy", "rl": "REINFORCE"}[config.phase]
        self.title = (
            f"captioner with the product {display(str(config.product))}, {phase}, {len(self._train):,} training "
            f"images, seed {config.seed}"
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
        self._cpu_began = self._cpu_seconds = 0.0
        self._validation = self.captions.of("val")
        if not self._validation:
            raise InputError("there are no validation images; an epoch is chosen by their captions' CIDEr")
        self._references = [tokenize_all(image.references) for image in self._validation]

    def batches(self, epoch: int, start_step: int) -> Iterable[CaptionBatch]:
        """Batches of `epoch` for this process, starting at `start_step`."""
        self._feedback = self.config.feedback(epoch)
        self._cpu_began = time.thread_time()
        return (self._on_device(batch) for batch in self._batches.epoch(epoch, start_step))

    def _on_device(self, batch: CaptionBatch) -> CaptionBatch:
        device = self._fabric.device
        regions = type(batch.regions)(*(t.to(device) for t in batch.regions))
        return CaptionBatch(regions, batch.words.to(device), batch.rows.to(device), batch.whole)

    def learning_rate(self, epoch: int, step: int) -> float:
        """Cosine decay over all steps."""
        return self.config.rate((epoch * self.steps + step) / (self.epochs * self.steps))

    def sums(self, model: nn.Module, batch: CaptionBatch) -> dict[str, Tensor]:
        """The cross-entropy of words and ends."""
        targets = targets_of(batch.words)
        logits = model(*batch.regions, batch.words, self._feedback, counted(targets))
        return {"loss": cross_entropy(logits.float(), targets)}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The cross-entropy of the validation captions, and the CIDEr of the captions that the model gives."""
        self._cpu_seconds = time.thread_time() - self._cpu_began
        share = range(self._fabric.global_rank, len(self._validation), self._fabric.world_size)
        images = [self._validation[place] for place in share]
        loss = words = 0.0
        for first in range(0, len(images), 50):
            some = images[first : first + 50]
            for image, total in zip(some, self._losses(model, some), strict=True):
                loss, words = loss + total, words + sum(len(caption) + 1 for caption in image.captions)
        search = Search(beams=self.config.beams, longest=self.captions.longest)
        said = describe(self.captioner, self.captions.vocabulary, self.features, [image.id for image in images], search)
        of_place = dict(gathered(self._fabric, [(place, d.caption) for place, d in zip(share, said, strict=True)]))
        candidates = tokenize_all([of_place[place] for place in range(len(self._validation))])
        loss, words = summed(self._fabric, [loss, words])
        score = cider_d(self._references, candidates)
        return {"validation_loss": loss / words, "validation_cider": float(score.total)}

    def _losses(self, model: nn.Module, images: list[Any]) -> list[float]:
        """Of each image's captions, summed; images may have different numbers of them."""
        most = max(len(image.captions) for image in images)
        regions = collate([self.features.of(image.id) for image in images])
        words = padded([c for image in images for c in (*image.captions, *[()] * (most - len(image.captions)))])
        device = self._fabric.device
        words = words.to(device)
        targets = targets_of(words)
        logits = model(*(t.to(device) for t in regions), words, wanted=counted(targets))
        each = -log_probabilities(logits.float(), targets).sum(1).view(len(images), most)
        return [float(row[: len(image.captions)].sum()) for row, image in zip(each, images, strict=True)]

    def seconds(self) -> dict[str, float]:
        """CPU time of this thread in training: less than the wall time where others use the machine."""
        return {"cpu_seconds": self._cpu_seconds}


class Reinforcement(Captioning):
    """REINFORCE: captions of the model's own are rewarded, each compared with a baseline.

    They are drawn and differentiated without dropout, so that what is differentiated is what they were drawn from.
    """

    def __init__(self, config: CaptionerConfig, material: Material, fabric: Fabric, start: Start) -> None:
        super().__init__(config, material, fabric, start)
        train = [image.captions for image in self._train]
        self._reward = CiderReward.of(PackedCaptions.pack(train), self.captions.frequencies)
        shared = [*self.model.parameters(), *self.model.buffers()]
        # The same weights without the probe's hooks: angles are those of what is differentiated.
        self._speaker = copy.deepcopy(self.captioner, {id(tensor): tensor for tensor in shared}).eval()
        self._seconds = {"decoding_seconds": 0.0, "reward_seconds": 0.0}

    def sums(self, model: nn.Module, batch: CaptionBatch) -> dict[str, Tensor]:
        """−(reward − baseline)·log-probability of each candidate, and what they are rewarded."""
        model.eval()
        began = time.perf_counter()
        candidates, guess = self._candidates(batch)
        decoded = time.perf_counter()
        images, count, _ = candidates.words.shape
        words = candidates.words.flatten(0, 1)  # (images · candidates, steps)
        said = torch.cat([words, *([guess] if guess is not None else [])])
        rows = torch.cat([batch.rows.repeat_interleave(count), *([batch.rows] if guess is not None else [])])
        rewards = self._reward(said, rows)
        rewarded = time.perf_counter()
        self._seconds["decoding_seconds"] += decoded - began
        self._seconds["reward_seconds"] += rewarded - decoded
        of_candidates = rewards[: len(words)].view(images, count)
        if guess is not None:
            baseline = rewards[len(words) :, None].expand(images, count)
        else:
            baseline = (of_candidates.sum(1, keepdim=True) - of_candidates) / (count - 1)
        given = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], 1)
        logits = model(*batch.regions, given, wanted=counted(words)).float()
        advantages = (of_candidates - baseline).flatten().to(logits.dtype)
        loss = reinforce(log_probabilities(logits, words), words, advantages)
        lengths = (words != 0).sum()
        return {
            "loss": loss,
            "reward": of_candidates.sum(),
            "baseline": baseline.sum(),
            "advantage": (of_candidates - baseline).abs().sum(),
            "words": lengths,
        }

    @torch.no_grad()
    def _candidates(self, batch: CaptionBatch) -> tuple[Captions, Tensor | None]:
        """What is rewarded, and the greedy captions if those are the baseline."""
        config, limits = self.config, Limits(self.captions.longest)
        with self._fabric.autocast():
            memory = self._speaker.encode(*batch.regions)
            if config.candidates == "beam":
                drawn = beam(self._speaker, memory, beams=self.samples, n_best=self.samples, limits=limits)
            else:
                drawn = sample(self._speaker, memory, samples=self.samples, limits=limits)
            guess = greedy(self._speaker, memory, limits=limits).words[:, 0] if config.baseline == "greedy" else None
        return drawn, guess

    def seconds(self) -> dict[str, float]:
        """CPU time, and the time of decoding and rewarding since it was asked last."""
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return {**super().seconds(), **seconds}


def train(
    config: CaptionerConfig,
    folder: str | Path,
    material: Material,
    *,
    start: str | Path | None = None,
    start_from: str = "last",
    resume: bool = False,
    restart: bool = False,
    places: Mapping[str, Path | str | None] | None = None,
    hardware: Hardware | None = None,
    checkpoint_minutes: float = 10.0,
    tensorboard: bool = True,
    progress: Silent | None = None,
) -> Path:
    """Train, and give back the run's folder. With `resume` go on from its last checkpoint, if it is not finished.

    With `restart` what the folder holds of this run is removed, and it is trained from the start. `places` are the
    paths of the material by the names of the command's options, for a later `--resume`. REINFORCE needs `start`, a
    finished run of cross-entropy, and takes the weights of its last epoch or of its best.
    """
    if is_first_process():
        check_writable(Path(folder))
    check_ids(material)
    if (config.phase == "rl") != (start is not None):
        what = "needs a run of cross-entropy to start from" if config.phase == "rl" else "starts from no other run"
        raise InputError(f"phase {config.phase} {what}: --start")
    begun = None if start is None else read_start(start, start_from, material)
    config = config.resolved(begun.config if begun else None)
    identity = {"task": "captioner", "config": asdict(config), "data": material.identity}
    if begun:
        identity["start"] = begun.identity

    def make(fabric: Fabric) -> Captioning:
        words = Path(folder) / VOCABULARY
        if fabric.is_global_zero and not words.exists():
            with writing(words):
                replace_durably(words, vocabulary_json(material.captions.vocabulary))
        return Reinforcement(config, material, fabric, begun) if begun else Captioning(config, material, fabric, None)

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
        hardware=hardware,
        precision=config.precision,
        progress=progress,
        summary=lambda: _summary(folder),
    )


def config_of(record: runs.Record) -> CaptionerConfig:
    """The configuration that a run was made with."""
    if record.config.get("task") != "captioner":
        raise InputError(f"{record.folder}: is a run of a {record.config.get('task')}, not of a captioner")
    try:
        own = record.config["config"]
        return CaptionerConfig(**{f.name: own[f.name] for f in fields(CaptionerConfig) if f.name in own})
    except (KeyError, TypeError, ValueError) as error:
        path = record.folder / runs.CONFIG
        raise InputError(f"{path}: is not the configuration of a captioner's run ({error})") from None


def read_start(folder: str | Path, which: str, material: Material) -> Start:
    """The weights of a cross-entropy run's last or best epoch, for the same vocabulary and features."""
    if which not in CHOICES:
        raise InputError(f"start from {which!r}: choose {' or '.join(CHOICES)}")
    record = runs.read(folder)
    config = config_of(record)
    if config.phase != "xe" or not record.finished:
        state = "is not finished" if config.phase == "xe" else "is of REINFORCE itself"
        raise InputError(f"{folder}: {state}; REINFORCE starts from a finished run of cross-entropy")
    check_fits(record, material)
    end = record.of("end")[0]
    step = end["last" if which == "last" else "selected"]["step"]
    kept = checkpoints.load(Path(folder) / runs.CHECKPOINTS, step, record.identity)
    identity = {"config": record.config["config"], "from": which, "step": step, "weights": _digest(kept.model)}
    return Start(record, config, kept.model, identity)


def check_ids(material: Material, splits: Sequence[str] = SPLITS) -> None:
    """Refuse features that lack an image of the captions: found out in an epoch, it costs the epoch."""
    captions, features = material
    of_splits = [(image.id, split) for split in splits for image in captions.of(split)]
    missing = [(image, split) for image, split in of_splits if image not in features]
    if missing:
        where = features.path if isinstance(features, Features) else "the features"
        image, split = missing[0]
        raise InputError(
            f"{where}: no features of {len(missing):,} of {len(of_splits):,} images, the first of them image {image} "
            f"of {split}; encode their pictures too (prproduct data features), or prepare captions without them"
        )


def check_fits(record: runs.Record, material: Material) -> None:
    """Refuse captions of another vocabulary than the run's, and features of another width or encoder."""
    there, here = record.config["data"], material.identity
    check_features(record, material.features)
    if there["vocabulary"] != here["vocabulary"]:
        raise InputError(
            f"{record.folder}: was trained with another vocabulary: {there['vocabulary']}, not {here['vocabulary']}"
        )


def check_features(record: runs.Record, features: FeatureSource) -> None:
    """Refuse features of another width than the run's, or of another encoder where both say by which they were made."""
    own = record.config["data"]
    if own["width"] != features.width:
        raise InputError(
            f"{record.folder}: was trained with features of another width: {own['width']}, not {features.width}"
        )
    made_by = features.encoder if isinstance(features, Features) else None
    known = MadeBy(own["encoder"], own["encoder_fingerprint"]) if own.get("encoder") else None
    if made_by and known and made_by != known:
        raise InputError(
            f"{record.folder}: was trained with features of another encoder: {known.name} ({known.fingerprint}), not "
            f"{made_by.name} ({made_by.fingerprint})"
        )


def load_captioner(folder: str | Path, which: str = "best") -> Captioner:
    """The captioner of a run, in eval mode: of its best epoch, by validation CIDEr, or of its last."""
    if which not in CHOICES:
        raise InputError(f"the {which!r} epoch: choose {' or '.join(CHOICES)}")
    record = runs.read(folder)
    config, data = config_of(record), record.config["data"]
    kept = checkpoints.load(Path(folder) / runs.CHECKPOINTS, chosen_step(folder, which), record.identity)
    model = config.build(data["words"], data["width"])
    model.load_state_dict(kept.model)
    return model.eval()


def chosen_step(folder: str | Path, which: str = "best") -> int:
    """The step of the checkpoint of a run's best epoch so far, or of its last checkpoint."""
    place = Path(folder) / runs.CHECKPOINTS
    steps = checkpoints.steps(place)
    if not steps:
        raise InputError(f"{place}: there is no checkpoint yet")
    identity = runs.read(folder).identity
    best = checkpoints.load(place, steps[-1], identity).state["position"]["best"] if which == "best" else None
    return int(best["step"]) if best else steps[-1]


def _digest(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _summary(folder: str | Path) -> str:
    end = runs.read(folder).of("end")[0]
    last, best = end["last"]["validation_cider"], end["selected"]
    chosen = f", best {best['validation_cider']:.3f} after epoch {best['epoch'] + 1}" if best else ""
    return f"{folder}: finished, validation CIDEr {math.nan if last is None else last:.3f} after the last epoch{chosen}"
