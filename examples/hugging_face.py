"""The Hugging Face Trainer: one callback.

    python examples/hugging_face.py

A tiny BERT, built from a configuration (nothing is downloaded), learns whether a sequence holds token 7.
"""

import tempfile

import torch
import transformers

import weightshare as ws
from weightshare.integrations.transformers import WeightSharingCallback


def main(steps: int = 60) -> int:
    """Train; return the number of distinct values of one layer."""
    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    rows = torch.randint(0, 30, (512, 16))
    dataset = [{"input_ids": row, "labels": int((row == 7).any())} for row in rows]

    # The same values for every matrix of the encoder: "group" makes one vector of them.
    rule = ws.Rule(
        "re:bert.encoder.*(query|key|value|dense).weight", alpha=0.03, per="group", coupling="decoupled"
    )
    callback = WeightSharingCallback(rule, log_every=20)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=32, learning_rate=3e-3, logging_steps=20,
            save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=[callback])
        trainer.train()
    print(callback.sharing.report())
    return callback.sharing.report().rows[0]["distinct"]


if __name__ == "__main__":
    main()
