#!/usr/bin/env bash
# A chain of MapReduce jobs by plain pipes.
#
#   chain.sh LENGTH KEYS OUT MAP-OPTION...     each phase: map, sort, reduce
#   chain.sh merkle KEYS OUT MAP-OPTION...     the root over the documents of KEYS, in their order
#
# For example:
#   scripts/chain/chain.sh 8 keys last --uri "$ROUTER" --ns shop.messages --modulo 1000000
#
# OUT is written when all phases have succeeded, and not at all otherwise. IMAGO names the program.
set -euo pipefail
export LC_ALL=C # the order of bytes, which reduce expects
readonly IMAGO=${IMAGO:-imago} LENGTH=$1 KEYS=$2 OUT=$3
shift 3

work=$(mktemp -d "$OUT.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ "$LENGTH" = merkle ]; then
    leaves=$(awk 'END { print NR }' "$KEYS")
    awk '{ print NR - 1 "\t" $0 }' "$KEYS" >"$work/0"
    level=0 nodes=$leaves
    while [ "$level" -eq 0 ] || [ "$nodes" -gt 1 ]; do
        "$IMAGO" chain map "$@" --job merkle --modulo "$leaves" --level "$level" <"$work/$level" \
            | sort \
            | "$IMAGO" chain reduce --job merkle --leaves "$leaves" --level $((level + 1)) \
                >"$work/$((level + 1))"
        level=$((level + 1)) nodes=$(((nodes + 1) / 2))
    done
    last=$level
else
    cp -- "$KEYS" "$work/0"
    for ((phase = 1; phase <= LENGTH; phase++)); do
        "$IMAGO" chain map "$@" <"$work/$((phase - 1))" \
            | sort \
            | "$IMAGO" chain reduce >"$work/$phase"
    done
    last=$LENGTH
fi
mv -- "$work/$last" "$OUT"
