"""Lightning and Hugging Face's Trainer take a converted model as they take any other."""

import lightning
import pytest
import torch
import transformers
from networks import images, small
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prproduct as pr
from prproduct.products import Tempered


class Classifier(lightning.LightningModule):
    """Warms the power up from P to PR while it trains."""

    def __init__(self):
        super().__init__()
        self.model = small("p")
        self.powers, self.losses = [], []

    def training_step(self, batch, index):
        pr.convert(self.model, Tempered(min(1.0, self.global_step / 4)))
        self.powers.append(self.model.head.product.power)
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers")
def test_lightning_trains_under_a_schedule_and_restores_its_checkpoint(tmp_path):
    data = DataLoader(TensorDataset(images(12), torch.arange(12) % 4), batch_size=4)
    module = Classifier()
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, precision="bf16-mixed", gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(module, data)
    assert module.powers == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert sum(module.losses[-3:]) < sum(module.losses[:3])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    restored = Classifier.load_from_checkpoint(tmp_path / "last.ckpt")
    assert torch.equal(restored.model.head.weight, module.model.head.weight)


def test_hugging_faces_trainer_trains_saves_and_loads(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=2
    )
    model = pr.convert(transformers.GPT2LMHeadModel(config))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(3, 50, (8, 6))]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        gradient_checkpointing=True, learning_rate=1e-2, report_to=[], disable_tqdm=True, use_cpu=True, save_steps=4,
        logging_steps=1,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert isinstance(model.transformer.h[0].mlp.c_fc, pr.nn.ProductLayer)
    native = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-4")
    assert type(native.lm_head) is nn.Linear
    text = data[0]["input_ids"][None]
    assert torch.equal(native.eval()(text).logits, model.eval()(text).logits)


def test_generation_is_the_native_models():
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    text = torch.tensor([[5, 7, 9]])
    expected = model.generate(text, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(pr.convert(model).generate(text, max_new_tokens=5, do_sample=False, pad_token_id=0), expected)
