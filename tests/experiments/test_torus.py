"""The torus: what the variants are to each other, and which networks notice."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightshare.experiments import measure, models, tasks, torus, train
from weightshare.experiments.data import Dataset, load
from weightshare.experiments.recipes import recipe

CPU = torch.device("cpu")


def small(count=24, side=6, seed=0):
    """A dataset of noise, where no two pixels are alike."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return Dataset("noise", images, labels, images.flip(0), labels.flip(0), (0.5,), (0.3,))


@settings(max_examples=30)
@given(seed=st.integers(0, 99), side=st.integers(1, 9), rows=st.integers(-9, 20), columns=st.integers(-9, 20))
def test_roll_is_torch_roll_for_each_image(seed, side, rows, columns):
    x = torch.randn(2, 1, side, side, generator=torch.Generator().manual_seed(seed))
    rolled = torus.roll(x, torch.tensor([[rows, columns], [0, 0]]))
    assert torch.equal(rolled[0], x[0].roll((rows, columns), dims=(1, 2)))
    assert torch.equal(rolled[1], x[1])


@pytest.mark.parametrize(
    "permutation", [None, torch.randperm(25, generator=torch.Generator().manual_seed(3))]
)
def test_translations_are_a_group_of_all_shifts(permutation):
    group = torus.translations(5, permutation)
    assert torch.equal(group[0], torch.arange(25))
    assert len({tuple(t.tolist()) for t in group}) == 25
    members = {tuple(t.tolist()) for t in group}
    for a in group[::7]:
        for b in group[::6]:
            assert tuple(a[b].tolist()) in members


def test_no_symmetry_is_a_reordering_of_plain_and_its_group_moves_the_plain_image():
    data = small()
    plain, shuffled = torus.make(data, "plain", 4), torus.make(data, "no-symmetry", 4)
    p = shuffled.permutation
    assert torch.equal(shuffled.train, torus.permute(plain.train, p))
    assert torch.equal(shuffled.test, torus.permute(plain.test, p))
    for ours, theirs in zip(torus.translations(6, p), torus.translations(6)):
        moved = torus.permute(plain.test, theirs)
        assert torch.equal(torus.permute(shuffled.test, ours), torus.permute(moved, p))


def gram(images):
    return images.flatten(1).double() @ images.flatten(1).double().T


def test_no_locality_is_no_reordering_of_plain():
    # Any one reordering of pixels, and any rotation, keeps the inner products between images.
    data = small()
    plain = gram(torus.make(data, "plain", 4).train)
    assert torch.allclose(gram(torus.make(data, "no-symmetry", 4).train), plain)
    apart = (gram(torus.make(data, "no-locality", 4).train) - plain).abs()
    assert apart.diagonal().max() < 1e-9  # each image by itself is reordered
    assert apart.max() > 1.0  # but not all in the same way


def test_another_roll_is_a_translation_except_without_symmetry():
    data, translations = small(4), torus.translations(6)
    normal = torus.shrink(data.train_images, 0.5, 0.3)
    p = torus.make(data, "no-symmetry", 0).permutation
    again = torch.tensor([[1, 2]] * 4)

    def place(variant, shifts):
        moved = torus.permute(normal, p) if variant == "no-locality" else normal
        moved = torus.roll(moved, shifts)
        return torus.permute(moved, p) if variant == "no-symmetry" else moved

    for variant, symmetric in (("plain", True), ("no-locality", True), ("no-symmetry", False)):
        image, other = place(variant, torch.zeros(4, 2, dtype=torch.long)), place(variant, again)
        assert symmetric == any(torch.equal(torus.permute(image, t), other) for t in translations)
        group = torus.translations(6, p if variant == "no-symmetry" else None)
        assert any(torch.equal(torus.permute(image, t), other) for t in group)


def test_a_training_image_has_the_same_shift_whichever_others_are_used():
    data = small()
    everything = torus.make(data, "plain", 4).train
    chosen = torch.tensor([5, 2, 11])
    assert torch.equal(torus.make(data, "plain", 4, chosen).train, everything[chosen])


def test_seeds_differ_and_the_test_set_is_rolled_alike_in_all_of_them():
    data = small()
    a, b = torus.make(data, "plain", 0), torus.make(data, "plain", 1)
    assert not torch.equal(a.train, b.train)
    assert torch.equal(a.test, b.test)


def test_large_images_are_averaged_to_14():
    white = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    assert torus.shrink(white, 0.0, 1.0).shape == (1, 1, 14, 14)
    assert torch.equal(torus.shrink(white, 0.5, 0.5), torch.ones(1, 1, 14, 14))
    ramp = torch.arange(784).reshape(1, 1, 28, 28).remainder(256).to(torch.uint8)
    means = ramp.float().reshape(14, 2, 14, 2).mean(dim=(1, 3)) / 255
    assert torch.allclose(torus.shrink(ramp, 0.0, 1.0)[0, 0], means)


@settings(max_examples=10)
@given(seed=st.integers(0, 50), batch=st.integers(1, 9))
def test_asymmetry_is_that_of_all_predictions(seed, batch):
    torch.manual_seed(seed)
    images, group = torch.randn(7, 1, 4, 4), torus.translations(4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    predict = lambda x: model(x).argmax(1)
    everything = torch.stack([predict(torus.permute(images, t)) for t in group])
    wanted = (everything != everything[0]).any(0)
    seen = []
    found = torus.asymmetric(predict, images, group, batch=batch, progress=lambda *at: seen.append(at))
    assert torch.equal(found, wanted)
    assert torus.asymmetry(predict, images, group, batch=batch) == int(wanted.sum()) / 7
    assert seen[-1] == (16, 16)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def cnn_asymmetry(variant):
    """Of a network whose predictions vary, on some of the test images."""
    config = recipe("torus/cnn", "smoke", variant=variant, width=3)
    task = tasks.make(config, CPU)
    torch.manual_seed(1)
    model = models.build(config, task.side)
    for _ in range(20):  # for running statistics that are those of the data
        model(task.train[torch.randint(len(task.train), (64,))])
    nn.init.normal_(model.output.weight)
    with torch.no_grad():  # no class ahead of the others
        model.output.bias -= model.eval()(task.held).mean(dim=0)
    return measure.prediction_asymmetry(model, dataclasses.replace(task, held=task.held[:40]))


@pytest.mark.parametrize("variant", ["plain", "no-locality"])
def test_a_cnn_on_the_torus_has_asymmetry_exactly_zero(variant):
    assert cnn_asymmetry(variant) == 0.0


def test_a_cnn_without_symmetry_is_asymmetric():
    assert cnn_asymmetry("no-symmetry") > 0.1


# An MLP's results on no-symmetry are those on plain, with the columns of its first layer reordered. Sums over
# pixels are then taken in another order, so the proof is in arithmetic where that order does not matter:
# factors are rounded so coarsely that every sum of products is exact in float64.


def grid(x, places):
    return (x.double() * 2.0**places).round() / 2.0**places


class ExactProduct(torch.autograd.Function):
    """x w' + b, and its gradients, without rounding but for that of the factors."""

    @staticmethod
    def forward(ctx, x, w, b):
        x, w = grid(x, 10), grid(w, 24)
        ctx.save_for_backward(x)
        return (x @ w.T + grid(b, 24)).float()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient = grid(gradient, 30)
        return None, (gradient.T @ x).float(), gradient.sum(0).float()


class ExactLinear(nn.Linear):
    def forward(self, x):
        return ExactProduct.apply(x, self.weight, self.bias)


def run_with_first_layer(monkeypatch, tmp_path, config, columns):
    """A run whose first layer is exact, and begins with its columns reordered."""

    def build(config, side):
        model = models.TorusMLP(side, config.width, config.dropout)
        exact = ExactLinear(side * side, config.width * side * side)
        exact.load_state_dict(model.layer1.state_dict())
        exact.weight.data = exact.weight.data[:, columns].clone()
        model.layer1 = exact
        return model

    with monkeypatch.context() as patched:
        patched.setattr(train.models, "build", build)
        return train.run(config, tmp_path, tensorboard=False)


def without(found, *keys):
    """Without these keys, at any depth."""
    if not isinstance(found, dict):
        return found
    return {k: without(v, *keys) for k, v in found.items() if k not in keys}


TIME = ("seconds", "prox_seconds", "seconds_per_epoch", "prox_seconds_per_epoch")


@pytest.mark.parametrize("name", ["torus/mlp", "torus/mlp-l1", "torus/mlp-r"])
def test_mlp_results_without_symmetry_are_the_plain_ones_bit_for_bit(monkeypatch, tmp_path, name):
    changed = {"epochs": 2, "lr": 0.02, **({"alpha": 0.05} if name == "torus/mlp-r" else {})}
    plain_config = recipe(name, "smoke", seed=3, **changed)
    config = plain_config.with_settings({"variant": "no-symmetry"})
    columns = torus.make(load("digits"), "no-symmetry", 3).permutation
    plain = run_with_first_layer(monkeypatch, tmp_path, plain_config, torch.arange(64))
    other = run_with_first_layer(monkeypatch, tmp_path, config, columns)

    assert [without(row, *TIME) for row in other.metrics()] == [
        without(row, *TIME) for row in plain.metrics()
    ]
    # The score of filters is a matter of neighbours, which the reordering takes apart.
    ours, theirs = (without(run.summary()["metrics"], *TIME, "filter_score") for run in (other, plain))
    assert ours == theirs
    assert ours["asymmetry"] > 0
    if name == "torus/mlp-r":
        layer = ours["layers"]["layer1.weight"]
        assert layer["distinct"] < layer["weights"] / 2
    before, after = torch.load(plain.weights), torch.load(other.weights)
    assert torch.equal(after.pop("layer1.weight"), before.pop("layer1.weight")[:, columns])
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_mlp_results_without_locality_are_others(monkeypatch, tmp_path):
    # The same network, in the same arithmetic; whichever columns it begins with, the images differ.
    config = recipe("torus/mlp", "smoke", seed=3, epochs=1, lr=0.02)
    columns = torus.make(load("digits"), "no-symmetry", 3).permutation
    plain = run_with_first_layer(monkeypatch, tmp_path, config, torch.arange(64))
    other = run_with_first_layer(
        monkeypatch, tmp_path, config.with_settings({"variant": "no-locality"}), columns
    )
    assert plain.metrics()[0]["loss"] != other.metrics()[0]["loss"]
