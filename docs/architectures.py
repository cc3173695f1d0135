"""The table of docs/architectures.md: what `convert` does to architectures of transformers, in their default size.

Models are built on the meta device, which allocates nothing. Run it to print the table.
"""

from __future__ import annotations

from collections import Counter

import torch
import transformers
from torch import nn

import prproduct as pr

ARCHITECTURES = {
    "ViT": "ViTForImageClassification",
    "ConvNeXt": "ConvNextForImageClassification",
    "ResNet": "ResNetForImageClassification",
    "MobileNetV2": "MobileNetV2ForImageClassification",
    "EfficientNet": "EfficientNetForImageClassification",
    "Swin": "SwinForImageClassification",
    "SegFormer": "SegformerForSemanticSegmentation",
    "DETR": "DetrForObjectDetection",
    "BERT": "BertForMaskedLM",
    "GPT-2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "T5": "T5ForConditionalGeneration",
    "BART": "BartForConditionalGeneration",
    "Mamba": "MambaForCausalLM",
    "CLIP": "CLIPModel",
    "Wav2Vec2": "Wav2Vec2ForCTC",
    "Whisper": "WhisperForConditionalGeneration",
}


def build(name: str) -> nn.Module:
    """A model of transformers in its default configuration, without memory for its weights."""
    model_class = getattr(transformers, name)
    with torch.device("meta"):
        return model_class(model_class.config_class(**({"use_timm_backbone": False} if "Detr" in name else {})))


def row(label: str, model: nn.Module) -> str:
    """One line of the table."""
    report = pr.report(pr.convert(model))
    layers = Counter(type(m).__name__ for m in model.modules() if isinstance(m, pr.nn.ProductLayer))
    left = Counter(_kind(row.why) for row in report.left)
    share = sum(r.weights for r in report.converted) / sum(r.weights for r in report.rows)
    counts = [", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) for kinds in (layers, left)]
    return f"| {label} | {sum(layers.values())} | {counts[0]} | {counts[1]} | {share:.1%} |"


def _kind(why: str) -> str:
    return "other" if why.startswith("no layer type") else why.partition(":")[0]


def table() -> str:
    """All lines, in Markdown."""
    head = "| model | converted layers | of which | left | weights converted |\n| --- | --- | --- | --- | --- |"
    rows = [row(f"{label} (`{name}`)", build(name)) for label, name in ARCHITECTURES.items()]
    rows.append(row("torch's own (`torch.nn.Transformer`)", nn.Transformer(batch_first=True, device="meta")))
    return "\n".join([head, *rows])


if __name__ == "__main__":
    print(table())
