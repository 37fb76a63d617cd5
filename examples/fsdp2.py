"""FSDP2: every rank holds a shard of each weight; the ties are exactly those that one process would find.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

Nothing changes but the model, which ``fully_shard`` cuts up before optimizer and sharing are made. Ends with
a checkpoint that any number of ranks can resume.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import weightshare as ws


def main(epochs: int = 10) -> float:
    """Train, save and resume; return the accuracy."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = int(os.environ["WORLD_SIZE"])
    rank = init_device_mesh(device, (ranks,)).get_rank()  # starts the process group, too
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    inputs = torch.tensor(x / 16 - 0.5, dtype=torch.float32, device=device)
    labels = torch.tensor(y, device=device)
    mine = torch.arange(1500)[rank::ranks]

    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharing = ws.WeightSharing(model, optimizer, ws.Rule("0.weight", alpha=0.02))

    for _ in range(epochs):
        for batch in mine[torch.randperm(len(mine))].chunk(15):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()  # the ranks exchange tables: with ties a few per cent of the tensor
    with torch.no_grad():
        accuracy = float((model(inputs[1500:]).argmax(1) == labels[1500:]).double().mean())
    report = sharing.report()  # every rank takes part

    with tempfile.TemporaryDirectory() as folder:
        place = [folder]
        dist.broadcast_object_list(place)
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": state, "sharing": sharing.state_dict()}
        dcp.save(saved, checkpoint_id=place[0])
        dcp.load(saved, checkpoint_id=place[0])  # as a new run would, on as many ranks as it has
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        sharing.load_state_dict(saved["sharing"])
        dist.barrier()  # before the folder goes
    if rank == 0:
        print(report, f"accuracy {accuracy:.3f}", sep="\n")
    dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()
