"""The paper's numbers, as data: what ours stand next to. Shares in [0, 1], seconds; it has no error bars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A row of Table 2 or 3, and the recipe that makes ours; None: the paper has no such number."""

    label: str
    recipe: str
    variant: str = "plain"
    test_accuracy: float | None = None
    asymmetry: float | None = None
    sparsity: float | None = None
    sharing: float | None = None


TORUS = (
    Published("CNN", "torus/cnn", test_accuracy=0.9882, asymmetry=0.0),
    Published("CNN (-locality)", "torus/cnn", "no-locality", test_accuracy=0.9798, asymmetry=0.0),
    Published("CNN (-symmetry)", "torus/cnn", "no-symmetry", test_accuracy=0.7132, asymmetry=0.857),
    Published("MLP", "torus/mlp", test_accuracy=0.9240, asymmetry=0.445),
    Published("MLP + l1", "torus/mlp-l1", test_accuracy=0.9357, asymmetry=0.375),
    Published("MLP + R", "torus/mlp-r", test_accuracy=0.9504, asymmetry=0.316),
    Published("MLP + R + l1", "torus/mlp-r-l1"),
)
"""Table 2, MNIST on a torus, 60 % of the training set; the last row is ours alone."""

CIFAR10 = (
    Published("CNN", "cifar10/cnn", test_accuracy=0.8185, sparsity=0.9999, sharing=0.9961),
    Published("MLP", "cifar10/mlp", test_accuracy=0.6920, sparsity=0.0, sharing=0.9105),
    Published("β-lasso", "cifar10/beta-lasso", test_accuracy=0.7137, sparsity=0.9533, sharing=0.4196),
    Published("l1", "cifar10/l1", test_accuracy=0.7366, sparsity=0.9958, sharing=0.0204),
    Published("R (subgradient)", "cifar10/r-subgradient", test_accuracy=0.6996, sparsity=0.0, sharing=0.0298),
    Published("R", "cifar10/r", test_accuracy=0.7350, sparsity=0.0, sharing=0.9996),
    Published("R + l1", "cifar10/r-l1", test_accuracy=0.7375, sparsity=0.9971, sharing=0.0117),
)
"""Table 3, CIFAR10."""

SECONDS_PER_EPOCH = {"sequential": 1800.0, "search": 200.0, "imminent": 50.0, "none": 10.0}
"""Table 4: CIFAR10, S-FC of 75.6 million weights, approximate, on the authors' GPU."""

COMPLEXITY = {
    "imminent": "O(d)",
    "end": "O(d²/p + d log d)",
    "search": "O(d log² d / p + log³ d)",
}
"""Table 1: parallel time on p processors."""

ROUNDS = {"imminent": (500, 10**8)}
"""Section "Practical remarks": about so many rounds, for about so many weights."""
