"""Mixed precision, gradient accumulation, clipping and a scheduler: the loop does not change.

    python examples/amp_accumulation.py

The first layer is to take at most 4 bits a weight; a controller finds the alpha for that. The "decoupled"
coupling goes well with Adam, whose steps are far larger than lr times the gradient.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import weightshare as ws


def main(steps: int = 500, accumulate: int = 2) -> float:
    """Train; return the bits per weight of the first layer."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16 - 0.5, dtype=torch.float32), torch.tensor(y)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs, labels = inputs.to(device), labels.to(device)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=2e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    rules = [
        ws.Rule("0.weight", alpha=0.05, coupling="decoupled", target_bits=4.0, tolerance=0.2),
        ws.Rule("2.weight", alpha=0.1, per="row", schedule=ws.schedules.warmup(50)),
    ]
    sharing = ws.WeightSharing(model, optimizer, rules)

    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            batch = torch.randint(0, 1500, (100,), device=device)
            with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch]) / accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # the ties are there after this; a skipped step moves nothing
        scaler.update()
        scheduler.step()
        if step % 100 == 99:
            print(f"step {step + 1}", sharing.report(), sep="\n")
    with torch.no_grad():
        accuracy = float((model(inputs[1500:]).argmax(1) == labels[1500:]).double().mean())
    print(f"accuracy {accuracy:.3f}")
    return sharing.report()["0.weight"]["bits"]


if __name__ == "__main__":
    main()
