"""Bad input is refused with a message that names the argument, its value and the remedy."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import weightshare as ws

W = torch.tensor([1.0, 2.0, 4.0])


def call(**changes):
    arguments = {"w": W, "alpha": 0.1, **changes}
    return ws.prox(arguments.pop("w"), arguments.pop("alpha"), **arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"w": [1.0, 2.0]}, TypeError, r"w must be a torch.Tensor, got list; wrap it with torch.as_tensor"),
        ({"w": np.ones(3)}, TypeError, r"got ndarray"),
        ({"w": torch.ones(3, dtype=torch.int64)}, TypeError, r"got torch.int64; convert it"),
        ({"w": torch.ones(3, dtype=torch.bool)}, TypeError, r"got torch.bool"),
        ({"w": torch.ones(3, dtype=torch.complex64)}, TypeError, r"got torch.complex64"),
        ({"w": torch.ones(3).to_sparse()}, TypeError, r"w must be a dense tensor.*to_dense"),
        (
            {"w": torch.tensor([[1.0, float("nan")]])},
            ValueError,
            r"w must be finite, got nan at index \(0, 1\)",
        ),
        ({"w": torch.tensor([float("-inf"), 1.0])}, ValueError, r"got -inf at index 0 .*1 of 2"),
        ({"alpha": -1.0}, ValueError, r"alpha must be finite and >= 0, got -1.0"),
        ({"alpha": float("nan")}, ValueError, r"alpha must be finite and >= 0, got nan"),
        ({"alpha": float("inf")}, ValueError, r"alpha must be finite"),
        ({"alpha": torch.tensor([0.1]).to_sparse()}, ValueError, r"one real element, got a torch.sparse_coo"),
        ({"alpha": torch.tensor(0.1, device="meta")}, ValueError, r"coefficient is a meta tensor"),
        ({"alpha": np.bool_(True)}, TypeError, r"alpha must be a number, got .*True"),
        ({"alpha": torch.tensor(-2.0)}, ValueError, r"alpha must be finite and >= 0, got -2.0"),
        (
            {"alpha": torch.ones(2)},
            ValueError,
            r"alpha must be a number or a tensor with one real element.*\(2,\)",
        ),
        ({"alpha": "0.1x"}, TypeError, r"alpha must be a number, got '0.1x'"),
        ({"alpha": None}, TypeError, r"alpha must be a number, got None"),
        ({"alpha": True}, TypeError, r"alpha must be a number, got True \(bool\)"),
        ({"beta": -0.5}, ValueError, r"beta must be finite and >= 0, got -0.5"),
        ({"beta": float("nan")}, ValueError, r"beta must be"),
        ({"rho": 1.5}, ValueError, r"rho must be in \[0, 1\], got 1.5"),
        ({"rho": -0.1}, ValueError, r"rho must be in \[0, 1\], got -0.1"),
        ({"step": -1}, ValueError, r"step must be finite and >= 0, got -1.0"),
        ({"alpha": 1e308, "step": 1e10}, ValueError, r"step \* alpha overflows; lower step or alpha"),
        (
            {"alpha": torch.tensor(1e308, dtype=torch.float64), "step": 1e10},
            ValueError,
            r"step \* alpha overflows; lower step or alpha",
        ),
        (
            {"alpha": 1e10, "step": 1e300, "coupling": "decoupled"},
            ValueError,
            r"step \* alpha overflows; lower step or alpha",
        ),
        ({"coupling": "scale"}, ValueError, r"unknown coupling 'scale'.*did you mean 'scaled'"),
        ({"algorithm": "pav"}, ValueError, r"unknown algorithm 'pav': choose one of 'auto', 'sequential'"),
        ({"algorithm": "serach"}, ValueError, r"did you mean 'search'"),
        ({"dim": 1}, ValueError, r"dim is out of range: got 1 for a tensor of shape \(3,\)"),
        ({"dim": -2}, ValueError, r"dim is out of range: got -2"),
        ({"dim": 0.5}, TypeError, r"dim must be an int or None, got 0.5"),
        ({"dim": False}, TypeError, r"dim must be an int or None, got False"),
        (
            {"dim": 0, "w": torch.tensor(1.0)},
            ValueError,
            r"dim is out of range: got 0 for a tensor of shape \(\)",
        ),
    ],
)
def test_prox_refuses(changes, error, message):
    before = W.clone()
    with pytest.raises(error, match=message):
        call(**changes)
    assert torch.equal(W, before)


def test_what_is_not_finite_is_located_on_every_way_to_the_solver():
    w = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]])
    ways = (
        lambda w: ws.prox(w, 0.1, dim=0),
        lambda w: ws.prox(w, 0.1, dim=0, return_clusters=True),
        lambda w: ws.prox(w.clone().requires_grad_(), 0.1, dim=0),
        lambda w: ws.prox(w, torch.tensor(0.1, requires_grad=True), dim=0, algorithm="search"),
        torch.func.grad(lambda w: ws.prox(w, 0.1, dim=1).sum()),
        torch.func.vmap(lambda row: ws.prox(row, 0.1)),
    )
    for way in ways:
        with pytest.raises(ValueError, match=r"w must be finite, got nan at index \(1, 0\) \(1 of 4"):
            way(w)


def test_numbers_of_other_libraries_are_welcome():
    assert torch.equal(call(alpha=np.float32(0.5)), call(alpha=0.5))
    assert torch.equal(call(alpha=1), call(alpha=1.0))


def test_coefficients_are_multiplied_in_float64():
    """Their own dtype may be too narrow for the product."""
    for alpha, step in ((3e38, 10.0), (3e4, 10.0), (6e-8, 1e-3)):
        dtype = torch.float32 if alpha > 1e38 else torch.float16
        value = torch.tensor(alpha, dtype=dtype)
        w = W.to(torch.float64)
        for leaf in (value, value.clone().requires_grad_()):
            assert torch.equal(ws.prox(w, leaf, step=step), ws.prox(w, float(value), step=step))
    many = torch.tensor(100, dtype=torch.int8)
    w = 1000 * W
    assert torch.equal(ws.prox(w, many, step=many), ws.prox(w, 10_000.0))


@pytest.mark.parametrize("function", [ws.penalty, ws.subgradient, ws.isotonic_regression])
def test_other_functions_check_the_same_way(function):
    with pytest.raises(TypeError, match="must be a torch.Tensor"):
        function([1.0])
    with pytest.raises(TypeError, match=r"got torch.int32"):
        function(torch.ones(2, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"must be finite, got inf"):
        function(torch.tensor([1.0, float("inf")]))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    nested = torch.nested.nested_tensor([W, W[:2]], layout=layout)
    for function in (lambda w: ws.prox(w, 0.1), ws.penalty, ws.isotonic_regression):
        with pytest.raises(TypeError, match=r"must be a dense tensor, got a nested one; use \w\.unbind\(\)"):
            function(nested)


def test_sharded_tensors_are_sent_to_where_they_are_served():
    class Sharded(torch.Tensor):
        device_mesh = None  # what tells a DTensor

    w = W.as_subclass(Sharded)
    for function in (lambda w: ws.prox(w, 0.1), lambda w: ws.prox_(w, 0.1), ws.penalty, ws.subgradient):
        with pytest.raises(TypeError, match="use weightshare.distributed.dtensor_prox_"):
            function(w)
    for function in (ws.isotonic_regression, lambda w: ws.particles(w, 0.1)):
        with pytest.raises(TypeError, match="a DTensor is in pieces"):
            function(w)


def test_tensors_that_wrap_others_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    w = TwoTensor(W.clone(), W.clone())
    for function in (
        lambda w: ws.prox(w, 0.1),
        lambda w: ws.prox_(w, 0.1),
        ws.penalty,
        ws.isotonic_regression,
    ):
        with pytest.raises(TypeError, match="a TwoTensor wraps other tensors.*unwrap it"):
            function(w)


def test_isotonic_regression_wants_a_direction():
    for increasing in (None, "no", 1):
        with pytest.raises(TypeError, match="increasing must be True or False, got"):
            ws.isotonic_regression(W, increasing=increasing)
    assert torch.equal(ws.isotonic_regression(W, increasing=np.bool_(True)), W)


def test_clusters_refuse():
    _, clusters = ws.prox(W, 0.1, return_clusters=True)
    with pytest.raises(TypeError, match="values must be a torch.Tensor, got list"):
        clusters.means([1.0, 2.0, 4.0])
    with pytest.raises(TypeError, match="values must have dtype .* got torch.int64"):
        clusters.means(torch.tensor([1, 2, 4]))
    with pytest.raises(TypeError, match="per_cluster must be a torch.Tensor, got list"):
        clusters.expand([1.0, 2.0, 4.0])
    with pytest.raises(TypeError, match="row must be an int, got 0.5"):
        clusters.row(0.5)


def test_trajectories_refuse():
    motion = ws.particles(W, 1.0)
    for weight in (3, -1):
        with pytest.raises(IndexError, match=f"weight must be one of 0 to 2, got {weight}"):
            motion.path(weight)
    with pytest.raises(TypeError, match="weight must be an int, got 0.5"):
        motion.path(0.5)
    with pytest.raises(TypeError, match="time must be a number, got 'now'"):
        motion.positions("now")


def test_particles_refuse():
    with pytest.raises(ValueError, match="alpha must be finite and >= 0, got -1"):
        ws.particles(W, -1.0)
    with pytest.raises(ValueError, match="until must be"):
        ws.particles(W, 1.0, until=float("nan"))
    with pytest.raises(ValueError, match="particles needs concrete numbers: call it outside of vmap"):
        torch.func.vmap(lambda w: ws.particles(w, 1.0).positions(1.0))(torch.stack([W, W]))
    with pytest.raises(ValueError, match="not on meta or fake tensors"):
        ws.particles(W.to("meta"), 1.0)
    with FakeTensorMode(), pytest.raises(ValueError, match="not on meta or fake tensors"):
        ws.particles(torch.ones(3), 1.0)
