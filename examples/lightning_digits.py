"""Lightning: one callback.

python examples/lightning_digits.py
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn

import weightshare as ws
from weightshare.integrations.lightning import WeightSharingCallback


class Digits(pl.LightningModule):
    """A module like any other: it knows nothing of sharing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Cross-entropy of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main(epochs: int = 10) -> int:
    """Train; return the number of distinct values of the first layer."""
    pl.seed_everything(0)
    x, y = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(torch.tensor(x / 16 - 0.5, dtype=torch.float32), torch.tensor(y))
    callback = WeightSharingCallback([ws.Rule("net.*.weight", alpha=0.02)], log_every=10)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="auto", callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Digits(), torch.utils.data.DataLoader(data, batch_size=100, shuffle=True))
    report = callback.sharing.report()
    print(report)
    return report["net.0.weight"]["distinct"]


if __name__ == "__main__":
    main()
