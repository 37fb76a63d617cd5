"""The HTML report: self-contained, complete, and the same truth as the files it is made of."""

import base64
import re
import xml.etree.ElementTree as ET
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import synthetic_runs
from weightshare.experiments import html
from weightshare.experiments.html import charts

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
        for name in ("digits-cnn", "digits-mlp", "digits-mlp-r"):
            assert name in section, (part, name)
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
    assert "digits-mlp-l1" in page
    assert html.render([going])  # also alone: parts without content are left out


def test_runs_of_one_recipe_are_told_apart(tmp_path):
    page = html.render([synthetic_runs.make(tmp_path, "digits/mlp", seed) for seed in (0, 1)])
    assert "digits-mlp/seed0" in page
    assert "digits-mlp/seed1" in page


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
    assert len(points) == (3 if log else 4)  # a logarithm has no zero
    for point in points:
        x, height = map(float, point.split(","))
        assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT
        assert charts.TOP <= height <= charts.HEIGHT - charts.BOTTOM
    assert "a&lt;b" in svg
    assert "s1 dashed" in svg  # the tenth series has the second colour again


def test_charts_of_nothing_and_of_one_point():
    assert charts.line_chart([charts.Series("a", 0, [], [])], x_label="x", y_label="y") == ""
    assert "<circle" in charts.line_chart([charts.Series("a", 0, [1], [0.5])], x_label="x", y_label="y")
    assert ET.fromstring(charts.histogram(None, np.zeros(5), 0)) is not None
