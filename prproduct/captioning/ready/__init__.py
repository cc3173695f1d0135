"""Ready captioners: weights that come with the package, so that `prproduct caption photo.jpg` needs no training.

prproduct/captioning/ready/NAME.safetensors    weights in float16, at most 10 MB
                           NAME.json           the card: network, vocabulary, encoder, data, recipe, scores, licence

`prproduct bundle RUN… --data NAME --licence TEXT` makes them from runs that `prproduct caption --split test` and
`prproduct score` have scored.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import typer
from safetensors import SafetensorError

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.prepared import VOCABULARY, read_vocabulary
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.metrics.writing import replacing
from prproduct.captioning.results import scores_file
from prproduct.captioning.training import chosen_step, config_of, load_captioner
from prproduct.captioning.use.speakers import PHASE_NAMES, Speaker, labels_of
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.files import as_json, read_json

FORMAT = "prproduct captioner 1"
PLACE = Path(__file__).parent
LARGEST = 10_000_000  # bytes of weights
ORDER = ("p", "r", "pr")  # of the paper's table; others follow by name


def open_ready(place: Path = PLACE) -> list[Speaker]:
    """The ready captioners of a folder, P, R and PR first."""
    rank = {name: number for number, name in enumerate(ORDER)}
    cards = sorted(place.glob("*.json"), key=lambda path: (rank.get(path.stem, len(ORDER)), path))
    if not cards:
        raise InputError(
            "whose captions? Give --run, the folder of a captioner's run: this installation has no ready captioner"
        )
    read = [_read(card) for card in cards]
    labels = labels_of([config for config, *_ in read], cards)
    return [
        Speaker(runs.Record(path, card, ()), label, _model(path, config, card), vocabulary, _about(card))
        for path, label, (config, card, vocabulary) in zip(cards, labels, read, strict=True)
    ]


def write(run: Path, data: str, licence: str, place: Path = PLACE, which: str = "best") -> Path:
    """Make a ready captioner from a run whose test captions are scored, and return its card's path."""
    record = runs.read(run)
    config = config_of(record)
    file = scores_file(run, "test")
    scored = read_json(file) if file.exists() else {}
    if not scored.get("scores"):
        raise InputError(f"{run}: its test captions are not scored; prproduct caption --split test, prproduct score")
    step = chosen_step(run, which)
    if scored["how"].get("epoch") != which or scored["how"].get("step") != step:
        raise InputError(f"{run}: the scores are of another epoch than the {which} one; caption and score it again")
    if not record.config["data"].get("encoder"):
        raise InputError(f"{run}: its features do not say what made them, so that it cannot caption pictures")
    weights = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in load_captioner(run, which).state_dict().items()
    }
    if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
        raise InputError(f"{run}: has weights that float16 cannot hold")
    content = safetensors.torch.save(weights)
    if len(content) > LARGEST:
        raise InputError(
            f"{run}: {len(content) / 1e6:.1f} MB of weights in float16, where {LARGEST / 1e6:.0f} are allowed; train a "
            "smaller network (--hidden, --embedding)"
        )
    card = {
        "format": FORMAT,
        "data_name": data,
        "licence": licence,
        "config": asdict(config),
        "data": dict(record.config["data"]),
        "vocabulary": list(read_vocabulary(run / VOCABULARY).words),
        "trained": {
            "phase": PHASE_NAMES[config.phase],
            "seed": config.seed,
            "step": step,
            "commit": record.config["environment"].get("commit"),
            "versions": record.config["environment"].get("versions"),
        },
        "scores": {"images": scored["images"], "search": scored["how"]["search"], **scored["scores"]},
    }
    name = str(config.product).replace(":", "-")
    for path, written in ((place / f"{name}.safetensors", content), (place / f"{name}.json", as_json(card))):
        with replacing(path) as stream:
            stream.write(written)
    return place / f"{name}.json"


def _read(path: Path) -> tuple[CaptionerConfig, dict[str, Any], Vocabulary]:
    card = read_json(path)
    try:
        if card["format"] != FORMAT:
            raise InputError(f"{path}: format {card['format']!r}, this version reads {FORMAT!r}")
        vocabulary = Vocabulary(tuple(card["vocabulary"]))
        config = config_of(runs.Record(path, {**card, "task": "captioner"}, ()))
        known = card["data"]["vocabulary"], card["data"]["words"], card["data"]["width"], card["licence"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not the card of a captioner ({error}); install prproduct again") from None
    if vocabulary.fingerprint != known[0]:
        raise InputError(f"{path}: its words are not those it was trained with; install prproduct again")
    return config, card, vocabulary


def _model(path: Path, config: CaptionerConfig, card: dict[str, Any]) -> Any:
    weights = path.with_suffix(".safetensors")
    model = config.build(card["data"]["words"], card["data"]["width"])
    try:
        model.load_state_dict(safetensors.torch.load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"{weights}: not the weights of its card ({str(error).splitlines()[0]}); install prproduct again"
        ) from None
    return model.eval()


def _about(card: dict[str, Any]) -> str:
    """A card in a line."""
    scores, trained = card["scores"], card["trained"]
    cider = f", CIDEr {100 * scores['CIDEr']:.1f} on {scores['images']:,} test images" if "CIDEr" in scores else ""
    return f"{card['data_name']}, seed {trained['seed']}{cider}; {card['licence']}"


def bundle(
    folders: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="runs whose test captions are scored")],
    data: Annotated[str, typer.Option(help="what they were trained on, for the card")],
    licence: Annotated[str, typer.Option(help="what the data's licence says about weights, for the card")],
    place: Annotated[
        Path, typer.Option("--output", "-o", help="a folder for them; the package's own", show_default=False)
    ] = PLACE,
    which: Annotated[str, typer.Option("--epoch", help="best or last")] = "best",
) -> None:
    """Make ready captioners of runs, one for each product."""
    for folder in folders:
        card = write(folder, data, licence, place, which)
        print(f"{card}: {card.with_suffix('.safetensors').stat().st_size / 1e6:.1f} MB, {_about(read_json(card))}")
