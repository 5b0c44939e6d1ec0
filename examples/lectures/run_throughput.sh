#!/bin/sh
# Throughput scaling: resnet_throughput.py on 1, 2, 4 and 8 ranks, as a table and a plot.
#
#     examples/lectures/run_throughput.sh [folder] [options of resnet_throughput.py]
#
# Writes throughput.csv and throughput.pdf into the folder (by default, this one). Settings:
# RANKS="1 2 4 8", COLLECTIVES=collectives (the command), PYTHON=python3.
set -eu
here=$(dirname "$0")
folder=${1:-.}
mkdir -p "$folder"
[ $# -eq 0 ] || shift
rm -f "$folder/throughput.csv"
for n in ${RANKS:-1 2 4 8}; do
    ${COLLECTIVES:-collectives} run -n "$n" "$here/resnet_throughput.py" \
        --append "$folder/throughput.csv" "$@"
done
${PYTHON:-python3} "$here/resnet_throughput.py" --table "$folder/throughput.csv" \
    --plot "$folder/throughput.pdf"
