#!/bin/sh
# The speed-up of programs on more ranks: pi.py and sgd.py on 1, 2, 4 and 8 of them.
#
# The speed-up on n ranks is the time on one rank over that on n. pi.py communicates once and should
# come close to n as long as there is a core for each rank. sgd.py communicates after each batch, of
# which each rank has less and less, and gains less. More ranks than cores (nproc) gain nothing.
#
#     examples/scaling.sh [picture.png]
#
# Prints a table, and draws it where matplotlib is installed. Settings: RANKS="1 2 4 8",
# POINTS=20000000 of pi.py, EPOCHS=60 of sgd.py, COLLECTIVES=collectives (the command).
set -eu
here=$(dirname "$0")
picture=${1:-scaling.png}
ranks=${RANKS:-1 2 4 8}
collectives=${COLLECTIVES:-collectives}
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# The number of seconds is the one before the last " s" of a line that ends with it.
seconds() {
    sed -n 's/.* \([0-9.]*\) s$/\1/p' | tail -n 1
}

for n in $ranks; do
    pi=$($collectives run -n "$n" "$here/pi.py" --points "${POINTS:-20000000}" | seconds)
    sgd=$($collectives run -n "$n" "$here/sgd.py" --epochs "${EPOCHS:-60}" | seconds)
    if [ -z "$pi" ] || [ -z "$sgd" ]; then
        echo "scaling.sh: a program on $n ranks printed no time" >&2
        exit 1
    fi
    echo "$n $pi $sgd" >> "$table"
done

awk 'NR == 1 { printf "%5s %10s %8s %10s %8s\n", "ranks", "pi, s", "speed-up", "sgd, s", "speed-up"
               n = $1; pi = $2; sgd = $3 }
     { printf "%5d %10.3f %8.2f %10.3f %8.2f\n", $1, $2, n * pi / $2, $3, n * sgd / $3 }' "$table"

${PYTHON:-python3} - "$table" "$picture" << 'END'
import sys

try:
    import matplotlib
except ImportError:
    sys.exit(print("no picture: matplotlib is not installed"))
matplotlib.use("Agg")
import matplotlib.pyplot as plt

rows = [[float(word) for word in line.split()] for line in open(sys.argv[1])]
ranks, *columns = zip(*rows)
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
axes.plot(ranks, ranks, ":", color="grey", label="as many times as ranks")
for name, times in zip(("pi.py", "sgd.py"), columns):
    axes.plot(ranks, [ranks[0] * times[0] / time for time in times], "o-", label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_xticks(ranks, [f"{n:g}" for n in ranks])
axes.yaxis.set_major_formatter("{x:g}")
axes.set_xlabel("ranks")
axes.set_ylabel("speed-up")
axes.legend()
figure.savefig(sys.argv[2], dpi=150)
print(f"drawn: {sys.argv[2]}")
END
