"""Real architectures from transformers, and torch's own, small enough for a test: a model and a batch each.

Dropout and whatever else draws random numbers is off, so that two models from one seed compute the same.
"""

import torch
import transformers as hf
from torch import nn

IMAGE = 16


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 40, shape)


def image(channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, IMAGE, IMAGE)


TEXT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_MASK = {"mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0, "final_dropout": 0.0}
DRY_SPEECH = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0}


def vit():
    small = {k: v for k, v in TEXT.items() if k != "vocab_size"}
    config = hf.ViTConfig(**small, **DRY, image_size=IMAGE, patch_size=4, num_labels=5)
    return hf.ViTForImageClassification(config), {"pixel_values": image(), "labels": torch.tensor([0, 3])}


def convnext():
    config = hf.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 2], num_stages=2, patch_size=2, num_labels=5)
    return hf.ConvNextForImageClassification(config), {"pixel_values": image(), "labels": torch.tensor([0, 3])}


def resnet():
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=5)
    return hf.ResNetForImageClassification(config), {"pixel_values": image(), "labels": torch.tensor([0, 3])}


def mobilenet():
    config = hf.MobileNetV2Config(depth_multiplier=0.25, min_depth=4, num_labels=5, classifier_dropout_prob=0.0)
    return hf.MobileNetV2ForImageClassification(config), {"pixel_values": image(), "labels": torch.tensor([0, 3])}


def swin():
    config = hf.SwinConfig(
        image_size=IMAGE, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2, drop_path_rate=0.0
    )
    return hf.SwinForImageClassification(config), {"pixel_values": image(), "labels": torch.tensor([0, 1])}


def bert():
    text = tokens(2, 7)
    return hf.BertForMaskedLM(hf.BertConfig(**TEXT, **DRY)), {"input_ids": text, "labels": text}


def gpt2():
    config = hf.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    text = tokens(2, 7)
    return hf.GPT2LMHeadModel(config), {"input_ids": text, "labels": text}


def llama():
    text = tokens(2, 7)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT)), {"input_ids": text, "labels": text}


def t5():
    config = hf.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config), {"input_ids": tokens(2, 7), "labels": tokens(2, 5)}


def wav2vec2():
    config = hf.Wav2Vec2Config(
        **{**TEXT, "hidden_size": 16},
        **DRY_SPEECH,
        **NO_MASK,
        conv_dim=(8, 8),
        conv_kernel=(8, 4),
        conv_stride=(4, 2),
        num_conv_pos_embeddings=5,
        num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2,
    )
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 400), "labels": tokens(2, 4)}


def whisper():
    config = hf.WhisperConfig(
        vocab_size=50, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10, dropout=0.0,
        max_target_positions=10, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 20), "labels": tokens(2, 4)}


class Translator(nn.Module):
    """torch's own Transformer between an embedding and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        source, embedded = self.embedding(source), self.embedding(target)
        logits = self.head(self.transformer(source, embedded, tgt_mask=mask))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        return hf.modeling_outputs.CausalLMOutput(loss=loss, logits=logits)


def transformer():
    return Translator(), {"source": tokens(2, 6), "target": tokens(2, 5)}


# How many layers of each must be converted.
ARCHITECTURES = {
    vit: 2 * 6 + 1 + 1,
    convnext: 1 + 1 + 3 * 3 + 1,
    resnet: 1 + 3 * 3 + 1 + 1,
    mobilenet: 53,
    swin: 15,
    bert: 2 * 6 + 2,
    gpt2: 2 * 4 + 1,
    llama: 2 * 7 + 1,
    t5: 2 * 6 + 2 * 10 + 1,
    wav2vec2: 2 + 1 + 1 + 2 * 6 + 1,
    whisper: 2 + 6 + 10 + 1,
    transformer: 1 + 2 + 2 + 2 + 1,
}
