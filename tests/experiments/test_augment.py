"""Augmentation on tensors is Pillow's, value by value, and windows, mirrors and holes are what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from weightshare.experiments import augment, operations


def noise(count=6, side=32, seed=0):
    """Photograph-like images: smooth, noisy, flat, and of few values."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    ramp = torch.linspace(10, 200, side).expand(3, side, side).to(torch.uint8)
    images[0] = ramp
    images[1] = 77
    images[2] = images[2] // 64 * 64
    images[3] = images[3] // 3 + 60
    return images


def to_pillow(image):
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def from_pillow(image):
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(*image.size[::-1], 3).permute(2, 0, 1)


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


PILLOW = {
    "shear_x": lambda image, v: affine(image, 1, v, 0, 0, 1, 0),
    "shear_y": lambda image, v: affine(image, 1, 0, 0, v, 1, 0),
    "translate_x": lambda image, v: affine(image, 1, 0, v, 0, 1, 0),
    "translate_y": lambda image, v: affine(image, 1, 0, 0, 0, 1, v),
    "rotate": lambda image, v: image.rotate(v),
    "invert": lambda image, v: ImageOps.invert(image),
    "solarize": lambda image, v: ImageOps.solarize(image, v),
    "posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
}
RANGES = {
    "shear_x": (-0.3, 0.3), "shear_y": (-0.3, 0.3), "translate_x": (-9, 9), "translate_y": (-9, 9),
    "rotate": (-30, 30), "solarize": (0, 256), "posterize": (1, 8),
    **dict.fromkeys(("brightness", "color", "contrast", "sharpness"), (0.0, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", PILLOW)
def test_each_operation_is_pillows(name):
    low, high = RANGES.get(name, (0, 1))
    for seed in range(4):
        images = noise(seed=seed)
        share = torch.rand(len(images), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = low + (high - low) * share
        if name in ("posterize", "translate_x", "translate_y"):
            values = values.round()
        ours = getattr(operations, name)(images, values)
        for image, value, our in zip(images, values.tolist(), ours):
            theirs = from_pillow(PILLOW[name](to_pillow(image), value))
            assert torch.equal(our, theirs), (name, value)


@pytest.mark.parametrize("name", PILLOW)
def test_an_image_does_not_depend_on_the_others_and_stays_as_it_was(name):
    images = noise()
    before, values = images.clone(), torch.full((len(images),), 2.0, dtype=torch.float64)
    together = getattr(operations, name)(images, values)
    alone = torch.cat([getattr(operations, name)(one[None], values[:1]) for one in images])
    assert torch.equal(together, alone)
    assert torch.equal(images, before)


def test_autoaugment_applies_the_drawn_policies():
    images = noise(60, seed=5)
    torch.manual_seed(8)
    ours = augment.autoaugment(images)
    torch.manual_seed(8)  # the same draws, image by image and with Pillow
    drawn = torch.randint(len(augment.POLICY), (60,)).tolist()
    chance = torch.rand(60, 2)
    mirrored = torch.rand(60, 2) < 0.5
    applied = 0
    for number, image in enumerate(images):
        picture = to_pillow(image)
        for stage, (name, probability, level) in enumerate(augment.POLICY[drawn[number]]):
            if chance[number, stage] < torch.tensor(probability):
                value = augment._MAGNITUDES.get(name, float)(level)
                if name in augment._MIRRORED and mirrored[number, stage]:
                    value = -value
                picture = PILLOW[name](picture, value)
                applied += 1
        assert torch.equal(ours[number], from_pillow(picture)), augment.POLICY[drawn[number]]
    assert 20 < applied < 110


def test_the_policy_is_a_distribution_over_25_pairs_with_known_operations():
    assert len(augment.POLICY) == 25
    for pair in augment.POLICY:
        for name, probability, level in pair:
            assert name in PILLOW
            assert 0 <= probability <= 1
            assert level in range(10)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_crops_are_windows_of_the_padded_image_or_of_its_mirror(seed):
    images = noise(side=12)[3:]
    torch.manual_seed(seed)
    for image, found in zip(images, augment.crop_and_flip(images)):
        padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
        windows = padded.unfold(1, 12, 1).unfold(2, 12, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        same = (windows == found).flatten(1).all(1) | (windows.flip(3) == found).flatten(1).all(1)
        assert bool(same.any())


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_cutout_takes_one_rectangle_of_at_most_its_size(seed):
    torch.manual_seed(seed)
    images = torch.ones(4, 3, 32, 32)
    for found in augment.cutout(images):
        gone = found[0] == 0
        assert torch.equal(found, found[:1].expand(3, -1, -1))
        rows, columns = gone.any(1).sum(), gone.any(0).sum()
        assert int(gone.sum()) == int(rows * columns)
        assert 8 <= rows <= 16
        assert 8 <= columns <= 16


def test_augment_draws_the_same_amount_whatever_is_drawn():
    images = noise(16)
    torch.manual_seed(0)
    augment.augment(images, (0.5,) * 3, (0.2,) * 3)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    augment.augment(images.flip(0) // 2, (0.5,) * 3, (0.2,) * 3)
    assert torch.equal(after, torch.get_rng_state())


def test_augment_makes_normalised_floats():
    torch.manual_seed(0)
    found = augment.augment(noise(16), (0.5,) * 3, (0.25,) * 3)
    assert found.dtype == torch.float32
    assert found.shape == (16, 3, 32, 32)
    assert -2 <= found.min() < found.max() <= 2
    black = augment.normalize(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), (0.1, 0.2, 0.3), (1.0, 2.0, 0.5))
    assert black[0, :, 0, 0].tolist() == pytest.approx([-0.1, -0.1, -0.6])
