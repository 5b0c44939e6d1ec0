"""The parts that plots share: the labels at the ends of lines stand apart, beside their lines."""

import itertools

import pytest

from collectives.picture import plots


def test_places_are_spread_in_their_order():
    assert plots.spread([0.5], 0.1, 0, 1) == [0.5]
    assert plots.spread([], 0.1, 0, 1) == []
    assert plots.spread([0.2, 0.8], 0.1, 0, 1) == [0.2, 0.8]
    assert plots.spread([0.5, 0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.4, 0.5, 0.6])
    assert plots.spread([0.99, 1.0, 0.1], 0.2, 0, 1) == pytest.approx([0.8, 1.0, 0.1])
    assert plots.spread([0.0, -3.0], 0.2, 0, 1) == pytest.approx([0.2, 0.0])


def test_places_that_have_no_room_share_what_there_is():
    assert plots.spread([0.3] * 5, 9.0, 0, 1) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_stand_apart_and_outside(scale):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot
    from matplotlib.text import Text

    figure, axes = pyplot.subplots(figsize=(9, 5.4), layout="constrained")
    ends = [1.0, 1.01, 1.02, 1.02, 1.02, 40.0, 1000.0, float("nan")]
    for number, end in enumerate(ends):
        axes.plot([1, 2, 3], [2 + number, 5, end], label=f"line {number}")
    axes.plot([1, 3], [1, 1])  # without a label
    axes.set_yscale(scale)
    plots.label_ends(figure, [axes])
    figure.canvas.draw()
    texts = {each.get_text(): Text.get_window_extent(each) for each in axes.texts}
    assert sorted(texts) == [f"line {number}" for number in range(len(ends))]
    for one, other in itertools.combinations(texts.values(), 2):
        assert not one.overlaps(other)
    for each in texts.values():
        assert each.x0 > axes.get_window_extent().x1
        assert each.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= each.y0 < each.y1 <= figure.bbox.y1
    middles = [texts[f"line {number}"].y0 for number in (0, 1, 2, 5, 6)]
    assert middles == sorted(middles)
    pyplot.close(figure)
