"""A Lightning callback that attaches weight sharing to the module's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import lightning.pytorch as pl
except ImportError as error:
    raise ImportError(
        "weightshare.integrations.lightning needs Lightning: pip install 'weightshare[lightning]'"
    ) from error

from weightshare.training import Rule, WeightSharing


class WeightSharingCallback(pl.Callback):
    """Share weights while a Trainer fits; resume with its checkpoints.

    Args:
        rules: see :class:`weightshare.Rule`; names are those of the LightningModule. Left out, every Linear
            and Conv, with ``settings``.
        optimizer: which of the module's optimizers to attach to; use one callback for each.
        log_every: log the numbers of the report through the module after every so many steps of the
            optimizer; 0: never.
        **settings: arguments of :class:`weightshare.WeightSharing`.

    During and after ``fit``, ``callback.sharing`` is the :class:`weightshare.WeightSharing`.
    """

    def __init__(
        self,
        rules: Rule | Sequence[Rule] | None = None,
        *,
        optimizer: int = 0,
        log_every: int = 0,
        **settings: Any,
    ) -> None:
        self.rules, self.settings = rules, settings
        self.optimizer, self.log_every = optimizer, log_every
        self.sharing: WeightSharing | None = None
        self._saved: dict[str, Any] | None = None
        self._logged = 0

    @property
    def state_key(self) -> str:
        """Where the state is in a checkpoint: one place for each optimizer."""
        return f"weightshare.optimizer{self.optimizer}"

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach; the optimizers are there now."""
        if self.optimizer >= len(trainer.optimizers):
            raise ValueError(
                f"optimizer={self.optimizer}, but the module has {len(trainer.optimizers)}: count from 0"
            )
        optimizer = trainer.optimizers[self.optimizer]
        self.sharing = WeightSharing(pl_module, optimizer, self.rules, **self.settings)
        if self._saved is not None:
            self.sharing.load_state_dict(self._saved)
        self._logged = self.sharing.steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, where it is due and the optimizer has stepped."""
        sharing = self.sharing
        if sharing is None or not self.log_every or sharing.steps == self._logged:
            return  # a batch that was accumulated
        if sharing.steps % self.log_every == 0:
            self._logged = sharing.steps
            pl_module.log_dict(sharing.report().scalars("sharing/"))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Detach."""
        if self.sharing is not None:
            self.sharing.remove()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Detach also when training fails."""
        self.on_fit_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {} if self.sharing is None else self.sharing.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Some strategies restore before the optimizers exist, some after."""
        self._saved = state_dict
        if self.sharing is not None and self.sharing.attached:
            self.sharing.load_state_dict(state_dict)
