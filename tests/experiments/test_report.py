"""The HTML report: self-contained, complete, and the same truth as the files it is made of."""

import base64
import re
import xml.etree.ElementTree as ET
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import synthetic_runs
import weightshare as ws
from weightshare.experiments import html
from weightshare.experiments.html import charts
from weightshare.experiments.html.shown import name_all

VOID = {"meta", "img", "br", "link", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Every tag and attribute, and whether what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture
def runs(tmp_path):
    return [
        synthetic_runs.make(tmp_path, "digits/cnn", 0, 0.97),
        synthetic_runs.make(tmp_path, "digits/mlp", 0, 0.91),
        synthetic_runs.make(tmp_path, "digits/mlp-r", 0, 0.93),
    ]


def test_needs_nothing_but_itself(runs):
    page = html.render(runs)
    parsed = Page(page)
    assert parsed.open == []
    assert not {"script", "link", "iframe", "object"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href"):
            assert value.startswith(("data:", "#")), value
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_every_run_is_in_every_part(runs):
    page = html.render(runs)
    for part in ("results", "accuracy", "clusters", "weights", "filters", "bits", "settings"):
        section = re.search(rf'<section id="{part}">.*?</section>', page, flags=re.DOTALL).group()
        for name in ("CNN", "MLP", "MLP + R"):
            assert f">{name}" in section, (part, name)
        assert f'href="#{part}"' in page


def test_numbers_are_those_of_the_files(runs):
    page = html.render(runs)
    for accuracy in ("97.00 %", "91.00 %", "93.00 %"):
        assert page.count(f"<td>{accuracy}</td>") == 1
    (after,) = [counts for name, counts in layers(runs[2]) if name == "layer1.weight"]
    assert f"<td>{after['distinct']:,}</td>" in page
    assert f"<td>{after['entropy']:.2f}</td>" in page


def layers(run):
    return run.summary()["metrics"]["layers"].items()


def test_charts_are_well_formed_and_take_their_colours_from_the_page(runs):
    page = html.render(runs)
    pictures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(pictures) > 8
    for picture in pictures:
        assert "#" not in picture
        ET.fromstring(picture)
    for i in range(charts.COLOURS):
        assert page.count(f"--c{i}:") == 2  # light and dark
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(runs, tmp_path):
    going = synthetic_runs.make(tmp_path, "digits/mlp-l1", 0, 0.9, finished=False)
    page = html.render([*runs, going])
    assert "1 of them not finished" in page
    assert "MLP + l1" in page
    assert html.render([going])  # also alone: parts without content are left out


def names(runs):
    return [one.name for one in name_all(runs)]


def test_runs_are_told_apart_by_what_differs(tmp_path):
    seeds = [synthetic_runs.make(tmp_path, "digits/mlp", seed) for seed in (0, 1)]
    other = synthetic_runs.make(tmp_path, "digits/mlp-r", variant="no-locality")
    assert names([*seeds, other]) == ["MLP, seed 0", "MLP, seed 1", "MLP + R (-locality)"]
    page = html.render(seeds)
    assert "MLP, seed 0" in page
    assert "MLP, seed 1" in page
    strengths = [synthetic_runs.make(tmp_path, "digits/mlp-r", alpha=alpha) for alpha in (0.25, 0.5)]
    assert names(strengths) == ["MLP + R, alpha 0.25", "MLP + R, alpha 0.5"]
    assert names([seeds[0], synthetic_runs.make(tmp_path, "cifar10/r")]) == ["digits MLP", "cifar10 R"]
    copies = [synthetic_runs.make(tmp_path / folder, "digits/mlp") for folder in "ab"]
    assert len(set(names(copies))) == 2


def test_twelve_runs(tmp_path):
    several = [synthetic_runs.make(tmp_path, "digits/mlp-r", alpha=a / 10) for a in range(12)]
    page = html.render(several)
    assert Page(page).open == []
    assert len(page) < 2e6
    section = re.search(r'<section id="accuracy">.*?</section>', page, flags=re.DOTALL).group()
    lines = re.findall(r'<polyline class="([^"]*)"', section.partition("</figure>")[0])
    marks = re.findall(r'<path class="([^"]*mark[^"]*)"', section.partition("</ul>")[0])
    assert len(set(lines)) == 12
    assert len(set(zip(lines, marks))) == 12


def test_what_is_seen_is_also_told(runs):
    page = html.render(runs)
    parsed = Page(page)
    images = parsed.tags.count("img")
    alternatives = [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "alt")]
    assert len(alternatives) == images > 0
    assert all("MLP" in value or "CNN" in value for value in alternatives)
    for label in re.findall(r'<svg [^>]*role="img" aria-label="([^"]*)"', page):
        assert "at the end: CNN" in label or "histogram of weights of" in label
    regions = re.findall(r'<div class="scroll" ([^>]*)>', page)
    assert all('tabindex="0" role="region" aria-label="' in region for region in regions)
    assert len(regions) >= 5


def test_sizes_are_those_of_real_files(runs, tmp_path):
    page = html.render(runs)
    for run in runs:
        weights = torch.load(run.weights, weights_only=True)
        ws.save(weights, tmp_path / "small.ws.safetensors")
        save_file(weights, tmp_path / "plain.safetensors")
        for name in ("small.ws.safetensors", "plain.safetensors"):
            assert f"<td>{(tmp_path / name).stat().st_size:,}</td>" in page


def test_settings_that_differ_and_those_that_do_not(runs):
    page = html.render(runs)
    own, same = (
        re.search(r'<section id="settings">(.*)</section>', page, flags=re.DOTALL).group(1).split("<details")
    )
    assert ">method<" in own
    assert ">epochs<" in same
    assert ">epochs<" not in own
    assert "<h3>" not in html.render(runs[:1]).partition('<section id="settings">')[2]  # one run: one table


def test_text_is_escaped(runs):
    page = html.render(runs[:1], title="<b>a & b</b>")
    assert "<b>" not in page
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page


def test_written_whole(runs, tmp_path):
    html.write(runs, tmp_path / "deep" / "report.html")
    assert (tmp_path / "deep" / "report.html").read_text().rstrip().endswith("</html>")
    assert len(list((tmp_path / "deep").iterdir())) == 1


def test_nothing_to_report(tmp_path):
    with pytest.raises(ValueError, match="a report needs a run"):
        html.render([])


def test_the_template_is_part_of_the_package():
    from importlib.resources import files

    assert files("weightshare.experiments.html").joinpath("report.html.j2").is_file()


def test_png_by_hand():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4)).astype(np.uint8)
    data = base64.b64decode(charts.png(pixels).partition(",")[2])
    size = int.from_bytes(data[33:37], "big")
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(5, 29)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert np.array_equal(lines[:, 1:].reshape(5, 7, 4), pixels)


@pytest.mark.parametrize("log", [False, True])
def test_lines_stay_inside_the_frame(log):
    y = [1e-3, 5.0, 2e4, 0.0 if log else -3.0]
    svg = charts.line_chart([charts.Series("a<b", 9, range(4), y)], x_label="x", y_label="y", log=log)
    points = re.search(r'points="([^"]*)"', svg).group(1).split()
    assert len(re.findall('class="mark s1', svg)) == 1
    assert len(points) == (3 if log else 4)  # a logarithm has no zero
    for point in points:
        x, height = map(float, point.split(","))
        assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT
        assert charts.TOP <= height <= charts.HEIGHT - charts.BOTTOM
    assert "a&lt;b" in svg
    assert "s1 dashed" in svg  # the tenth series has the second colour again


def test_charts_of_nothing_and_of_one_point():
    assert charts.line_chart([charts.Series("a", 0, [], [])], x_label="x", y_label="y") == ""
    dot = charts.line_chart([charts.Series("a", 0, [1], [0.5])], x_label="x", y_label="y")
    assert 'class="mark s0"' in dot
    assert "polyline" not in dot
    assert ET.fromstring(charts.histogram(None, np.zeros(5), 0)) is not None
