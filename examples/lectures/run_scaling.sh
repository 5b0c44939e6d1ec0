#!/bin/sh
# The scaling homework: mnist_scaling.py on 1, 2, 4 and 8 ranks, with their total times.
#
#     examples/lectures/run_scaling.sh [folder] [options of mnist_scaling.py]
#
# Draws accuracy_1.pdf ... accuracy_8.pdf into the folder (by default, this one), and prints a table.
# Beyond the number of cores (nproc) nothing can be gained. Settings: RANKS="1 2 4 8",
# COLLECTIVES=collectives (the command).
set -eu
here=$(dirname "$0")
folder=${1:-.}
mkdir -p "$folder"
[ $# -eq 0 ] || shift
table=$(mktemp)
trap 'rm -f "$table"' EXIT

for n in ${RANKS:-1 2 4 8}; do
    line=$(${COLLECTIVES:-collectives} run -n "$n" "$here/mnist_scaling.py" --folder "$folder" "$@" |
        grep ' recognised, ')
    echo "$line" | sed 's/ ranks: / /; s/ recognised, / /; s/ s$//' >> "$table"
done

awk 'NR == 1 { printf "%5s %10s %12s %8s\n", "ranks", "time, s", "recognised", "speed-up"
               n = $1; time = $3 }
     { printf "%5d %10.2f %12s %8.2f\n", $1, $3, $2, n * time / $3 }' "$table"
