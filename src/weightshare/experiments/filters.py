"""The rows of a first layer as images: which are translations of one another, how like a convolution it is.

A convolution, written as a matrix, has the same filter in many rows, each time at another place. The paper
looked for such rows by eye; here every pair of rows is compared at every translation, by normalised
cross-correlation.

*Contrast.* Of each row (and channel) its median is subtracted: in a sparse or tied row that is exactly the
background, and what is left is the filter. Rows without contrast are not counted. Where a layer has more
than ``rows`` rows, those with the most nonzero contrasts are taken (ties at random, with a fixed seed), as
the paper does for its figures.

*Correlation.* On the torus (``wrap``) translations are circular. With padding, what leaves the image is lost,
as it is for the filters of a convolution at the border; so two rows are compared on the overlap of their
frames, where it holds at least half of the energy of both.

*Explained.* The mean over rows of rho^2, with rho the largest positive correlation with another row at any
translation but zero: how much of a row's energy is a (scaled) copy of another row from elsewhere.

*Chance.* The same, once the pixels of every row have been shuffled, each row by itself: what the number of
rows, and how sparse they are, bring about without any common shape. Filters of one pixel match anywhere, and
so do shuffled ones: that is not evidence of a convolution.

*Score.* ``(explained - chance) / (1 - chance)``, not below 0: 1 for a convolution, about 0 for random weights
or for a convolution whose pixels have been permuted, unless the permutation is given as ``order``.

*Locality* is a number of its own, since a convolution on permuted pixels is one too: 1 minus the mean squared
distance of two weights of a row, drawn by energy, over that of two random pixels; 1 for a single pixel, 0 for
energy all over the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightshare import checks

Shape = tuple[int, int, int]
"""Channels, height, width."""

ROWS = 256
"""How many rows of a layer are compared; the paper looked at as many."""

_BLOCK = 1 << 25
"""Correlations held at a time."""

_OVERLAP = 0.5
"""Share of the energy of both rows that has to lie in the overlap of their frames."""


@dataclass(frozen=True)
class Likeness:
    """How much like a convolution a layer is. All but the last two are in [0, 1]."""

    score: float
    explained: float
    chance: float
    locality: float
    rows: int
    """Rows that were compared."""
    alive: int
    """Rows of the layer that have any contrast."""


@dataclass(frozen=True)
class Group:
    """Rows that are translations of one another."""

    rows: list[int]
    """Their numbers in the layer; first the one that is most like all others."""
    shifts: list[tuple[int, int]]
    """By how many pixels (down, right) each lies from the first."""
    correlation: float
    """Mean correlation of the others with the first."""


def images(weight: Tensor, shape: Shape, order: Tensor | None = None) -> Tensor:
    """The rows of a weight matrix as images, (rows, channels, height, width).

    ``order``: which pixel of the image each input is, where the network saw its pixels permuted.

    >>> images(torch.arange(8.0).view(2, 4), (1, 2, 2), torch.tensor([3, 2, 1, 0]))[0, 0]
    tensor([[3., 2.],
            [1., 0.]])
    """
    checks.float_tensor("weight", weight)
    channels, height, width = shape
    if weight.dim() != 2 or weight.shape[1] != channels * height * width:
        raise ValueError(
            f"weight must have shape (rows, {channels * height * width}) for images of "
            f"{channels} x {height} x {width}, got {tuple(weight.shape)}"
        )
    seen = weight.detach().to("cpu", torch.float32).view(-1, channels, height * width)
    if order is None:
        return seen.view(-1, *shape)
    if sorted(order.tolist()) != list(range(height * width)):
        raise ValueError(f"order must be a permutation of the {height * width} pixels, got {order.tolist()}")
    straight = torch.empty_like(seen)
    straight[:, :, order.cpu()] = seen
    return straight.view(-1, *shape)


def as_dense(layer: nn.Module, shape: Shape) -> Tensor:
    """The matrix of a linear map of images (a convolution, say) on flattened ones, without its bias.

    >>> as_dense(torch.nn.Conv2d(1, 32, 3, padding=1, padding_mode="circular"), (1, 14, 14)).shape
    torch.Size([6272, 196])
    """
    size = shape[0] * shape[1] * shape[2]
    parameter = next(layer.parameters())
    unit = torch.eye(size, dtype=parameter.dtype, device=parameter.device)
    with torch.no_grad():
        bias = layer(torch.zeros_like(unit[:1]).view(1, *shape))
        columns = [(layer(part.view(-1, *shape)) - bias).flatten(1) for part in torch.split(unit, 256)]
    return torch.cat(columns).T.contiguous()


def contrast(pictures: Tensor) -> Tensor:
    """Each image less its median in each channel: the filter without its background."""
    flat = pictures.flatten(2)
    return (flat - flat.median(2, keepdim=True).values).view(pictures.shape)


def most_nonzeros(pictures: Tensor, rows: int, seed: int = 0) -> Tensor:
    """The numbers of the ``rows`` images with the most nonzero contrasts, most first; ties at random."""
    counts = contrast(pictures).flatten(1).count_nonzero(1)
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(len(counts), generator=generator)
    mixed = mixed[counts[mixed] > 0]
    return mixed[counts[mixed].argsort(descending=True, stable=True)][:rows]


@dataclass(frozen=True)
class _Correlations:
    """Of each pair of images: the largest correlation at a shift other than zero, that shift, and at zero."""

    moved: Tensor
    shift: Tensor
    still: Tensor


def score(
    weight: Tensor, shape: Shape, *, wrap: bool, order: Tensor | None = None, rows: int = ROWS
) -> float:
    """:func:`likeness` in one number: 1 for a convolution, about 0 for random weights."""
    return likeness(weight, shape, wrap=wrap, order=order, rows=rows).score


def likeness(
    weight: Tensor,
    shape: Shape,
    *,
    wrap: bool,
    order: Tensor | None = None,
    rows: int = ROWS,
    seed: int = 0,
) -> Likeness:
    """How much like a convolution a layer is; the module's page says how it is measured.

    Args:
        weight: the matrix, a row for each unit.
        shape: channels, height and width of its input.
        wrap: whether translations are circular.
        order: see :func:`images`.
        rows: at most so many rows are compared.
        seed: of the sample and of the shuffle.

    >>> _ = torch.manual_seed(0)
    >>> convolution = torch.nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")
    >>> round(score(as_dense(convolution, (1, 8, 8)), (1, 8, 8), wrap=True), 3)
    1.0
    >>> score(torch.randn(256, 64), (1, 8, 8), wrap=True) < 0.05
    True
    """
    pictures = images(weight, shape, order)
    alive = int((contrast(pictures).flatten(1) != 0).any(1).sum())
    chosen = contrast(pictures[most_nonzeros(pictures, rows, seed)])
    if len(chosen) < 2:
        return Likeness(0.0, 0.0, 0.0, _locality(chosen, wrap), len(chosen), alive)
    generator = torch.Generator().manual_seed(seed)
    explained = _explained(_correlate(chosen, wrap))
    chance = _explained(_correlate(_shuffled(chosen, generator), wrap))
    left = 1.0 - chance
    found = max(explained - chance, 0.0) / left if left > 1e-6 else 0.0
    return Likeness(found, explained, chance, _locality(chosen, wrap), len(chosen), alive)


def groups(
    weight: Tensor,
    shape: Shape,
    *,
    wrap: bool,
    order: Tensor | None = None,
    threshold: float = 0.8,
    rows: int = ROWS,
    seed: int = 0,
) -> list[Group]:
    """Groups of rows that are translations of one another, the largest first.

    Agglomerative clustering with average linkage on the correlations (at any shift, zero included): two
    groups become one while their rows correlate by ``threshold`` on average. A group whose rows all lie at
    one place shows no translation, and is left out.

    >>> filters = torch.zeros(3, 16)
    >>> filters[0, [0, 1]], filters[1, [6, 7]], filters[2, 3] = 1.0, 2.0, 1.0
    >>> groups(filters, (1, 4, 4), wrap=True)
    [Group(rows=[0, 1], shifts=[(0, 0), (1, -2)], correlation=1.0)]
    """
    if not -1.0 < threshold <= 1.0:
        raise ValueError(f"threshold must be in (-1, 1], got {threshold}")
    from scipy.cluster.hierarchy import fcluster, linkage

    pictures = images(weight, shape, order)
    numbers = most_nonzeros(pictures, rows, seed)
    if len(numbers) < 2:
        return []
    pairs = _correlate(contrast(pictures[numbers]), wrap)
    best = torch.maximum(pairs.moved, pairs.still).double()
    upper = torch.triu_indices(len(best), len(best), 1)
    distance = (1.0 - best[upper[0], upper[1]]).clamp(min=0.0)
    labels = torch.from_numpy(fcluster(linkage(distance.numpy(), "average"), 1.0 - threshold, "distance"))
    found = [
        _group((labels == label).nonzero().squeeze(1), numbers, pairs)
        for label in range(1, int(labels.max()) + 1)
    ]
    return sorted((g for g in found if len(set(g.shifts)) > 1), key=lambda g: (-len(g.rows), -g.correlation))


def _group(members: Tensor, numbers: Tensor, pairs: _Correlations) -> Group:
    """One group around the member that is most like the others."""
    moved, still = pairs.moved[members][:, members], pairs.still[members][:, members]
    best = torch.maximum(moved, still)
    best.fill_diagonal_(0.0)
    centre = int(best.sum(1).argmax())
    ranked = best[:, centre].index_fill(0, torch.tensor(centre), torch.inf).argsort(descending=True)
    rows, shifts = [], []
    for member in ranked.tolist():
        a, b = int(members[member]), int(members[centre])
        here = member == centre or bool(pairs.still[a, b] >= pairs.moved[a, b])
        down, right = (0, 0) if here else pairs.shift[a, b].tolist()
        rows.append(int(numbers[a]))
        shifts.append((int(down), int(right)))
    mean = float(best[ranked[1:], centre].mean()) if len(rows) > 1 else 1.0
    return Group(rows, shifts, round(mean, 6))


def _explained(pairs: _Correlations) -> float:
    """The mean over rows of the largest squared correlation with another row from elsewhere."""
    moved = pairs.moved.clone().fill_diagonal_(0.0)
    return float(moved.amax(1).clamp(0.0, 1.0).square().double().mean())


def _shuffled(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """The pixels of every image in an order of its own; the channels of a pixel stay together."""
    flat = pictures.flatten(2)
    order = torch.rand(flat.shape[0], 1, flat.shape[2], generator=generator).argsort(2)
    return flat.gather(2, order.expand_as(flat)).view(pictures.shape)


def _correlate(pictures: Tensor, wrap: bool) -> _Correlations:
    """Correlate every pair of images (none of them zero) at every translation, block by block.

    The correlation at shift s is sum_x a(x + s) b(x): a is b moved by s.
    """
    rows, _, height, width = pictures.shape
    unit = pictures / pictures.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    frame = (height, width) if wrap else (2 * height, 2 * width)
    spectrum = torch.fft.rfft2(unit, s=frame)
    ahead, behind = _scales(unit, frame, wrap)
    moved, still = torch.empty(rows, rows), torch.empty(rows, rows)
    place = torch.empty(rows, rows, dtype=torch.int64)
    step = max(1, _BLOCK // (rows * frame[0] * frame[1]))
    for i in range(0, rows, step):
        one = slice(i, i + step)
        product = spectrum.new_zeros(len(unit[one]), rows - i, *spectrum.shape[2:])
        for channel in range(pictures.shape[1]):
            product.addcmul_(spectrum[one, None, channel], spectrum[None, i:, channel].conj())
        rho = torch.fft.irfft2(product, s=frame)
        rho.mul_(ahead[one, None]).mul_(behind[None, i:])
        still[one, i:] = rho[..., 0, 0]
        rho[..., 0, 0] = 0.0
        moved[one, i:], place[one, i:] = rho.flatten(2).max(2)
    shift = torch.stack([_centred(place // frame[1], frame[0]), _centred(place % frame[1], frame[1])], 2)
    return _Correlations(_mirrored(moved), _mirrored(shift, -1), _mirrored(still))


def _scales(unit: Tensor, frame: tuple[int, int], wrap: bool) -> tuple[Tensor, Tensor]:
    """What to multiply correlations with at each shift: 1/norm of either image on the overlap, or 0."""
    if wrap:
        ones = unit.new_ones(len(unit), 1, 1)
        return ones, ones
    energy = torch.fft.rfft2(unit.square().sum(1), s=frame)
    inside = torch.fft.rfft2(unit.new_ones(unit.shape[2:]), s=frame)
    scales = []
    for seen in (energy * inside.conj(), energy.conj() * inside):  # where x - s, or x + s, is in the frame
        share = torch.fft.irfft2(seen, s=frame)
        scales.append(torch.where(share >= _OVERLAP - 1e-4, share.clamp(min=1e-6).rsqrt(), 0.0))
    return scales[0], scales[1]


def _centred(place: Tensor, length: int) -> Tensor:
    """Shifts around zero instead of from 0 to ``length``."""
    return torch.where(place > length // 2, place - length, place)


def _mirrored(upper: Tensor, sign: int = 1) -> Tensor:
    """Fill in what lies below the diagonal: the pair the other way round, with the opposite shift."""
    below = torch.ones(upper.shape[:2], dtype=torch.bool).tril(-1)
    if upper.dim() == 3:
        below = below[:, :, None]
    return torch.where(below, sign * upper.transpose(0, 1), upper)


def _locality(pictures: Tensor, wrap: bool) -> float:
    """1 - E[distance^2] of two weights drawn by energy, over that of two random pixels; mean over rows."""
    if not len(pictures):
        return 0.0
    height, width = pictures.shape[2:]
    share = pictures.square().sum(1)
    share = (share / share.sum((1, 2), keepdim=True)).double()
    total = torch.zeros(len(pictures), dtype=torch.float64)
    uniform = 0.0
    for marginal, length in ((share.sum(2), height), (share.sum(1), width)):
        gap = (torch.arange(length)[:, None] - torch.arange(length)).abs()
        square = (torch.minimum(gap, length - gap) if wrap else gap).double().square()
        total += torch.einsum("ni,ij,nj->n", marginal, square, marginal)
        uniform += float(square.mean())
    return float((1.0 - total / uniform).clamp(0.0, 1.0).mean()) if uniform else 1.0
