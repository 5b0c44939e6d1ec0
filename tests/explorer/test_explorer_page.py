"""The page of the explorer: it plays every algorithm to the right end, in the time it should.

It runs in a headless Chromium; where there is none, these tests are skipped.
"""

import re
from collections import defaultdict

import pytest
from browser import SCREENS, browse, needs_axe, needs_chromium
from usual import FULL

from collectives import algorithms, explorer
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.explorer import catalogue, page
from collectives.simulate import simulate
from collectives.topology import FatTree, Flat, Hosts, Torus

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]

pytestmark = needs_chromium


def elements(collective, p, panel):
    """Return how many numbers the page draws, and for each its part."""
    contract = COLLECTIVES[collective]
    parts = contract.parts(p)
    n = panel["length"]
    return [e * parts // n for e in range(n)]


def expected(collective, p, root, panel):
    """Return what the collective promises: {(rank, element): text}."""
    contract = COLLECTIVES[collective]
    start = catalogue.numbers()
    found = {}
    for r in range(p):
        for e, part in enumerate(elements(collective, p, panel)):
            if part in contract.outputs(r, p, root):
                due = contract.sources(part, r, p, root)
                givers = [q for q in range(p) if due >> q & 1]
                place = e % p if contract.parts(2) == 4 else e
                total = sum(start[q][place % page.RANKS] for q in givers)
                found[r, e] = str(len(givers) if contract.idempotent else total)
    return found


def hold(collective, p, root, panel):
    """Hold what a panel shows in the end against the collective's promise."""
    wanted = expected(collective, p, root, panel)
    assert wanted
    shown = defaultdict(set)
    for rank, element, text, whole in panel["cells"]:
        shown[rank, element].add((text, whole))
    for key, text in wanted.items():
        assert shown[key] == {(text, True)}, (panel["title"], key)
    assert panel["words"].endswith(" Every rank has its result.")
    assert panel["error"] is None
    assert panel["leftover"] == 0


def roots(collective, p):
    return sorted({0, p - 1}) if COLLECTIVES[collective].rooted else [0]


def test_every_algorithm_plays_to_the_right_end(written, tmp_path):
    jobs, plan = [], []
    for number, (collective, name) in enumerate(EVERY):
        for p in (4, 7) if FULL else (7 - 3 * (number % 2),):
            for root in roots(collective, p):
                plan.append((collective, name, p, root))
                settings = {"algorithm": f"{collective}/{name}", "p": p, "root": root}
                jobs.append({"settings": settings, "play": True})
    found = browse(written, tmp_path / "page", jobs)["results"]
    assert len(found) == len(plan)
    for (collective, name, p, root), result in zip(plan, found, strict=True):
        assert result["state"] == "end"
        assert result["lines"] > 0
        assert result["chips"] > 0
        [panel] = result["panels"]
        proof = check(collective, name, p=p, root=root)
        assert panel["title"] == f"{collective}: {name}"
        assert panel["counts"]["step"] == f"{proof.depth} of {proof.depth}"
        messages = sum(proof.messages)
        assert panel["counts"]["messages"] == f"{messages} of {messages}"
        hold(collective, p, root, panel)


RATES = {"alpha": 3.1e-6, "beta": 2.3e-10, "gamma": 0.7e-10}
INSIDE = {"insideAlpha": 0.4e-6, "insideBeta": 0.6e-10}
NEAR = tuple(INSIDE.values())
# Settings of the page beside the rates, and the same machine for the simulation.
MACHINES = [
    ({}, Flat(4, **RATES)),
    ({}, Flat(7, **RATES)),
    ({}, Flat(16, **RATES)),
    ({"delay": 2e-5}, Flat(5, **RATES, delay=2e-5)),
    ({"topology": "hosts", "perHost": 2}, Hosts(3, 2, **RATES, inside=NEAR)),
    (
        {"topology": "hosts", "perHost": 4, "delay": 7e-6},
        Hosts(3, 4, **RATES, inside=NEAR, delay=7e-6),
    ),
    (
        {"topology": "fattree", "perHost": 2, "perSwitch": 3, "oversubscription": 4},
        FatTree(6, 2, 3, 4, **RATES, inside=NEAR),
    ),
    (
        {"topology": "fattree", "perHost": 1, "perSwitch": 2, "oversubscription": 1, "delay": 1e-6},
        FatTree(7, 1, 2, 1, **RATES, inside=NEAR, delay=1e-6),
    ),
    ({"topology": "torus"}, Torus((2, 2, 3), **RATES)),
    (
        {"topology": "torus", "hop": 5e-7, "delay": 3e-6},
        Torus((4, 4), **RATES, hop=5e-7, delay=3e-6),
    ),
    ({"topology": "torus"}, Torus((7,), **RATES)),
]


def test_the_clock_is_that_of_the_simulation(written, tmp_path):
    jobs, plan = [], []
    for number, (collective, name) in enumerate(EVERY):
        for told, topology in MACHINES if FULL else MACHINES[number % 6 :: 6]:
            p = topology.p
            root = roots(collective, p)[-1]
            nbytes = 8 if p == 7 else 100_003
            sent = 0 if collective == "barrier" else nbytes
            plan.append((collective, name, p, root, sent, topology))
            settings = {"algorithm": f"{collective}/{name}", "p": p, "root": root, "nbytes": nbytes}
            jobs.append({"settings": {**settings, **RATES, **INSIDE, **told}})
    found = browse(written, tmp_path / "page", jobs)["results"]
    assert len(found) == len(plan)
    for (collective, name, p, root, nbytes, topology), result in zip(plan, found, strict=True):
        [panel] = result["panels"]
        want = simulate(collective, name, nbytes, topology, root=root)
        assert panel["end"] == pytest.approx(want.time, rel=1e-6)
        assert len(panel["messages"]) == len(want.transfers) == want.messages
        got = sorted(tuple(m[:7]) for m in panel["messages"])
        for m, t in zip(got, sorted(order(t) for t in want.transfers), strict=True):
            assert m[:4] == t[:4], (collective, name, p)
            assert m[4:] == pytest.approx(t[4:], rel=1e-6), (collective, name, p)
        hold(collective, p, root, panel)


def order(t):
    return t.source, t.target, t.round, t.nbytes, t.start, t.end, t.folded


def test_two_algorithms_share_a_clock_and_the_arrays(written, tmp_path):
    settings = {"algorithm": "allreduce/ring", "beside": "allreduce/master_worker", "p": 4}
    [result] = browse(written, tmp_path / "page", [{"settings": settings, "play": True}])["results"]
    ring, master = result["panels"]
    assert ring["length"] == master["length"] == 4
    for panel in (ring, master):
        hold("allreduce", 4, 0, panel)
        assert [text for r, _, text, _ in panel["cells"] if r == 0] == ["37", "37", "36", "43"]
    assert ring["counts"]["sent"] == master["counts"]["sent"] == "6 MiB of 6 MiB"
    assert ring["end"] < master["end"]


def test_keys_and_controls(written, tmp_path):
    found = browse(written, tmp_path / "page", keys=True)
    keys = found["keys"]
    assert keys["moving"] is True
    assert keys["right"] == "1 of 6"
    assert keys["words"].startswith(
        "Rank 0 sends block 0 to 1, which adds it; 1 sends block 1 to 2"
    )
    assert keys["hash"] == "#algorithm=allreduce/ring&p=4&step=1"
    assert keys["three"] == "3 of 6"
    assert keys["left"] == "2 of 6"
    assert keys["end"] == "24 of 24"
    assert keys["home"] == 0
    assert keys["space"] == [True, "Pause"]
    assert keys["again"] == [False, "Play"]
    assert keys["ranks"] == 5
    assert keys["cells"] == "ranks"
    assert keys["theme"] == "light"
    assert keys["speed"] == "2"
    assert keys["titles"] == ["broadcast: flat", "broadcast: chain"]
    assert keys["textbook"] == algorithms.names("broadcast", textbook=True)
    assert keys["literature"] == ["bine", "circulant"]
    assert keys["chosen"] == (
        "#algorithm=broadcast/flat&beside=broadcast/chain&p=5&root=2&nbytes=1024"
        "&topology=fattree&cells=ranks&theme=light"
    )
    assert keys["half"] == pytest.approx(0.5)
    assert keys["slider"] == [True, False]
    assert keys["table"] == 6
    assert keys["nameless"] == keys["unreachable"] == keys["low"] == []
    assert keys["live"] == 2


def test_a_link_leads_to_its_view(written, tmp_path):
    link = (
        "#algorithm=reduce/tree&beside=reduce/flat&p=7&root=5&nbytes=4096&perHost=2&alpha=0.00001"
        "&delay=0.00002&topology=hosts&step=2"
    )
    found = browse(written, tmp_path / "page", hash=link)
    opened = found["opened"]
    assert [panel["title"] for panel in opened["panels"]] == ["reduce: tree", "reduce: flat"]
    tree, flat = opened["panels"]
    marks = sorted({*tree["steps"], *flat["steps"]})
    assert opened["time"] == marks[2]
    words = dict(re.findall(r"(\w+)=([^&]+)", opened["hash"]))
    wanted = dict(re.findall(r"(\w+)=([^&]+)", link))
    assert float(words.pop("alpha")) == float(wanted.pop("alpha"))
    assert words == wanted


def test_nonsense_in_a_link_is_left_out(written, tmp_path):
    link = (
        "#algorithm=no/such&p=99&root=x&beta=-1&step=-3&time=abc&theme=<b>&nbytes=1e300&topology=x"
        "&hop=-1&perHost=2.5"
    )
    found = browse(written, tmp_path / "page", hash=link)
    assert found["opened"]["hash"] == "#algorithm=allreduce/ring&p=4"
    assert found["opened"]["time"] == 0
    assert found["notice"] == (
        "The link names what this page does not have: algorithm=no/such, p=99, root=x, "
        "nbytes=1e300, perHost=2.5, beta=-1, hop=-1, topology=x, theme=<b>. "
        "It shows allreduce/ring on 4 ranks instead."
    )


def test_a_link_that_is_right_needs_no_notice(written, tmp_path):
    link = "#algorithm=reduce/tree&beside=reduce/flat&p=7&cells=ranks&theme=dark"
    found = browse(written, tmp_path / "page", hash=link)
    assert found["notice"] == ""
    assert found["theme"] == "dark"


def test_where_motion_is_unwelcome_it_goes_in_steps(written, tmp_path):
    jobs = [{"settings": {"algorithm": "allreduce/ring", "p": 4}, "play": True}]
    flags = ["--force-prefers-reduced-motion"]
    [result] = browse(written, tmp_path / "page", jobs, flags=flags)["results"]
    [panel] = result["panels"]
    assert result["chips"] == 0  # only ends of steps were shown, when nothing is under way
    hold("allreduce", 4, 0, panel)


@pytest.mark.parametrize("algorithm", ["allreduce/ring", "alltoall/bruck"])
def test_a_phone_shows_it_all(written, tmp_path, algorithm):
    jobs = [{"settings": {"algorithm": algorithm, "p": 8, "topology": "fattree"}}]
    found = browse(written, tmp_path / "page", jobs, narrow=360)
    assert found["width"] == 360
    assert found["scroll"] <= 360
    assert found["wide"]
    assert max(found["wide"]) == 0  # every line of the source can be read without scrolling
    assert found["theme"] == "dark"  # as the page around it says
    [panel] = found["results"][0]["panels"]
    hold(algorithm.split("/")[0], 8, 0, panel)


@needs_axe
@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_axe_finds_nothing_in_the_page(written, tmp_path, width, theme):
    link = f"#algorithm=allreduce/ring&beside=allreduce/master_worker&p=4&step=2&theme={theme}"
    found = browse(written, tmp_path / "page", hash=link, narrow=width, axe=True)
    assert (found["width"], found["theme"]) == (width, theme)
    assert found["axe"]
    assert found["scroll"] <= width
    assert found["findings"] == []


def test_a_wrong_algorithm_is_shown_with_its_error(registered, tmp_path):
    def quiet(r, p):
        """Say nothing."""
        return iter(())

    registered("allreduce", "quiet", quiet)
    folder = explorer.write(tmp_path / "written").parent
    jobs = [{"settings": {"algorithm": "allreduce/quiet", "p": p}} for p in (3, 1)]
    wrong, right = browse(folder, tmp_path / "page", jobs)["results"]
    [panel] = wrong["panels"]
    assert panel["error"].startswith("allreduce 'quiet' on 3 ranks: rank 0 ends with block 0 of")
    assert panel["messages"] == []
    hold("allreduce", 1, 0, right["panels"][0])


def test_captions_of_the_start_and_of_a_deadlock_are_true(registered, tmp_path):
    def waiting(r, p):
        """Wait for the left neighbour before the right one gets anything."""
        if p > 1:
            yield algorithms.Exchange(recv=((r - 1) % p, 0), fold=True)
            yield algorithms.Exchange(send=((r + 1) % p, 0))

    registered("allreduce", "waiting", waiting)
    folder = explorer.write(tmp_path / "written").parent
    starts = {
        "broadcast/flat": "Rank 2 holds the array.",
        "scatter/tree": "Rank 2 holds the array.",
        "reduce/flat": "Each rank holds its own array.",
        "gather/tree": "Each rank holds its own array.",
        "allreduce/ring": "Each rank holds its own array.",
        "alltoall/direct": "Each rank holds its own array.",
        "exscan/chain": "Each rank holds its own array.",
        "barrier/direct": "No rank has heard of another.",
    }
    jobs = [{"settings": {"algorithm": name, "p": 4, "root": 2}} for name in starts]
    jobs += [{"settings": {"algorithm": "allreduce/waiting", "p": p}} for p in (3, 1)]
    *found, stuck, alone = browse(folder, tmp_path / "page", jobs)["results"]
    for (name, text), result in zip(starts.items(), found, strict=True):
        meaning = catalogue.MEANING[name.partition("/")[0]]
        assert result["panels"][0]["start"] == f"Start. {text} {meaning}"
    assert stuck["panels"][0]["words"] == "No message arrives. It stops here."
    assert alone["panels"][0]["words"].startswith("One rank has nothing to send.")


def test_a_refused_algorithm_plays_up_to_the_round_that_fails(registered, tmp_path):
    def late(r, p):
        """Forget to fold in the last round."""
        for t in range(p - 1):
            yield algorithms.Exchange(
                send=((r + 1) % p, (r - t + (r == 0 and t == 2)) % p),
                recv=((r - 1) % p, (r - t - 1) % p),
                fold=True,
            )

    registered("allreduce", "late", late, blocks=lambda p: p)
    folder = explorer.write(tmp_path / "written").parent
    jobs = [{"settings": {"algorithm": "allreduce/late", "p": 4}, "play": True}]
    [result] = browse(folder, tmp_path / "page", jobs)["results"]
    [panel] = result["panels"]
    assert "rank 1, round 3: expects block 2 from rank 0, which sends block 3" in panel["error"]
    assert result["state"] == "end"
    assert result["chips"] > 0
    assert len([m for m in panel["messages"] if m[-1] <= 2]) == 8
    assert len(panel["messages"]) < 12
    assert panel["words"].endswith(" It stops here.")
    assert any(line.startswith("yield algorithms.Exchange(") for line in panel["at"])


SHAPES = [
    ("allreduce/ring", 5, "ring"),
    ("reduce_scatter/ring", 8, "ring"),
    ("allreduce/master_worker", 6, "star"),
    ("broadcast/flat", 5, "star"),
    ("broadcast/tree", 7, "tree"),
    ("gather/tree", 7, "tree"),
    ("allreduce/butterfly", 8, "cube"),
    ("allreduce/all_to_all", 5, "rows"),
    ("alltoall/bruck", 4, "rows"),
    ("allreduce/ring", 2, "rows"),
    ("allreduce/ring", 16, "rows"),  # the numbers would be too small
]


def test_ranks_stand_as_their_messages_go(written, tmp_path):
    jobs = [
        {"settings": {"algorithm": name, "p": p, "root": roots(name.split("/")[0], p)[-1]}}
        for name, p, _ in SHAPES
    ]
    found = browse(written, tmp_path / "page", jobs)["results"]
    for (name, p, shape), result in zip(SHAPES, found, strict=True):
        [panel] = result["panels"]
        assert panel["shape"] == shape, name
        assert panel["alpha"] == 2  # what is sent, and what is received
        collective = name.split("/")[0]
        hold(collective, p, roots(collective, p)[-1], panel)
        proof = check(*name.split("/"), p=p, root=roots(collective, p)[-1])
        moved = [0] * p
        for (source, target), arrays in proof.links.items():
            moved[source] += arrays
            moved[target] += arrays
        mib = float(max(moved))
        most = f"{mib:.3g} MiB" if mib >= 1 else f"{1024 * mib:.3g} KiB"
        assert panel["counts"]["busiest"].endswith(f": {most}"), name


def test_a_rank_is_marked_only_while_more_goes_through_it_than_through_others(written, tmp_path):
    machine = {"topology": "hosts", "perHost": 3, "p": 4, "shape": "ring"}
    names = ("all_to_all", "master_worker")
    jobs = [{"settings": {**machine, "algorithm": f"allreduce/{n}"}, "play": True} for n in names]
    alike, star = browse(written, tmp_path / "page", jobs)["results"]
    assert alike["panels"][0]["shape"] == "ring"
    assert alike["panels"][0]["counts"]["busiest"] == "every rank: 6 MiB"
    assert alike["panels"][0]["busiest"] == []
    assert star["panels"][0]["busiest"] == [0]


def test_sixty_four_ranks_are_played(written, tmp_path):
    jobs = [
        {"settings": {"algorithm": f"allreduce/{name}", "p": 64, "shape": shape}, "look": [0.31]}
        for name, shape in (("ring", "fitting"), ("ring", "rows"), ("all_to_all", "fitting"))
    ]
    other = {"algorithm": "broadcast/chain", "p": 64}
    found = browse(written, tmp_path / "page", [*jobs, {"settings": other}])["results"]
    for [look], cells in zip(found[:3], (64 * 64, 64 * 64, 64 * 8), strict=True):
        assert look["drawn"] == [cells, len(look["chips"])]
        assert len(look["chips"]) >= 64
        assert look["right"]
    [panel] = found[3]["panels"]
    assert panel == {
        "error": "This page does not have broadcast/chain on 64 ranks. Write one that has: "
        "collectives explore broadcast/chain -n 64"
    }


PARTS = [k / 40 for k in range(41)]


def meet(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_rows_stay_where_they_are_and_stand_side_by_side(written, tmp_path):
    settings = {"algorithm": "allreduce/ring", "beside": "allreduce/all_to_all", "p": 7}
    other = {"algorithm": "allgather/ring", "beside": "allgather/bruck", "p": 5, "shape": "rows"}
    jobs = [{"settings": each, "look": PARTS} for each in (settings, other)]
    for looks in browse(written, tmp_path / "page", jobs)["results"]:
        left, right = looks[0]["tops"]
        assert left == right
        assert len(set(left)) > 4
        assert all(look["tops"] == [left, right] for look in looks)


def test_opposing_messages_hide_neither_a_row_nor_each_other(written, tmp_path):
    settings = {"algorithm": "allreduce/butterfly", "p": 7}
    [looks] = browse(written, tmp_path / "page", [{"settings": settings, "look": PARTS}])["results"]
    opposed = passing = 0
    for look in looks:
        solid = [chip for chip in look["chips"] if chip["opacity"] > 0.2]
        passing += len(look["chips"]) - len(solid)
        for chip in solid:
            for text in look["texts"]:
                between = sorted([chip["source"], chip["target"]])
                if between[0] < text["rank"] < between[1]:
                    assert not meet(chip["box"], text["box"]), chip
            for other in look["chips"]:
                if (chip["source"], chip["target"]) == (other["target"], other["source"]):
                    opposed += 1
                    assert not meet(chip["box"], other["box"])
    assert opposed > 0
    assert passing > 0
