"""A run that saves after every step and continues from what it finds: a test kills and resumes it."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from weightshare.training import Rule, WeightSharing, schedules

STEPS = 60


def run(path: Path, steps: int = STEPS, announce=lambda step: None) -> dict:
    """Train up to ``steps`` steps, from the checkpoint at ``path`` if there is one; return the final one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    rules = [
        Rule("0.weight", alpha=0.2, target_distinct=20),
        Rule("3.weight", alpha=0.5, beta=0.05, rho=0.5, schedule=schedules.warmup(40)),
    ]
    sharing = WeightSharing(model, opt, rules)
    parts = {"model": model, "opt": opt, "scheduler": scheduler, "sharing": sharing}
    if path.exists():
        saved = torch.load(path)  # plain numbers and tensors alone: weights_only
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["rng"])
    while sharing.steps < steps:
        x = torch.randn(8, 12)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :3]).backward()
        opt.step()
        scheduler.step()
        state = {name: part.state_dict() for name, part in parts.items()} | {"rng": torch.get_rng_state()}
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
        announce(sharing.steps)
    return torch.load(path)


if __name__ == "__main__":

    def announce(step: int) -> None:
        """Tell the step, and go on when told to."""
        print(step, flush=True)
        sys.stdin.readline()

    run(Path(sys.argv[1]), announce=announce)
