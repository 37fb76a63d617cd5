"""Which algorithm runs when none is named."""

from __future__ import annotations

import torch

from weightshare.collisions.bridge import bridge
from weightshare.collisions.chain import Chain, Pooled
from weightshare.collisions.imminent import Clustered, collisions_round
from weightshare.collisions.search import search


def auto(chain: Chain) -> Pooled:
    """The compiled bridge where the chain is on the CPU, the paper's advice on every other device."""
    return bridge(chain) if chain.y.device.type == "cpu" else guarded(chain)


def guarded(chain: Chain) -> Pooled:
    """Rounds of Imminent Collisions, and Search Collisions "as a backup in case it gets stuck".

    (Section "Practical remarks".) It is stuck when its rounds have visited as many particles as the
    search would, d log^2 d / 2; so the two together never cost more than twice the cheaper one. It is also
    stuck after 2 log^2 d rounds, however few particles are left: then the search of these is the cheaper one,
    and the depth is O(log^3 d) for every input.
    """
    state = Clustered.of(chain)
    longest = max(chain.longest, 2).bit_length()
    budget = chain.y.numel() * longest * longest / 2
    rounds = 0
    while budget > 0 and rounds < 2 * longest * longest:
        budget -= state.y.numel()
        state, done = collisions_round(state)
        if done:
            return Pooled(state.heads(chain.y.numel()), rounds)
        rounds += 1
    rest = search(_rest(chain, state))
    heads = state.heads(chain.y.numel())
    heads[state.first[~rest.heads]] = False
    return Pooled(heads, rounds + rest.rounds)


def _rest(chain: Chain, state: Clustered) -> Chain:
    """What is left after some rounds, as a chain of its own."""
    before = torch.zeros(chain.y.numel() + 1, dtype=torch.int64, device=chain.y.device)
    before[1:] = state.heads(chain.y.numel()).cumsum(0)
    return Chain(state.y, state.mass, before[chain.offsets])
