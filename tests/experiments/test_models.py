"""The networks: a fully connected one contains its convolution; the exact one is the same and invariant."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightshare.experiments import measure, models, rules, tasks
from weightshare.experiments.exact import ExactCNN
from weightshare.experiments.models import SFC, SConv, TorusCNN, TorusMLP
from weightshare.experiments.recipes import recipe
from weightshare.metrics import weight_sharing

CPU = torch.device("cpu")


def as_dense(layer, channels, side):
    """The matrix and bias of a convolution, column by column."""
    with torch.no_grad():
        bias = layer(torch.zeros(1, channels, side, side)).flatten()
        columns = layer(torch.eye(channels * side * side).view(-1, channels, side, side)).flatten(1) - bias
    return columns.T, bias


def copy_norm(target, source, positions):
    """Batch norm of each unit as that of its channel."""
    for name, value in source.state_dict().items():
        if value.ndim:
            target.state_dict()[name].copy_(value.repeat_interleave(positions))


def train_norms(model, images):
    model.train()
    for _ in range(5):
        model(images + torch.randn_like(images))
    return model.eval()


def test_the_torus_mlp_contains_the_torus_cnn():
    torch.manual_seed(0)
    cnn = train_norms(TorusCNN(side=5, width=2), torch.randn(16, 1, 5, 5))
    mlp = TorusMLP(side=5, width=2).eval()
    for layer, channels in ((1, 1), (2, 2)):
        weight, bias = as_dense(getattr(cnn, f"layer{layer}"), channels, 5)
        target = getattr(mlp, f"layer{layer}")
        target.weight.data, target.bias.data = weight, bias
        copy_norm(getattr(mlp, f"norm{layer}"), getattr(cnn, f"norm{layer}"), 25)
    mlp.output.load_state_dict(cnn.output.state_dict())
    x = torch.randn(7, 1, 5, 5)
    assert torch.allclose(mlp(x), cnn(x), atol=1e-5)


def test_s_fc_contains_s_conv():
    torch.manual_seed(0)
    cnn = train_norms(SConv(side=10, width=2), torch.randn(16, 3, 10, 10))
    mlp = SFC(side=10, width=2).eval()
    weight, bias = as_dense(cnn.layer1, 3, 10)
    assert weight.shape == mlp.layer1.weight.shape
    mlp.layer1.weight.data, mlp.layer1.bias.data = weight, bias
    copy_norm(mlp.norm1, cnn.norm1, 25)
    for name in ("layer2", "norm2", "output"):
        getattr(mlp, name).load_state_dict(getattr(cnn, name).state_dict())
    x = torch.randn(7, 3, 10, 10)
    assert torch.allclose(mlp(x), cnn(x), atol=1e-5)


@pytest.mark.parametrize("name", ["torus/cnn", "torus/mlp", "cifar10/cnn", "cifar10/mlp"])
def test_regularised_parameters_are_there_and_dropout_only_trains(name):
    config = recipe(name, "smoke", layers=(1, 2, 3), dropout=0.5, width=1)
    side = 32 if name.startswith("cifar10") else 8
    model = models.build(config, side)
    parameters = dict(model.named_parameters())
    for names in models.regularized(config).values():
        assert all(parameter in parameters for parameter in names)
    x = torch.randn(4, 3 if side == 32 else 1, side, side)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 30.0]), width=st.integers(1, 4))
def test_the_exact_network_is_the_same_and_invariant_bit_for_bit(seed, scale, width):
    torch.manual_seed(seed)
    model = TorusCNN(side=6, width=width)
    nn.init.normal_(model.output.weight, std=scale)
    train_norms(model, scale * torch.randn(8, 1, 6, 6))
    x = scale * torch.randn(5, 1, 6, 6)
    exact = ExactCNN(model, largest=float(x.abs().max()))
    logits = exact.logits(x)
    assert torch.allclose(logits.float(), model(x), rtol=1e-3, atol=1e-3 * max(1.0, scale))
    for shift in ((1, 0), (0, 1), (3, 4)):
        assert torch.equal(exact.logits(x.roll(shift, dims=(2, 3))), logits)
    assert torch.equal(exact(x), logits.argmax(1))


def test_larger_images_than_announced_are_refused():
    model = train_norms(TorusCNN(side=4, width=1), torch.randn(4, 1, 4, 4))
    with pytest.raises(ValueError, match="x must be within 1"):
        ExactCNN(model, largest=1.0).logits(torch.full((1, 1, 4, 4), 1.5))


# What is measured, and what the rules do.


def test_accuracy_is_the_share_of_right_answers_in_evaluation():
    model = nn.Sequential(nn.Dropout(0.9), nn.Identity())
    logits = torch.randn(50, 3)
    labels = torch.randint(3, (50,))
    found, loss = measure.accuracy(model, iter([(logits[:20], labels[:20]), (logits[20:], labels[20:])]))
    assert found == float((logits.argmax(1) == labels).double().mean())
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)))


@pytest.mark.parametrize("name", ["torus/cnn", "cifar10/cnn"])
def test_a_convolution_is_counted_as_the_matrix_that_it_is(name):
    config = recipe(name, "smoke", width=2, layers=(1,))
    task = tasks.make(config, CPU)
    torch.manual_seed(0)
    model = models.build(config, task.side)
    row = measure.layers(model, config, task)["layer1.weight"]["as_dense"]
    channels, positions = (1, task.side**2) if name == "torus/cnn" else (3, 16 * 16)
    assert row["weights"] == channels * task.side**2 * 2 * positions
    free = model.layer1.weight.numel()
    # As if padding had no border, each weight stands at every position.
    assert row["sparsity"] == pytest.approx(1 - free * positions / row["weights"])
    assert row["exact_sharing"] == pytest.approx(1 - free / (free * positions))
    assert row["free_sparsity"] == pytest.approx(1 - free / row["weights"])


def test_together_is_over_all_regularised_parameters():
    config = recipe("torus/mlp-r", "smoke", width=1)
    task = tasks.make(config, CPU)
    model = models.build(config, task.side)
    with torch.no_grad():
        model.layer1.weight.copy_(3 * model.layer1.weight.sign() * (model.layer1.weight.abs() > 0.05))
    everything = torch.cat([w.flatten() for w in measure.tensors(model, config).values()])
    found = measure.together(model, config, measure.layers(model, config, task))
    assert found["sparsity"] == pytest.approx(float((everything == 0).double().mean()))
    nonzero = everything[everything != 0]
    assert found["exact_sharing"] == pytest.approx(1 - nonzero.unique().numel() / nonzero.numel())
    assert found["sharing"] == pytest.approx(weight_sharing(everything))


@pytest.mark.parametrize("algorithm", ["imminent", "sequential", "bridge", "search"])
def test_a_prox_by_name_does_what_the_prox_does(algorithm):
    config = recipe("torus/mlp-r-l1", "smoke", alpha=0.1)
    prox = rules.method(config, 1)
    named = rules.method(config.with_settings({"algorithm": algorithm}), 1)
    assert rules.method(recipe("torus/mlp", "smoke"), 1) is None
    w = torch.randn(300)
    values = {"alpha": 0.1, "beta": 1e-4, "rho": 0.0}
    ours, theirs = w.clone(), w.clone()
    named.after_([ours], "joint", values, step=0.1)
    prox.after_([theirs], "joint", values, step=0.1)
    assert not torch.equal(ours, w)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_clock_counts_the_time_of_the_rules():
    config = recipe("torus/mlp-r", "smoke", width=1)
    clock = rules.Clock()
    found = rules.rules(config, clock)
    assert len(found) == 2
    for rule in found:
        assert rule.method.name == "prox"
        rule.method.after_([torch.randn(500)], "joint", {"alpha": 0.1, "beta": 0.0, "rho": 0.0}, step=0.1)
    assert clock.seconds > 0


# Tasks.


@settings(max_examples=30)
@given(
    count=st.integers(20, 300),
    share=st.floats(0.2, 1.0),
    holdout=st.floats(0.0, 0.8),
    seed=st.integers(0, 9),
)
def test_a_split_is_stratified_disjoint_and_nested(count, share, holdout, seed):
    labels = torch.arange(count) % 4
    train, valid = tasks.split(labels, share, holdout, seed)
    together = torch.cat([train, valid])
    assert together.unique().numel() == together.numel()
    for label in range(4):
        mine = (labels == label).nonzero()[:, 0]
        kept = int(len(mine) * share + 1e-9)
        assert sorted(x for x in together.tolist() if labels[x] == label) == mine[:kept].tolist()
        assert int((labels[valid] == label).sum()) == int(kept * holdout + 1e-9)
    again = tasks.split(labels, share, holdout, seed)
    assert torch.equal(train, again[0])
    larger = torch.cat(tasks.split(labels, 1.0, holdout, seed))
    assert set(together.tolist()) <= set(larger.tolist())


def test_a_holdout_is_a_part_of_the_training_set_and_the_test_set_is_not_there():
    config = recipe("torus/mlp", "smoke", holdout=0.25)
    task = tasks.make(config, CPU)
    whole = tasks.make(config.with_settings({"holdout": 0.0}), CPU)
    assert task.held_name == "valid"
    assert whole.held_name == "test"
    images = {image.numpy().tobytes() for image in whole.train}
    assert all(image.numpy().tobytes() in images for image in torch.cat([task.train, task.held]))
    assert len(task.train) + len(task.held) == len(whole.train)


def test_small_grey_images_stand_in_for_cifar():
    task = tasks.make(recipe("cifar10/mlp", "smoke", augment=False), CPU)
    images, labels = task.batch(torch.arange(5))
    assert images.shape == (5, 3, 32, 32)
    assert images.dtype == torch.float32
    assert torch.equal(images[:, 0], images[:, 2])
    assert torch.equal(images[:, :, ::4, ::4], images[:, :, 3::4, 3::4])
    assert len(labels) == 5
    seen = sum(len(part) for part, _ in task.held_out())
    assert seen == len(task.held_labels) == 360
