"""The examples, as a reader would run them."""

import ast
import importlib.util
import math
import os
import re
import sys
from functools import cache

import numpy as np
import pytest
from jobs import on_ranks, run
from programs import EXAMPLES, OPEN_MPI, example

from collectives import compression

pytestmark = pytest.mark.any_mpi


def test_the_manual_lists_every_program():
    learn = EXAMPLES.parent / "docs" / "learn"
    for page, folder in (("examples.md", EXAMPLES), ("lectures.md", EXAMPLES / "lectures")):
        text = (learn / page).read_text(encoding="utf-8")
        files = {each.name for each in folder.iterdir() if each.suffix in {".py", ".sh", ".ipynb"}}
        files -= {"digits.py", "strategies.py"}  # parts of the programs beside them
        assert {name for name in files if f"`{name}`" not in text} == set()


PACKAGES = ("torch", "jax", "tensorflow", "transformers", "accelerate", "lightning", "flwr")


def test_every_program_names_the_packages_that_it_imports():
    for file in EXAMPLES.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
        names = {name.name for each in imports for name in each.names}
        names |= {each.module for each in imports if isinstance(each, ast.ImportFrom)}
        wanted = {name.partition(".")[0] for name in names} & set(PACKAGES)
        words = ast.get_docstring(tree) or ""
        named = {
            name for found in re.findall(r"pip install ([^`]+)", words) for name in found.split()
        }
        assert wanted <= named, file


@pytest.mark.each_mpi("mpich")
def test_pi_depends_on_the_seed_alone():
    points = 700_001  # two whole chunks and a part of one
    lines = {}
    for ranks in (1, 2, 3):
        for seed in (1, 2):
            out = example("pi.py", ranks, "--points", str(points), "--seed", str(seed))
            pi, timing = out.strip().splitlines()
            assert re.fullmatch(rf"{points} points on {ranks} ranks? took \d+\.\d+ s", timing)
            lines.setdefault(seed, set()).add(pi)
    assert [len(each) for each in lines.values()] == [1, 1]
    assert lines[1] != lines[2]
    for each in lines.values():
        estimate = float(re.match(r"pi is about (\d\.\d+);", each.pop()).group(1))
        assert abs(estimate - 3.14159265) < 5 * 1.65 / points**0.5


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("plot", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pi.py", "--points 1000"),
        ("server_sgd.py", "--steps 4 --milliseconds 0 --policy asynchronous"),
        ("compressed_sgd.py", "--epochs 1 --codec none"),
        ("overlap.py", "--layers 2 --mebibytes 0.1 --steps 1"),
    ],
)
def test_examples_draw_where_matplotlib_is_installed(tmp_path, name, options, plot):
    if plot:
        pytest.importorskip("matplotlib")
    else:
        (tmp_path / "matplotlib.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    picture = tmp_path / "picture.svg"
    words = [EXAMPLES / name, *options.split(), "--plot", picture]
    result = on_ranks(sys.executable, 2, *words, env={"PYTHONPATH": path})
    assert result.status == 0, result
    missing = "no picture: matplotlib is not installed: pip install matplotlib"
    assert result.out.splitlines()[-1] == (f"drawn: {picture}" if plot else missing)
    assert picture.exists() == plot


def test_pi_with_fewer_chunks_than_ranks():
    assert "10 points on 3 ranks" in example("pi.py", 3, "--points", "10")


def test_lecture():
    out = example("lecture.py", 4)
    rows = dict(re.findall(r"^(\w+) +\[37 37 36 43\] +(.*)$", out, re.MULTILINE))
    from collectives import algorithms

    assert list(rows) == algorithms.names("allreduce", textbook=True)
    # Rounds, messages, numbers sent in all and by the busiest worker.
    assert rows["ring"].split() == ["6", "24", "24", "6"]
    assert rows["master_worker"].split() == ["2", "6", "24", "12"]
    assert rows["all_to_all"].split() == ["1", "12", "48", "12"]


def test_lecture_on_another_number_of_ranks():
    result = on_ranks(sys.executable, 2, EXAMPLES / "lecture.py")
    assert result.status != 0
    assert "the lecture has 4 workers and this run has 2" in result.err


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_small_looks(ranks):
    out = example("same_values.py", ranks)
    assert out.startswith("the models are equal\n")
    wanted = (
        "rank 1 differs from rank 0 in 1 of 12 elements, the first model.layers[1].weight[2, 1]"
    )
    assert (wanted in out) == (ranks > 1)
    out = example("which_path.py", ranks)
    path = "shm" if ranks > 1 else "none"
    calls = re.findall(rf"^(\w+) +(\d+) bytes: \w\S*, {path}$", out, re.MULTILINE)
    assert [name for name, _ in calls] == ["allreduce"] * 3 + ["allgather", "barrier"]
    assert [int(nbytes) for _, nbytes in calls][:3] == [8, 8_000, 8_000_000]
    out = example("ring_requests.py", ranks)
    assert out.startswith("3 requests were left to the block:\n")


@pytest.mark.each_mpi("mpich")
def test_two_runs_are_compared(tmp_path):
    options = {"run1": [], "run2": ["--algorithm", "ring"], "run3": ["--spoil", "2"]}
    paths = {name: str(tmp_path / name) for name in options}
    for name, words in options.items():
        env = {"COLLECTIVES_TRACE": paths[name]}
        result = on_ranks(sys.executable, 3, EXAMPLES / "compare_runs.py", *words, env=env)
        assert result.status == 0, result
        assert re.fullmatch(r"the loss is \d+\.\d+ after 5 steps\n", result.out)
    found = {}
    for name in ("run2", "run3"):
        done = run([sys.executable, "-m", "collectives", "compare", paths["run1"], paths[name]])
        assert done.status == 1, done
        found[name] = done.out.splitlines()[2:]
    assert "ranks 0-2: the results differ (result)" in found["run2"]
    assert found["run2"][-1].startswith("Only the rounding differs: ")
    assert found["run3"][0] == "the first call that differs is number 5 on communicator 0.0:"
    assert found["run3"][2:] == ["ranks 0-1: the results differ", "rank 2: the inputs differ (x)"]


# Each number of ranks with one MPI, and under the command of the library as well: what an example
# does depends on the number, and not on which MPI it is.
JOBS = {
    False: [("mpiexec", 1), ("mpiexec", 3), ("collectives run", 2)],
    True: [("mpiexec", 2), ("mpiexec", 4)],
}[OPEN_MPI]

needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)


def found(pattern, text):
    """Return the numbers in the one place where a pattern is found."""
    (match,) = re.finditer(pattern, text)
    return [float(group) for group in match.groups()]


@pytest.fixture(
    params=[pytest.param(job, marks=pytest.mark.each_mpi("mpich")) for job in JOBS],
    ids="{0[0]} {0[1]}".format,
)
def job(request):
    """Run an example as one of the jobs; return what it prints, and the number of ranks."""
    launcher, ranks = request.param

    def run_it(name, *options):
        if launcher == "mpiexec":
            return example(name, ranks, *options), ranks
        words = [sys.executable, "-m", "collectives", "run", "-n", str(ranks)]
        result = run([*words, EXAMPLES / name, *options])
        assert result.status == 0, result
        return result.out, ranks

    return run_it


def test_heat(job):
    out, ranks = job("heat.py", "--steps", "20")
    down, across = found(r"(\d+) x (\d+) ranks made 20 steps", out)
    assert down * across == ranks
    assert "; 0 points differ" in out


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_losses_have_the_same_bits_on_any_number_of_ranks(framework):
    pytest.importorskip(framework)
    options = "--framework", framework, "--epochs", "3"
    out = example("same_bits.py", 1, *options)
    losses = [float(text) for text in re.findall(r"epoch \d: loss (\S+),", out)]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    assert re.search(r"^the weights have checksum [0-9a-f]{8}$", out, re.MULTILINE)
    for ranks in (2, 4, 8):
        assert example("same_bits.py", ranks, *options) == out


@cache
def dot_product(n):
    k = np.arange(n, dtype=np.float64)
    return math.fsum(np.sin(k) * (np.cos(k) + 1.0 / (k + 1.0)))


def test_dot_product(job):
    out, ranks = job("dot_product.py", "--elements", "100003")
    total, whole = found(r"x \. y = (\S+), in one piece (\S+)\n", out)
    assert abs(total - dot_product(100_003)) < 1e-9
    assert abs(whole - dot_product(100_003)) < 1e-9
    lengths = re.search(r"the parts have (.*) elements", out)[1].split(" or ")
    assert {int(text) for text in lengths} == {100_003 // ranks, -(-100_003 // ranks)}


def test_dot_product_with_fewer_elements_than_ranks():
    out = example("dot_product.py", 3, "--elements", "2")
    assert "the parts have 0 or 1 elements" in out
    assert found(r"x \. y = (\S+),", out) == [pytest.approx(math.sin(1) * (math.cos(1) + 0.5))]


@cache
def largest_eigenvalue(n):
    i = np.arange(n)
    return np.linalg.eigvalsh(1.0 / (1.0 + np.abs(i - i[:, None])))[-1]


def test_matvec(job):
    out, ranks = job("matvec.py", "--rows", "120")
    value, steps = found(r"the largest eigenvalue is (\S+), after (\d+) steps", out)
    assert abs(value - largest_eigenvalue(120)) < 1e-8
    assert 5 < steps < 200
    (residual,) = found(r"is (\S+), computed in one piece", out)
    assert residual < 1e-4
    assert f"each rank had {120 // ranks} of 120 rows" in out


def test_matvec_says_which_numbers_of_ranks_it_takes():
    result = on_ranks(sys.executable, 2, EXAMPLES / "matvec.py", "--rows", "121")
    assert result.status != 0
    assert result.err.count("2 ranks cannot share 121 rows equally: choose --rows") == 1


def test_transpose(job):
    out, ranks = job("transpose.py", "--block", "3")
    n = 3 * ranks
    assert f"{n} x {n} numbers in {ranks} parts, 0 of them in a wrong place" in out
    before, after = out.split("after\n")
    rows = [
        np.array([line.split()[2:] for line in part.splitlines() if " rank " in line], int)
        for part in (before, after)
    ]
    i, j = np.ogrid[:n, :n]
    assert np.array_equal(rows[0], 100 * i + j)
    assert np.array_equal(rows[1], 100 * j + i)


@needs_digits
def test_sgd(job):
    out, ranks = job("sgd.py", "--epochs", "20")
    (recognised,) = found(r"(\S+) % of 297 new images are recognised", out)
    assert recognised > 80
    (apart,) = found(r"equal weights; they differ from those of one rank by (\S+)", out)
    assert apart == 0 if ranks == 1 else apart < 1e-9
    speedup, alone, together = found(
        rf"speed-up (\S+): alone (\S+) s\n20 epochs on {ranks} ranks? took (\S+) s", out
    )
    assert speedup == pytest.approx(alone / together, abs=0.006, rel=0.05)


def test_pi_with_an_array_library(job):
    out, ranks = job("gpu_pi.py", "--points", "5000000")
    pi, _ = found(r"pi is about (\S+); it is off by (\S+)", out)
    assert abs(pi - math.pi) < 5 * 1.65 / 5_000_000**0.5
    assert re.search(rf"5000000 points on {ranks} ranks, with (CuPy|NumPy, because)", out)


def test_sgd_with_an_array_library(job):
    out, _ = job("gpu_sgd.py", "--epochs", "40")
    (recognised,) = found(r"(\S+) % of 3000 points are recognised", out)
    assert recognised > 90


def test_compressed_sgd():
    """Every codec comes about as far as no compression does. All is seeded: a run is repeated."""
    out = example("compressed_sgd.py", 2, "--epochs", "12")
    rows = found_rows(r"(\w+) +(\S+) +(\S+) % +(\d+)", out)
    plain_loss, plain_recognised, plain_bytes = rows.pop("none")
    assert plain_recognised > 85
    assert set(rows) == set(compression.NAMES) - {"none"}
    for name, (loss, recognised, nbytes) in rows.items():
        assert loss < 1.6 * plain_loss, name
        assert recognised > plain_recognised - 3, name
        assert nbytes < 0.6 * plain_bytes, name


@needs_digits
def test_federated():
    """The clients learn together what none of them does alone. All is seeded."""
    out = example("federated.py", 2, "--rounds", "10")
    assert "1500 digits; the clients have 2 to 4 of 10 kinds each" in out
    rows = {n: (clients, float(found)) for n, clients, found in ROUNDS.findall(out)}
    assert {n: len(clients.split()) for n, (clients, _) in rows.items()} == dict.fromkeys(
        ("1", "2", "5", "10"), 4
    )
    whole, alone = found(r"in one place: (\S+) %, each client alone: (\S+) %", out)
    assert rows["10"][1] > alone + 30
    assert whole > 85
    assert "\n0 updates were missing\n10 rounds took" in out


ROUNDS = re.compile(r"^ +(\d+)   ([\d ]+?) +(\S+) %$", re.MULTILINE)


def found_rows(pattern, out):
    """Return the numbers of each row of a table, by its first word."""
    matches = re.findall(rf"^{pattern}$", out, re.MULTILINE)
    return {name: tuple(map(float, numbers)) for name, *numbers in matches}


def test_sgd_says_what_is_missing(tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError('no module named sklearn')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path.rstrip(os.pathsep)}
    result = on_ranks(sys.executable, 3, EXAMPLES / "sgd.py", env=env)
    assert result.status == 1, result
    assert result.err.count("the images need it: pip install scikit-learn") == 1
    assert "Traceback" not in result.err


def test_overlap(job):
    out, ranks = job("overlap.py", "--layers", "4", "--mebibytes", "0.1", "--steps", "2")
    lines = out.splitlines()
    assert lines[0] == f"4 layers, 0.4 MiB, on {ranks} ranks"
    assert len(found(r"computation +(\S+) ms, communication (\S+) ms", out)) == 2
    assert len(found(r"overlapped: (\S+) ms, -?(\d+) % hidden", out)) == 2


def test_pipeline(job):
    out, ranks = job("pipeline.py", "--pieces", "5")
    first = "rank 0    0  1  2  3  4" + "  ." * (ranks - 1)
    last = f"rank {ranks - 1}  " + "  ." * (ranks - 1) + "  0  1  2  3  4"
    lines = out.splitlines()
    assert lines[0] == first
    assert lines[ranks - 1] == last
    bubble, layers, error = found(
        r"the bubble is (\d+) % of the time\nnumber of layers (\d+); the result is off by (\S+) ",
        out,
    )
    assert bubble == round(100 * (ranks - 1) / (ranks + 4))
    assert layers == ranks
    assert error < 1e-12


def test_pipeline_with_more_pieces_than_samples():
    assert "the result is off by" in example("pipeline.py", 2, "--pieces", "100")


def test_tensor_parallel(job):
    out, ranks = job("tensor_parallel.py")
    rows = 250 // ranks
    assert f"rank 0 of {ranks} has {rows * (48 + 32)} of 20000 weights" in out
    gathered, first = found(
        r"allgather after each layer +joins +(\d+) numbers; it is off by (\S+)", out
    )
    reduced, second = found(
        r"one allreduce for both +joins +(\d+) numbers; it is off by (\S+)", out
    )
    assert (gathered, reduced) == (20 * (250 + 32), 20 * 32)
    assert max(first, second) < 1e-12


def test_my_algorithm(job):
    out, ranks = job("my_algorithm.py")
    assert "there_and_back is proven for 1 to 16 ranks" in out
    assert "rank 3  3     | 3      | 3      | *      | *      | *      | *" in out
    assert "there_and_back: on 8 ranks 14 rounds; a rank sends up to 2 arrays" in out
    assert "refused: allreduce 'twice_on_the_way_back' on 4 ranks: rank 2, round 3: folds" in out
    ours, numpys = re.findall(r"(?:ranks:|says:) +\[(.*)\]", out)
    want = sum(np.random.default_rng(r).integers(0, 100, 6) for r in range(ranks))
    assert [int(word) for word in ours.split()] == want.tolist()
    assert ours == numpys


def scaling(picture, **env):
    """Run the script; return its output, and the words of the table."""
    env = {"PYTHON": sys.executable, **env}
    result = run(["sh", EXAMPLES / "scaling.sh", picture], env=env)
    assert result.status == 0, result
    header, *rows = (line.split() for line in result.out.splitlines()[:-1])
    assert header == ["ranks", "pi,", "s", "speed-up", "sgd,", "s", "speed-up"]
    return result.out, rows


@needs_digits
def test_scaling(tmp_path):
    command = f"{sys.executable} -m collectives"
    settings = {"RANKS": "1 2", "POINTS": "300000", "EPOCHS": "2"}
    _, rows = scaling(tmp_path / "picture.png", COLLECTIVES=command, **settings)
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][2] == rows[0][4] == "1.00"
    for column in (1, 3):
        ratio = float(rows[0][column]) / float(rows[1][column])
        assert float(rows[1][column + 1]) == pytest.approx(ratio, abs=0.02)


@pytest.mark.parametrize("plot", [True, False])
def test_scaling_of_known_times(tmp_path, plot):
    """A table of times that are known, and a picture of it where matplotlib is there."""
    command = tmp_path / "command"
    command.write_text("""#!/bin/sh\necho "took $(awk "BEGIN { print 6 / $3 }") s"\n""")
    command.chmod(0o755)
    picture = tmp_path / "picture.png"
    env = {}
    if not plot:
        (tmp_path / "matplotlib.py").write_text("raise ImportError")
        env["PYTHONPATH"] = str(tmp_path)
    out, rows = scaling(picture, COLLECTIVES=str(command), RANKS="2 4 8", **env)
    assert rows == [
        ["2", "3.000", "2.00", "3.000", "2.00"],
        ["4", "1.500", "4.00", "1.500", "4.00"],
        ["8", "0.750", "8.00", "0.750", "8.00"],
    ]
    if plot and importlib.util.find_spec("matplotlib"):
        assert f"drawn: {picture}" in out
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "no picture: matplotlib is not installed" in out
        assert not picture.exists()


def test_scaling_tells_of_a_program_that_fails(tmp_path):
    env = {"COLLECTIVES": "false", "PYTHON": sys.executable, "RANKS": "1"}
    result = run(["sh", EXAMPLES / "scaling.sh", tmp_path / "no.png"], env=env)
    assert result.status == 1
    assert "scaling.sh: a program on 1 ranks printed no time" in result.err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_ddp_has_the_same_losses_on_any_number_of_ranks():
    losses = set()
    for ranks in (1, 2):
        result = on_ranks(sys.executable, ranks, EXAMPLES / "torch_ddp.py", "--epochs", "20")
        assert result.status == 0, result
        losses.add(result.out)
    (only,) = losses
    assert 0.3 < float(re.fullmatch(r"epoch 20: loss (\d\.\d+)\n", only)[1]) < 0.6


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_diloco_sends_less_and_learns():
    ends = {}
    for words in ((), ("--parts", "2", "--overlap", "3", "--compression", "int8"), ("--ddp",)):
        out = example("torch_diloco.py", 2, "--steps", "100", "--width", "32", *words)
        loss, sent = found(r"step 100: loss (\d+\.\d+), (\d+\.\d+) MB, \d+\.\d+ s", out)
        assert loss < 2.0  # that of a guess is 2.3
        ends[words[:1]] = sent
    assert ends["--parts",] < ends[()] < ends["--ddp",]


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("launcher", ["mpiexec", "--no-mpi"])
def test_conjugate_gradients_are_forecast(tmp_path, launcher):
    path, file = tmp_path / "cg.json", EXAMPLES / "conjugate_gradient.py"
    env = {"COLLECTIVES_TIMELINE": str(path), "COLLECTIVES_PROFILE": "0"}
    words = [file, "--rows", "8", "--columns", "12", "--steps", "30"]
    if launcher == "mpiexec":
        done = on_ranks(sys.executable, 2, *words, env=env)
    else:
        job = [sys.executable, "-m", "collectives", "run", "--no-mpi", "-n", "2"]
        done = run([*job, *words], env=env)
    assert done.status == 0, done
    first, second = done.out.splitlines()
    assert first == "16 x 12 points, 30 steps"
    assert float(re.fullmatch(r"the residual is (\S+) of the first one", second)[1]) < 1e-3
    command = [sys.executable, "-m", "collectives", "forecast", path, "-p", "4..8"]
    done = run([*command, "--topology", "hosts=4,alpha=5us", "--scaling", "weak"])
    assert done.status == 0, done
    lines = done.out.splitlines()
    assert re.fullmatch(r"2 ranks on 1 host, \d\d steps of 3 collectives, .* a step", lines[0])
    assert [line.split()[0] for line in lines[5:8]] == ["2*", "4", "8"]
    assert lines[-1].startswith("on 8 ranks: ")
    assert "a message" in lines[-1]
