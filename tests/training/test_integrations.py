"""The callbacks, with the real libraries, on tiny models."""

import warnings

import pytest
import torch
from torch import nn

from weightshare.training import Rule


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 12, generator=generator)
    return x, x[:, :3].clone()


class TestLightning:
    @pytest.fixture
    def pl(self):
        return pytest.importorskip("lightning.pytorch")

    def module(self, pl):
        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))

            def training_step(self, batch, _):
                return nn.functional.mse_loss(self.net(batch[0]), batch[1])

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=0.02)

        return Module()

    def fit(self, pl, tmp_path, steps, callback, ckpt_path=None, batch=64, **settings):
        module = self.module(pl)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = pl.Trainer(
                max_steps=steps, accelerator="cpu", callbacks=[callback], default_root_dir=tmp_path,
                enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, **settings,
            )  # fmt: skip
            # By default one batch: our state is tested, not where a loader continues within an epoch.
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=batch)
            trainer.fit(module, loader, ckpt_path=ckpt_path)
        return module, trainer

    def callback(self, **settings):
        from weightshare.integrations.lightning import WeightSharingCallback

        return WeightSharingCallback(Rule("net.0.weight", alpha=0.3, target_distinct=20), **settings)

    def test_ties_logs_and_accumulates(self, pl, tmp_path, monkeypatch):
        callback, logged = self.callback(log_every=2), []
        monkeypatch.setattr(
            pl.LightningModule, "log_dict", lambda m, numbers, log=pl.LightningModule.log_dict: (
                logged.append(callback.sharing.steps), log(m, numbers)
            )
        )  # fmt: skip
        settings = {"accumulate_grad_batches": 2, "batch": 16, "gradient_clip_val": 1.0, "logger": False}
        module, trainer = self.fit(pl, tmp_path, 20, callback, **settings)
        assert logged == list(range(2, 21, 2))  # once each, though every step has two batches
        assert callback.sharing.steps == 20
        assert not callback.sharing.attached
        distinct = len(module.net[0].weight.unique())
        assert distinct < 192
        assert float(trainer.logged_metrics["sharing/net.0.weight/distinct"]) == distinct

    def test_resumes_bitwise(self, pl, tmp_path):
        whole, _ = self.fit(pl, tmp_path, 24, self.callback(), logger=False)
        _, trainer = self.fit(pl, tmp_path, 12, self.callback(), logger=False)
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        callback = self.callback()
        rest, _ = self.fit(pl, tmp_path, 24, callback, ckpt_path=tmp_path / "half.ckpt", logger=False)
        assert callback.sharing.steps == 24
        assert callback.sharing.units[0].control.measurements == 2
        assert torch.equal(whole.net[0].weight, rest.net[0].weight)

    def test_optimizers_are_counted_from_zero(self, pl, tmp_path):
        with pytest.raises(ValueError, match="the module has 1"):
            self.fit(pl, tmp_path, 1, self.callback(optimizer=1), logger=False)


class TestTransformers:
    @pytest.fixture
    def hf(self, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        pytest.importorskip("accelerate")
        return pytest.importorskip("transformers")

    def model(self, hf):
        torch.manual_seed(0)
        config = hf.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=8, num_labels=2,
        )  # fmt: skip
        return hf.BertForSequenceClassification(config)

    def train(self, hf, tmp_path, steps, callback, resume=None, first=False, report_to=(), **settings):
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(0, 30, (64, 8), generator=generator)
        dataset = [{"input_ids": row, "labels": int(row[0]) % 2} for row in rows]
        arguments = hf.TrainingArguments(
            output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-2,
            lr_scheduler_type="constant", save_steps=10, report_to=list(report_to), use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False, **settings,
        )  # fmt: skip
        given = None if first else [callback]
        trainer = hf.Trainer(self.model(hf), arguments, train_dataset=dataset, callbacks=given)
        if first:
            trainer.callback_handler.callbacks.insert(0, callback)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def callback(self, **settings):
        from weightshare.integrations.transformers import WeightSharingCallback

        rules = [
            Rule("re:bert.encoder.*dense.weight", alpha=0.5, per="row"),
            Rule("classifier.weight", target_distinct=8),
        ]
        return WeightSharingCallback(rules, **settings)

    def test_ties_and_logs(self, hf, tmp_path):
        callback = self.callback(log_every=5)
        trainer = self.train(hf, tmp_path, 10, callback, gradient_accumulation_steps=2, max_grad_norm=1.0)
        assert callback.sharing.steps == 10
        assert not callback.sharing.attached
        weight = trainer.model.bert.encoder.layer[0].attention.output.dense.weight
        assert len(weight.unique()) < weight.numel()
        assert any("sharing/classifier.weight/distinct" in entry for entry in trainer.state.log_history)

    def test_reporters_see_the_numbers_of_a_callback_that_comes_first(self, hf, tmp_path, monkeypatch):
        events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
        self.train(hf, tmp_path, 4, self.callback(log_every=2), first=True, report_to=["tensorboard"])
        (written,) = (tmp_path / "board").rglob("events*")
        found = events.EventAccumulator(str(written))
        found.Reload()
        name = "train/sharing/classifier.weight/distinct"
        assert [event.step for event in found.Scalars(name)] == [2, 4]

    @pytest.mark.parametrize("restore", [False, True])
    def test_resumes_bitwise(self, hf, tmp_path, restore):
        whole = self.train(hf, tmp_path / "a", 20, self.callback())
        self.train(hf, tmp_path / "b", 10, self.callback())
        callback = self.callback()
        checkpoint = str(tmp_path / "b" / "checkpoint-10")
        rest = self.train(
            hf, tmp_path / "c", 20, callback, checkpoint, restore_callback_states_from_checkpoint=restore
        )
        assert callback.sharing.steps == 20
        assert callback.sharing.units[-1].control.measurements == 2
        for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
            assert torch.equal(a, b)
