"""Hyper-parameters by Optuna: trained on a part of the training set, judged on the rest, never on test data.

A trial is one run for each seed, in folders like any other's; so what was stopped goes on where it was, and
a trial that has been run before costs nothing. Processes and machines share a sweep through its storage.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from weightshare.experiments import recipes, train
from weightshare.experiments.config import Config
from weightshare.experiments.files import circumstances, write_json
from weightshare.experiments.folder import DEFAULT_ROOT
from weightshare.experiments.many import Relay
from weightshare.experiments.space import Space, described
from weightshare.experiments.watch import Diverged, Stopped, Watch

HOLDOUT = 1 / 6
"""The share of the training set that trials are judged on, unless the config has one."""

_OVER = (TrialState.COMPLETE, TrialState.PRUNED)
_HEARTBEAT = 60  # seconds; a trial whose process was silent for twice as long is begun again


@dataclass(frozen=True)
class Sweep:
    """What is looked for, around which config, and where trials and runs are kept."""

    config: Config
    space: Space
    seeds: tuple[int, ...] = (0,)
    root: Path = DEFAULT_ROOT
    storage: str | None = None
    name: str | None = None
    sampler_seed: int = 0

    def __post_init__(self) -> None:
        if not self.config.holdout:
            object.__setattr__(self, "config", self.config.with_settings({"holdout": round(HOLDOUT, 4)}))
        if not self.seeds:
            raise ValueError("a sweep needs at least one seed")

    @property
    def title(self) -> str:
        """The name of the study; it tells recipe, preset, changed settings and what is looked for."""
        changed = "".join(f" {k}={v}" for k, v in sorted(recipes.changes(self.config).items()))
        over = ", ".join(f"{key} in {words}" for key, words in described(self.space).items())
        return self.name or f"{self.config.recipe} {self.config.preset}{changed}: {over}, seeds {self.seeds}"

    def study(self) -> optuna.Study:
        """The study in its storage, made if it is not there."""
        url = self.storage
        if url is None:
            self.root.mkdir(parents=True, exist_ok=True)
            url = f"sqlite:///{(self.root / 'sweeps.db').resolve()}"
        with warnings.catch_warnings():
            # Heartbeats and the brute-force sampler have been called so for years.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = optuna.storages.RDBStorage(
                url,
                heartbeat_interval=_HEARTBEAT,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            )
            sampler = self._sampler()
        return optuna.create_study(
            storage=storage,
            study_name=self.title,
            load_if_exists=True,
            direction="maximize",
            sampler=sampler,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=self.config.epochs // 3),
        )

    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Every combination where there are choices only; otherwise TPE."""
        if all(hasattr(where, "values") for where in self.space.values()):
            return optuna.samplers.BruteForceSampler(seed=self.sampler_seed)
        return optuna.samplers.TPESampler(seed=self.sampler_seed, n_startup_trials=6)


def sweep(
    wanted: Sweep,
    trials: int,
    *,
    watch: Callable[[Config], Watch] | None = None,
    told: Callable[[FrozenTrial], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> optuna.Study:
    """Go on until the study has so many trials behind it, or, of choices, all combinations.

    Args:
        watch: makes what is told of each run.
        told: is called with each trial that is over.
        interrupted: asked at every step of training; if so, the run saves a checkpoint, its trial is put
            back, and :class:`Stopped` is raised.
    """
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # what it has to tell, `told` tells
    study = wanted.study()
    left = trials - sum(trial.state in _OVER for trial in study.trials)

    def objective(trial: optuna.Trial) -> float:
        changed = {key: where.suggest(trial, key) for key, where in wanted.space.items()}
        scores = []
        for number, seed in enumerate(wanted.seeds):
            config = wanted.config.with_settings({**changed, "seed": seed})
            inner = watch(config) if watch is not None else Watch()
            observer = _Observer(inner, trial if number == 0 else None, interrupted)
            scores.append(_score(config, wanted.root, observer, trial))
        return statistics.fmean(scores)

    def count(study: optuna.Study, trial: FrozenTrial) -> None:
        if told is not None:
            told(trial)
        if sum(t.state in _OVER for t in study.trials) >= trials:
            study.stop()

    try:
        if left > 0:
            study.optimize(objective, callbacks=[count])
    finally:
        optuna.logging.set_verbosity(before)
    return study


def _score(config: Config, root: Path, observer: _Observer, trial: optuna.Trial) -> float:
    try:
        done = train.run(config, root, watch=observer, tensorboard=False)
    except Diverged as diverged:
        trial.set_user_attr("diverged", str(diverged))
        return 0.0
    except Stopped:
        if observer.pruned:
            raise optuna.TrialPruned from None
        trial.study.enqueue_trial(trial.params)
        raise
    metrics = done.summary()["metrics"]
    for key in ("train_accuracy", "exact_sharing", "sparsity"):
        trial.set_user_attr(f"{key}, seed {config.seed}", metrics[key])
    found: float = metrics["valid_accuracy"]
    return found


class _Observer(Relay):
    """Passes on what a run tells, and stops it where it is interrupted or not worth going on."""

    def __init__(self, inner: Watch, trial: optuna.Trial | None, interrupted: Callable[[], bool]) -> None:
        super().__init__(
            lambda name, *what: getattr(inner, name)(*what),
            lambda: self.pruned or interrupted() or inner.stop(),
        )
        self.trial, self.pruned = trial, False

    def epoch(self, row: dict[str, Any]) -> None:
        super().epoch(row)
        value = row.get("valid_accuracy")
        if self.trial is not None and value is not None:
            self.trial.report(value, row["epoch"])
            self.pruned = self.trial.should_prune()


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were completed, the best first."""
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: -(trial.value or 0.0))


def store(wanted: Sweep, study: optuna.Study, file: Path) -> None:
    """Write what was looked for and every trial that is over into one JSON file."""
    over = [trial for trial in study.trials if trial.state in _OVER]
    if not over:
        raise ValueError(f"the sweep has no trial behind it yet: there is nothing to store in {file}")
    write_json(
        file,
        {
            "study": study.study_name,
            "config": wanted.config.to_dict(),
            "space": described(wanted.space),
            "seeds": list(wanted.seeds),
            "judged by": "mean valid_accuracy over the seeds, on the part of the training set held out",
            "trials": [_row(trial) for trial in over],
            "circumstances": circumstances(),
        },
    )


def _row(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "settings": trial.params,
        "valid_accuracy": trial.value if trial.state == TrialState.COMPLETE else None,
        "pruned": trial.state == TrialState.PRUNED,
        "last": trial.intermediate_values[trial.last_step] if trial.last_step is not None else None,
        **trial.user_attrs,
    }


def settings(trial: FrozenTrial) -> Sequence[str]:
    """The trial's settings as ``--set`` takes them."""
    return [f"{key}={value}" for key, value in trial.params.items()]
