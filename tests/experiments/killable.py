"""Runs in processes of their own, which say each event and go on when they are told: a test kills them.

Each run is a fork of this process, which has done one itself, so that everything is loaded; in one thread,
since threads do not survive a fork.
"""

import json
import os
import tempfile

import torch

from weightshare.experiments.config import Config
from weightshare.experiments.recipes import recipe
from weightshare.experiments.train import run
from weightshare.experiments.watch import Watch


def line():
    """A line of the standard input, and not a byte more: the processes share it."""
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        data += byte
    return data.decode().strip()


class Asking(Watch):
    """Says a word at every event, and waits for a line."""

    def say(self, *words):
        print(*words, flush=True)
        line()

    def step(self, epoch, step):
        self.say("step", epoch, step)

    def epoch(self, row):
        self.say("epoch", row["epoch"])

    def measuring(self, done, total):
        self.say("measuring", done)


def child(command):
    settings, root, seconds = json.loads(command)
    print("pid", os.getpid(), flush=True)
    config = Config.from_dict(settings)
    run(config, root, watch=Asking(), tensorboard=False, checkpoint_seconds=seconds)
    print("finished", flush=True)


def warm_up():
    """Load whatever a run loads."""
    with tempfile.TemporaryDirectory() as folder:
        run(recipe("torus/mlp-r", "smoke", epochs=1, heal_epochs=1, batch=256), folder, tensorboard=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_up()
    while command := line():
        pid = os.fork()
        if not pid:
            try:
                child(command)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        print("over", flush=True)
