"""The least: three lines more than a training loop has anyway.

    python examples/minimal.py

Trains a small network on scikit-learn's digits, and heals it afterwards: the ties stay, R goes.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import weightshare as ws


def main(epochs: int = 15) -> float:
    """Train, report, heal; return the accuracy."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(torch.tensor(x / 16 - 0.5, dtype=torch.float32), torch.tensor(y))
    train, test = torch.utils.data.random_split(data, [1500, 297])
    loader = torch.utils.data.DataLoader(train, batch_size=100, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharing = ws.WeightSharing(model, optimizer, alpha=0.02, beta=1e-3)  # the whole of it

    def train_on(epochs: int) -> float:
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        with torch.no_grad():
            inputs, labels = next(iter(torch.utils.data.DataLoader(test, batch_size=len(test))))
            return float((model(inputs).argmax(1) == labels).double().mean())

    accuracy = train_on(epochs)
    print(sharing.report(), f"accuracy {accuracy:.3f}", sep="\n")

    sharing.remove()
    ws.freeze_clusters(model, gradient="mean", optimizer=optimizer)
    accuracy = train_on(epochs // 3)
    ws.unfreeze(model)
    print("\nhealed:", ws.report(model), f"accuracy {accuracy:.3f}", sep="\n")
    return accuracy


if __name__ == "__main__":
    main()
