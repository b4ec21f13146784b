#!/usr/bin/env bash
# A chain of MapReduce jobs by Hadoop Streaming; its arguments are those of chain.sh, and so is its output.
#
# Here in Hadoop's local mode, whose tasks run on this machine; on a cluster it is `hadoop jar hadoop-streaming.jar` with
# the same -mapper and -reducer, and paths of HDFS. Each phase is a job, whose output folder is the next one's input.
# With several reducers (REDUCERS, 2 by default) each part is sorted, and the last parts are merged by `sort -m`. Hadoop
# ends a line that is a key alone with a tab: map and reduce drop it, and so does the merge.
#
# IMAGO names the program, IMAGO_HADOOP the folder with Hadoop's jars, IMAGO_JAVA the Java.
set -euo pipefail
export LC_ALL=C
readonly IMAGO=${IMAGO:-imago} LENGTH=$1 KEYS=$2 OUT=$3 REDUCERS=${REDUCERS:-2}
readonly HADOOP=${IMAGO_HADOOP:-${XDG_CACHE_HOME:-$HOME/.cache}/imago/hadoop-3.4.2}
shift 3

work=$(mktemp -d "$(realpath -- "$(dirname -- "$OUT")")/hadoop.XXXXXX")
trap 'rm -rf "$work"' EXIT

# program NAME COMMAND... : a file that runs the command, so that Hadoop need not know how to quote it.
program() {
    local name=$1
    shift
    { echo '#!/bin/sh' && printf 'exec' && printf ' %q' "$@" && echo; } >"$work/$name"
    chmod 755 "$work/$name"
}

# job NUMBER : from folder NUMBER - 1 into folder NUMBER.
job() {
    "${IMAGO_JAVA:-java}" -Xmx512m -XX:+UseSerialGC -XX:-UsePerfData -cp "$HADOOP/*" \
        org.apache.hadoop.streaming.HadoopStreaming \
        -D mapreduce.framework.name=local -D fs.defaultFS=file:/// -D hadoop.tmp.dir="$work/tmp" \
        -D mapreduce.local.map.tasks.maximum=2 -D mapreduce.local.reduce.tasks.maximum=2 \
        -D mapreduce.job.reduces="$REDUCERS" \
        -input "$work/$(($1 - 1))" -output "$work/$1" -mapper "$work/map" -reducer "$work/reduce" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
    [ -e "$work/$1/_SUCCESS" ] || { cat "$work/log" >&2; return 1; }
}

mkdir "$work/0"
if [ "$LENGTH" = merkle ]; then
    leaves=$(awk 'END { print NR }' "$KEYS")
    awk '{ print NR - 1 "\t" $0 }' "$KEYS" >"$work/0/keys"
    level=0 nodes=$leaves
    while [ "$level" -eq 0 ] || [ "$nodes" -gt 1 ]; do
        program map "$IMAGO" chain map "$@" --job merkle --modulo "$leaves" --level "$level"
        level=$((level + 1)) nodes=$(((nodes + 1) / 2))
        program reduce "$IMAGO" chain reduce --job merkle --leaves "$leaves" --level "$level"
        job "$level"
    done
    last=$level
else
    cp -- "$KEYS" "$work/0/keys"
    program map "$IMAGO" chain map "$@"
    program reduce "$IMAGO" chain reduce
    for ((phase = 1; phase <= LENGTH; phase++)); do
        job "$phase"
    done
    last=$LENGTH
fi
mkdir "$work/parts"
for part in "$work/$last"/part-*; do
    sed 's/\t$//' "$part" >"$work/parts/${part##*/}"
done
sort -m "$work"/parts/* >"$work/merged"
mv -- "$work/merged" "$OUT"
