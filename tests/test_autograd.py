"""Derivatives, and life inside torch.compile, torch.func and operator checks."""

import pytest
import torch
from torch.library import opcheck

import weightshare as ws
from weightshare import ops


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def number(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("coupling", ["scaled", "decoupled"])
@pytest.mark.parametrize("dim", [None, 0, -1])
def test_gradients_of_the_prox_in_everything(coupling, dim):
    w = data(5, 7).requires_grad_()

    def f(w, alpha, beta, rho, step):
        return ws.prox(w, alpha, beta, rho, step=step, coupling=coupling, dim=dim)

    arguments = (w, number(0.4), number(0.15), number(0.3), number(0.9))
    assert torch.autograd.gradcheck(f, arguments)
    assert torch.autograd.gradgradcheck(f, arguments)


@pytest.mark.parametrize("increasing", [True, False])
def test_gradients_of_isotonic_regression(increasing):
    y = data(3, 8).requires_grad_()
    weights = (data(8, seed=1).abs() + 0.2).requires_grad_()

    def f(y, weights):
        return ws.isotonic_regression(y, weights, increasing)

    assert torch.autograd.gradcheck(f, (y, weights))
    assert torch.autograd.gradgradcheck(f, (y, weights))


def test_backward_is_the_mean_over_each_cluster():
    w = data(50).requires_grad_()
    p, clusters = ws.prox(w, 0.6, return_clusters=True)
    g = data(50, seed=1)
    p.backward(g)
    assert torch.allclose(w.grad, clusters.expand(clusters.means(g)), atol=1e-15)


def test_zeroed_weights_get_no_gradient():
    w = torch.tensor([0.1, -0.1, 3.0, 5.0], requires_grad=True)
    ws.prox(w, 0.0, 0.5).sum().backward()
    assert w.grad.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_the_result_is_bitwise_the_same_with_and_without_gradients():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        w = data(300).to(dtype)
        with_grad = ws.prox(w.clone().requires_grad_(), 0.2, 0.05, 0.3)
        assert with_grad.requires_grad
        assert torch.equal(with_grad.detach(), ws.prox(w, 0.2, 0.05, 0.3))
        with torch.no_grad():
            assert not ws.prox(w.clone().requires_grad_(), 0.2).requires_grad


def test_half_precision_gradients_keep_their_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        w = data(20).to(dtype).requires_grad_()
        alpha = torch.tensor(0.3, requires_grad=True)
        ws.prox(w, alpha).square().sum().backward()
        assert w.grad.dtype == dtype
        assert alpha.grad.dtype == torch.float32


def test_clusters_come_with_gradients_too():
    w = data(20).requires_grad_()
    p, clusters = ws.prox(w, 0.3, 0.2, return_clusters=True)
    _, plain = ws.prox(w.detach(), 0.3, 0.2, return_clusters=True)
    assert p.requires_grad
    assert torch.equal(clusters.starts, plain.starts)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck(needs_grad):
    w = data(3, 6).requires_grad_(needs_grad)
    coefficients = [torch.rand(3, dtype=torch.float64).requires_grad_(needs_grad) for _ in range(3)]
    opcheck(ops.prox_rows, (w, *coefficients, "auto"))
    weights = (data(3, 6, seed=1).abs() + 0.1).requires_grad_(needs_grad)
    opcheck(ops.isotonic_rows, (w, weights, "auto"))


def test_compiles_without_graph_breaks():
    def loss(w, alpha):
        p = ws.prox(w * 2, alpha, 0.01, 0.5, dim=-1)
        return p.square().sum() + ws.isotonic_regression(w).sum() + ws.penalty(w)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    a, b = data(4, 9).requires_grad_(), data(4, 9).requires_grad_()
    x, y = number(0.3), number(0.3)
    eager = loss(a, x)
    eager.backward()
    traced = compiled(b, y)
    traced.backward()
    assert torch.allclose(eager, traced)
    assert torch.allclose(a.grad, b.grad)
    assert torch.allclose(x.grad, y.grad)
    assert torch.allclose(compiled(data(4, 9, seed=3), number(0.1)), loss(data(4, 9, seed=3), number(0.1)))


def test_bad_numbers_are_seen_inside_compiled_code():
    compiled = torch.compile(lambda w, a: ws.prox(w, a), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="w must be finite"):
        compiled(torch.tensor([0.0, float("nan")]), torch.tensor(0.1))
    with pytest.raises(ValueError, match="alpha must be finite and >= 0, got -0.1"):
        compiled(torch.tensor([0.0, 1.0]), torch.tensor(-0.1))


def test_factors_out_of_range_are_seen_where_only_products_are():
    """With a negative rho, 1 - rho is positive; so is alpha times step if both are negative."""
    w = torch.tensor([0.0, 1.0])
    factors = torch.func.vmap(lambda r: ws.prox(w, 0.1, rho=r))
    compiled = torch.compile(lambda r: ws.prox(w, 0.1, rho=r), fullgraph=True, backend="aot_eager")
    for rho in (-0.5, 1.5):
        for call in (
            lambda r: factors(torch.tensor([0.5, r])),
            compiled,
            lambda r: compiled(torch.tensor(r)),
        ):
            with pytest.raises(ValueError, match=r"got nan; rho must be in \[0, 1\]"):
                call(rho)
    negative = torch.compile(lambda a: ws.prox(w, a, step=a), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="alpha must be finite.*step finite and >= 0"):
        negative(-0.5)


def test_torch_func_transforms():
    w = data(5, 8)
    assert torch.equal(torch.func.vmap(lambda r: ws.prox(r, 0.3, 0.1))(w), ws.prox(w, 0.3, 0.1, dim=1))
    path = torch.func.vmap(lambda a: ws.prox(w, a))(torch.tensor([0.1, 0.5]))
    assert torch.equal(path[1], ws.prox(w, torch.tensor(0.5)))
    columns = torch.func.vmap(lambda c: ws.prox(c, 0.3), in_dims=1, out_dims=1)(w)
    assert torch.equal(columns, ws.prox(w, 0.3, dim=0))
    assert torch.equal(torch.func.vmap(ws.isotonic_regression)(w), ws.isotonic_regression(w))
    jacobian = torch.func.jacrev(lambda r: ws.prox(r, 0.3))(w[0])
    assert torch.allclose(jacobian.sum(1), torch.ones(8, dtype=torch.float64))
    per_row = torch.func.vmap(torch.func.grad(lambda r: ws.prox(r, 0.3).square().sum()))(w)
    leaf = w.clone().requires_grad_()
    ws.prox(leaf, 0.3, dim=1).square().sum().backward()
    assert torch.allclose(per_row, leaf.grad)


def test_vmap_in_vmap_and_over_nothing():
    w = data(4, 6)
    some = torch.tensor([0.1, 0.5])
    both = torch.func.vmap(lambda r: torch.func.vmap(lambda a: ws.prox(r, a))(some))(w)
    assert torch.equal(both[2, 1], ws.prox(w[2], some[1]))
    for function in (lambda r: ws.prox(r, 0.1), lambda r: ws.prox(r[:, None], 0.1, dim=0)[:, 0]):
        assert torch.func.vmap(function)(w[:0]).shape == (0, 6)
    assert torch.func.vmap(ws.isotonic_regression)(w[:0]).shape == (0, 6)
    assert torch.func.vmap(ws.isotonic_regression)(w[:0], w[:0]).shape == (0, 6)


@pytest.mark.filterwarnings("ignore")
def test_traced_and_exported_graphs_compute():
    w = data(5)

    class Both(torch.nn.Module):
        def forward(self, w):
            return ws.prox(w, 0.3, 0.01) + ws.isotonic_regression(w)

    exported = torch.export.export(Both(), (w,)).module()
    traced = torch.jit.trace(Both(), w)
    for other in (w, data(5, seed=1)):
        assert torch.equal(exported(other), Both()(other))
        assert torch.equal(traced(other), Both()(other))


def test_the_default_device_does_not_matter():
    w = data(3, 8)
    leaf = w.clone().requires_grad_()
    with torch.device("meta"):
        for entry in ws.algorithms():
            p, clusters = ws.prox(w, 0.3, dim=1, algorithm=entry.name, return_clusters=True)
            assert {t.device.type for t in (p, clusters.ids, clusters.sizes, clusters.means(p))} == {"cpu"}
        assert ws.prox(w, 0.3, return_clusters=True)[1].ids.device.type == "cpu"
        assert ws.isotonic_regression(w, return_clusters=True)[1].ids.device.type == "cpu"
        ws.prox(leaf, 0.3).sum().backward()
        assert ws.particles(w, 0.3).positions(1.0).device.type == "cpu"
    assert leaf.grad.device.type == "cpu"


def test_subclasses_of_tensor_are_kept():
    class Named(torch.Tensor):
        pass

    w = data(6).as_subclass(Named)
    for wanted in (False, True):
        p = ws.prox(w, 0.3, return_clusters=True)[0] if wanted else ws.prox(w, 0.3)
        assert isinstance(p, Named)
        assert torch.equal(p.as_subclass(torch.Tensor), ws.prox(data(6), 0.3))
    for dtype in (torch.float64, torch.bfloat16):
        for function in (ws.isotonic_regression, ws.subgradient):
            assert isinstance(function(w.to(dtype)), Named)
            assert isinstance(function(w.to(dtype).view(2, 3)), Named)
    parameter = torch.nn.Parameter(data(6))
    for function in (lambda w: ws.prox(w, 0.3), ws.isotonic_regression, ws.subgradient):
        assert type(function(parameter)) is torch.Tensor


def test_clusters_inside_a_transform_say_why_not():
    w = data(2, 3)
    for function in (
        lambda r: ws.prox(r, 0.3, return_clusters=True)[0],
        lambda r: ws.prox(w, r.sum().abs(), return_clusters=True)[0],
        lambda r: ws.isotonic_regression(r, return_clusters=True)[0],
        lambda r: ws.isotonic_regression(w, r.exp(), return_clusters=True)[0],
    ):
        with pytest.raises(ValueError, match="outside of torch.compile and vmap"):
            torch.func.vmap(function)(w)


def test_compiles_with_dynamic_shapes_and_changing_numbers():
    compiled = torch.compile(
        lambda w, a: ws.prox(w, a, 0.01, dim=-1), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for k in range(12):
        w = data(3 + k % 3, 5 + k % 4, seed=k)
        assert torch.equal(compiled(w, 0.05 * k), ws.prox(w, 0.05 * k, 0.01, dim=-1))


def test_forward_mode_says_that_it_is_not_there():
    w = data(6)
    for function in (lambda t: ws.prox(t, 0.3), ws.isotonic_regression):
        with pytest.raises(RuntimeError, match="forward-mode derivatives are not defined"):
            torch.func.jvp(function, (w,), (w,))
        with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode"):
            function(torch.autograd.forward_ad.make_dual(w, w))
    with pytest.raises(RuntimeError, match="forward-mode derivatives are not defined"):
        torch.func.hessian(lambda t: ws.prox(t, 0.3).square().sum())(w)  # forward over reverse
    twice = torch.func.jacrev(torch.func.jacrev(lambda t: ws.prox(t, 0.3).square().sum()))(w)
    assert torch.allclose(twice.sum(), torch.tensor(12.0, dtype=torch.float64))
    w = torch.tensor([1.0, 1.0, 2.0])
    tangent = torch.tensor([1.0, 0.0, 0.0])
    _, derivative = torch.func.jvp(ws.penalty, (w,), (tangent,))
    assert float(derivative) == float(ws.subgradient(w) @ tangent)


def test_isotonic_gradients_with_weights_near_overflow():
    y = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    ws.isotonic_regression(y, torch.full((3,), 1e308, dtype=torch.float64)).backward(torch.ones(3).double())
    assert torch.allclose(y.grad, torch.ones(3, dtype=torch.float64))


def test_meta_tensors_have_shapes():
    w = torch.empty(4, 5, device="meta", dtype=torch.bfloat16)
    p = ws.prox(w, 0.1, 0.1, dim=0)
    assert (p.shape, p.dtype, p.device.type) == ((4, 5), torch.bfloat16, "meta")
