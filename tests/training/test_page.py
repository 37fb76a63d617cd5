"""docs/training.md: its code runs, and what it names is there."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weightshare as ws

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Net(nn.Module):
    """A model with the names that the page uses."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Linear(8, 6)})
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        """The modules one after another."""
        for layer in (*self.encoder.values(), self.fc1, self.fc2, self.fc3):
            x = torch.tanh(layer(x))
        return x


def around(block):
    """What a block takes for granted."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.ones(2, 6), torch.zeros(2, 2))] * 2
    told = []
    writer = SimpleNamespace(add_scalar=lambda name, value, step: told.append((name, value, step)))
    wandb = SimpleNamespace(log=lambda numbers, step: told.extend((k, v, step) for k, v in numbers.items()))
    names = {
        "torch": torch, "ws": ws, "model": model, "optimizer": optimizer, "loader": loader, "told": told,
        "loss": nn.functional.mse_loss, "writer": writer, "wandb": wandb, "step": 7,
    }  # fmt: skip
    if "sharing." in block and "sharing =" not in block:
        names["sharing"] = ws.WeightSharing(model, optimizer, alpha=0.1)
    for library in ("lightning.pytorch", "transformers"):
        if f"{library}." in block.replace("integrations.", ""):
            module = pytest.importorskip(library)
            root = library.partition(".")[0]
            names[root] = importlib.import_module(root)
            if root == "transformers":
                small = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
                names["bert"] = module.BertForSequenceClassification(module.BertConfig(**small))
    return names


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A process group of this process, and a place for files."""
    monkeypatch.chdir(tmp_path)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_run(block, alone):
    names = around(block)
    exec(block, names)
    sharing, model = names.get("sharing"), names["model"]
    if "writer" in block and "def log" not in block:
        assert len(names["told"]) == 2 * len(sharing.report().scalars())
    if sharing is not None and sharing.attached:
        before = sharing.steps
        model(names["loader"][0][0]).sum().backward()
        names["optimizer"].step()
        assert sharing.steps == before + 1
    if "log" in names:
        names["log"](sharing.report().scalars(), 50)
        assert ("fc1.weight/weights", 48, 50) in names["told"]


def test_names_exist():
    dotted = set(re.findall(r"\bws((?:\.\w+)+)", PAGE))
    assert len(dotted) >= 8
    for name in dotted:
        found = ws
        for part in name.strip(".").split("."):
            found = getattr(found, part)
    for name in set(re.findall(r"\bweightshare((?:\.\w+)+)", PAGE)):
        head, _, leaf = f"weightshare{name}".rpartition(".")
        assert hasattr(importlib.import_module(head), leaf) or importlib.import_module(f"{head}.{leaf}")


def test_every_argument_is_taught():
    for name in ws.Rule.__dataclass_fields__:
        assert re.search(rf"\b{name}\b", PAGE) or name == "select"
    for path in (Path(__file__).parents[2] / "examples").glob("*.py"):
        assert path.name in PAGE
