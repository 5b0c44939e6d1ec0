"""Draw the picture of an example with matplotlib, if it is installed: a part of other programs."""


def add_option(parser, words):
    """Add the option --plot, which draws what `words` say."""
    parser.add_argument("--plot", metavar="FILE", help=f"draw {words} (.svg, .pdf or .png)")


def save(file, draw):
    """Have ``draw(axes)`` draw a picture, if a file is named, and write it. One rank calls this."""
    if not file:
        return
    try:
        import matplotlib as mpl
    except ImportError:
        print("no picture: matplotlib is not installed: pip install matplotlib")
        return
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "collectives"  # names in an SVG file do not change
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.8), layout="constrained")
    draw(axes)
    figure.savefig(file)
    print(f"drawn: {file}")
