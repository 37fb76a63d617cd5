"""The algorithms on chains: rows, masses, rounds, and the theorems that they rest on."""

from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import exact
import weightshare as ws
from cases import staircase
from weightshare.collisions import TABLE, Chain
from weightshare.collisions.auto import guarded
from weightshare.collisions.bridge import WIDEST_MASSES, bridge
from weightshare.collisions.end import rightmost_collision

small = st.integers(-6, 6).map(float)
lines = st.lists(st.lists(st.tuples(small, st.integers(1, 5)), max_size=14), min_size=1, max_size=5)


def chain_of(rows):
    sizes = torch.tensor([0, *accumulate(len(row) for row in rows)])
    y = torch.tensor([a for row in rows for a, _ in row], dtype=torch.float64)
    mass = torch.tensor([m for row in rows for _, m in row], dtype=torch.float64)
    return Chain(y, mass, sizes)


def assert_solves(heads, rows):
    """The mean over every cluster is exactly the solution at each of its members.

    (Clusters that touch without overlapping may be reported as one or as two; the values are the same.)
    """
    heads = heads.tolist()
    start = 0
    for row in rows:
        x = exact.isotonic([Fraction(a) for a, _ in row], [Fraction(m) for _, m in row])
        mine = heads[start : start + len(row)]
        start += len(row)
        assert not row or mine[0]
        bounds = [i for i, head in enumerate(mine) if head] + [len(row)]
        for i, j in pairwise(bounds):
            mean = sum(Fraction(a) * m for a, m in row[i:j]) / sum(m for _, m in row[i:j])
            assert x[i:j] == [mean] * (j - i)


@pytest.mark.parametrize("algorithm", TABLE)
@given(rows=lines)
def test_ragged_rows_with_masses(algorithm, rows):
    chain = chain_of(rows)
    before = chain.y.clone(), chain.mass.clone()
    assert_solves(TABLE[algorithm].solve(chain).heads, rows)
    assert torch.equal(chain.y, before[0])
    assert torch.equal(chain.mass, before[1])


@pytest.mark.parametrize("tile", [1, 2, 3, 8])
@given(rows=lines)
def test_bridges_at_every_level(tile, rows):
    assert_solves(bridge(chain_of(rows), tile=tile).heads, rows)


@pytest.mark.parametrize("tile", [1, 5, 64, 1024])
def test_bridges_on_long_lines(tile):
    generator = torch.Generator().manual_seed(0)
    for y in (
        torch.randn(5000, generator=generator, dtype=torch.float64),
        torch.randn(5000, generator=generator, dtype=torch.float64).cumsum(0),
        torch.linspace(0, 1, 5000, dtype=torch.float64),
        torch.linspace(1, 0, 5000, dtype=torch.float64),
        staircase(5000),
    ):
        chain = Chain.single(y)
        assert torch.equal(bridge(chain, tile=tile).heads, TABLE["sequential"].solve(chain).heads)


def test_bridge_with_masses_too_wide_for_prefix_sums():
    y = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0] * 300, dtype=torch.float64)
    mass = torch.logspace(0, -40, 1500, dtype=torch.float64)
    assert float(mass.sum() / mass.min()) > WIDEST_MASSES
    chain = Chain(y, mass, torch.tensor([0, 1500]))
    assert torch.equal(bridge(chain).heads, TABLE["sequential"].solve(chain).heads)


@pytest.mark.parametrize("d", [64, 257])
def test_worst_case_takes_imminent_half_d_rounds_and_search_few(d):
    """Section 4.1: the staircase needs d/2 rounds; section 4.3: search never needs more than log^2 d."""
    chain = Chain.single(staircase(d, eps=1e-6))
    assert int(TABLE["imminent"].solve(chain).heads.sum()) == 1
    assert TABLE["imminent"].solve(chain).rounds >= d // 2 - 2
    log = d.bit_length()
    assert TABLE["search"].solve(chain).rounds <= (log + 1) ** 2


def test_guarded_switches_to_search_when_imminent_is_stuck():
    d = 4_000
    chain = Chain(
        torch.cat([staircase(d, eps=1e-8), torch.tensor([5.0, 4.0]), staircase(d, eps=1e-8)]),
        torch.ones(2 * d + 2, dtype=torch.float64),
        torch.tensor([0, d, d, d + 2, 2 * d + 2]),
    )
    pooled = guarded(chain)
    assert pooled.rounds < d // 2
    assert pooled.heads.nonzero().squeeze(1).tolist() == [0, d, d + 2]


def test_guarded_takes_few_rounds_when_few_particles_are_left():
    """Most merge in the first round; the others stand in line and cost little, but one round each."""
    heavy, line = 100_000, 1_500
    y = torch.cat(
        [torch.linspace(1, 0, heavy, dtype=torch.float64), 1e-6 * torch.arange(line, dtype=torch.float64)]
    )
    chain = Chain.single(y)
    assert TABLE["imminent"].solve(chain).rounds >= line
    pooled = guarded(chain)
    assert pooled.rounds <= 3 * y.numel().bit_length() ** 2
    assert pooled.heads.nonzero().squeeze(1).tolist() == [0]


def test_end_takes_one_round_for_each_cluster():
    chain = Chain.single(torch.tensor([3.0, 1.0, 2.0, 7.0, 9.0, 8.0, 20.0]))
    pooled = TABLE["end"].solve(chain)
    assert pooled.rounds == int(pooled.heads.sum()) == 4


@given(st.lists(small, min_size=1, max_size=12))
def test_rightmost_collision_of_the_first_particle(values):
    """Proposition 4.1: particle 1 collides with exactly the particles up to argmin_j avg(y_{1:j})."""
    y = [Fraction(a) for a in values]
    x = exact.isotonic(y)
    averages = [s / (j + 1) for j, s in enumerate(accumulate(y))]
    last = max(j for j, a in enumerate(averages) if a == min(averages))
    assert [a == x[0] for a in x].count(True) == last + 1
    row = torch.tensor([values], dtype=torch.float64)
    assert int(rightmost_collision(row, torch.ones_like(row), torch.tensor([0]))) == last


@given(st.lists(small, min_size=2, max_size=12), st.data())
def test_neighbour_collision(values, data):
    """The corollary: i and i + 1 collide iff max_j avg(y_{j:i}) >= min_j avg(y_{i+1:j})."""
    y = [Fraction(a) for a in values]
    x = ws.isotonic_regression(torch.tensor(values, dtype=torch.float64))
    i = data.draw(st.integers(0, len(y) - 2))
    left = max(sum(y[j : i + 1], Fraction(0)) / (i + 1 - j) for j in range(i + 1))
    right = min(sum(y[i + 1 : j], Fraction(0)) / (j - i - 1) for j in range(i + 2, len(y) + 1))
    assert (float(x[i + 1] - x[i]) <= 1e-14) == (left >= right)


@given(st.lists(small, min_size=1, max_size=6), st.lists(small, min_size=1, max_size=6))
def test_search_theorem(a, b):
    """Theorem 4.2, on two solved halves: rmc(i) > k exactly for the particles that take part."""
    # Multiples of 60: means of up to six of them are integers, and float64 decides exactly.
    left = exact.isotonic([60 * Fraction(v) for v in a])
    right = exact.isotonic([60 * Fraction(v) for v in b])
    k = len(left)
    y = left + right
    x = exact.isotonic(y)
    if x[k - 1] != x[k]:
        return
    row = torch.tensor([[float(v) for v in y]], dtype=torch.float64)
    for i in range(k):
        rmc = int(rightmost_collision(row, torch.ones_like(row), torch.tensor([i])))
        if x[i] == x[k]:
            assert rmc >= k
        else:  # by itself, but for equals that the half has already merged
            assert y[rmc] == y[i]
            assert rmc < k


def test_the_table_prints_and_names_what_each_costs():
    table = ws.algorithms()
    text = repr(table)
    for entry in table:
        assert entry.name in text
        assert entry.work in text
    assert {"auto", "sequential", "imminent-v1", "imminent", "end", "search", "bridge"} <= {
        e.name for e in table
    }
