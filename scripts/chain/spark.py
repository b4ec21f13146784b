#!/usr/bin/env python3
"""A chain of MapReduce jobs by Spark's RDD.pipe; its arguments are those of chain.sh, and so is its output.

    python3 spark.py LENGTH KEYS OUT MAP-OPTION...
    python3 spark.py merkle KEYS OUT MAP-OPTION...

Lines go to a partition by the hash of their key, and are sorted there; each partition is the input of one reduce. The
last partitions, each sorted, are merged. REDUCERS says how many there are (2 by default), SPARK_MASTER where it runs
(local[2] by default), IMAGO names the program.

checkCode=True is what makes it fail when a map or a reduce fails: without it Spark goes on with the lines so far.
"""

import heapq
import os
import shlex
import sys
import zlib

from pyspark import SparkConf, SparkContext


def partition_of(line):
    """The hash of a line's key, the same in every process."""
    return zlib.crc32(line.split("\t")[0].encode())


def main(length, keys, out, options):
    imago = os.environ.get("IMAGO", "imago")
    reducers = int(os.environ.get("REDUCERS", "2"))
    conf = SparkConf().setAppName("imago chain")
    conf.setMaster(os.environ.get("SPARK_MASTER", "local[2]"))
    conf.set("spark.ui.enabled", "false")
    conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")

    def job(lines, map_options, reduce_options):
        def pipe(rdd, *words):
            return rdd.pipe(shlex.join(words), env=dict(os.environ), checkCode=True)

        mapped = pipe(lines, imago, "chain", "map", *options, *map_options)
        # Python orders text as UTF-8 is ordered by bytes.
        pairs = mapped.map(lambda line: (line, None))
        sorted_lines = pairs.repartitionAndSortWithinPartitions(reducers, partition_of).keys()
        return pipe(sorted_lines, imago, "chain", "reduce", *reduce_options)

    if length == "merkle":
        with open(keys, encoding="utf-8") as file:
            leaves = [f"{index}\t{line.rstrip(chr(10))}" for index, line in enumerate(file)]
        count, level, nodes = len(leaves), 0, len(leaves)
        lines = spark.parallelize(leaves, 2)
        while level == 0 or nodes > 1:
            tree = ["--job", "merkle"]
            map_options = [*tree, "--modulo", str(count), "--level", str(level)]
            level, nodes = level + 1, (nodes + 1) // 2
            reduce_options = [*tree, "--leaves", str(count), "--level", str(level)]
            lines = job(lines, map_options, reduce_options)
    else:
        lines = spark.textFile("file://" + os.path.abspath(keys), 2)
        for _ in range(int(length)):
            lines = job(lines, [], [])

    parts = lines.glom().collect()
    with open(out + ".part", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in heapq.merge(*parts))
    os.replace(out + ".part", out)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
