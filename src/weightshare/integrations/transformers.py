"""A callback for the Hugging Face Trainer that attaches weight sharing to its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "weightshare.integrations.transformers needs Transformers: pip install 'weightshare[transformers]'"
    ) from error

from weightshare.training import Rule, WeightSharing

KEY = "weightshare"


class WeightSharingCallback(TrainerCallback):
    """Share weights while a Trainer trains; resume with its checkpoints (in ``trainer_state.json``).

    Args:
        rules: see :class:`weightshare.Rule`; names are those of the model. Left out, every Linear and Conv,
            with ``settings``.
        log_every: add the numbers of the report to the trainer's logs after every so many steps; 0: never.
            Reporters (TensorBoard, W&B) run before the callbacks that a Trainer is given, and see only what
            comes before them: for their sake do not give the callback to the Trainer, but put it first, with
            ``trainer.callback_handler.callbacks.insert(0, callback)``.
        **settings: arguments of :class:`weightshare.WeightSharing`.

    During and after ``train``, ``callback.sharing`` is the :class:`weightshare.WeightSharing`.
    """

    def __init__(
        self, rules: Rule | Sequence[Rule] | None = None, *, log_every: int = 0, **settings: Any
    ) -> None:
        self.rules, self.settings, self.log_every = rules, settings, log_every
        self.sharing: WeightSharing | None = None
        self._logged = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach; model, optimizer and, when resuming, the trainer's state are there now."""
        if self.sharing is not None:
            self.sharing.remove()
        self.sharing = WeightSharing(kwargs["model"], kwargs["optimizer"], self.rules, **self.settings)
        saved = _saved(state)
        if state.global_step > 0:
            if KEY not in saved:
                raise ValueError(
                    "the checkpoint was saved without weight sharing: its trainer_state.json has no entry "
                    f"{KEY!r}; train on without this callback, or start anew"
                )
            self.sharing.load_state_dict(saved[KEY])
        self._logged = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave what is to be saved where the trainer saves it."""
        assert self.sharing is not None
        _saved(state)[KEY] = self.sharing.state_dict()
        if self.log_every and state.global_step % self.log_every == 0:
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the report's numbers to what the trainer logs."""
        sharing, step = self.sharing, state.global_step
        if sharing is None or not sharing.attached or logs is None or not self.log_every:
            return
        if step % self.log_every == 0 and step != self._logged:  # the trainer logs once more at its end
            self._logged = step
            scalars = sharing.report().scalars("sharing/")
            logs.update(scalars)
            if state.log_history:
                state.log_history[-1].update(scalars)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach."""
        if self.sharing is not None:
            self.sharing.remove()


def _saved(state: TrainerState) -> dict[str, Any]:
    """What trainer_state.json keeps for callbacks (annotated as a list there, a dict in fact)."""
    saved: Any = state.stateful_callbacks
    assert isinstance(saved, dict)
    return saved
