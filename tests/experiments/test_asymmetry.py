"""Prediction asymmetry against its definition: two translations with different predictions."""

import torch

from weightshare.experiments import torus


def images(count, side=4):
    return torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(0))


def test_counts_the_images_that_have_two_translations_with_different_predictions():
    w = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    often = torch.tensor([10.0, 0.0, 0.0])  # some images have this class under all translations

    def predict(x):
        return (x.flatten(1) @ w + often).argmax(1)

    x, group = images(200), torus.translations(4)
    rolled = [torch.roll(x, (down, right), (2, 3)) for down in range(4) for right in range(4)]
    expected = [len(set(classes)) > 1 for classes in torch.stack([predict(r) for r in rolled], 1).tolist()]
    assert 20 < sum(expected) < 180
    for batch in (7, 2048):
        assert torus.asymmetric(predict, x, group, batch=batch).tolist() == expected
    assert torus.asymmetry(predict, x, group) == sum(expected) / 200


def test_what_is_invariant_has_none_also_behind_a_permutation():
    def predict(x):
        return (x.square().sum((1, 2, 3)) > 16).long()

    x = images(50)
    permutation = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    assert torus.asymmetry(predict, x, torus.translations(4)) == 0.0
    shuffled = torus.permute(x, permutation)
    back = torch.argsort(permutation)

    def plain(x):
        return torus.permute(x, back).argmax(-1).sum((1, 2)) % 3  # looks at the image behind the permutation

    straight = torus.asymmetric(lambda x: x.argmax(-1).sum((1, 2)) % 3, x, torus.translations(4))
    assert torch.equal(torus.asymmetric(plain, shuffled, torus.translations(4, permutation)), straight)
