#!/usr/bin/env python3
"""Builds and runs all tests: `make test` calls it.

    scripts/run-tests.py [FILTER...]

The tests of the real program (imago/verbs) take most of the time and keep the processors busy, so they run
alone. The other test programs wait for servers half of the time, so two of them run at once, and with them
the documentation's tests and the store's schedules. FILTER goes to each test program. The exit code is 1 if
anything failed; at the end each program is listed with its time. CARGO, RUST_TEST_THREADS and the compiler
wrapper come from the Makefile.
Standard library only.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
# It runs alone, as the last one.
LONGEST = "imago/verbs"
# So many of the others run at once, the first of these first, each with so many tests at once.
LANES, FIRST, LANE_THREADS = 2, ["mongo/servers", "testbed/servers"], "3"
SCHEDULES = ["--locked", "--workspace", "--features", "imago-store/shuttle", "--test", "schedules"]

printing = threading.Lock()


def say(text):
    with printing:
        sys.stdout.write(text)
        sys.stdout.flush()


def programs():
    """The test programs, built: (package/name, file, folder it runs in)."""
    build = [CARGO, "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    done = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("the tests do not build; cargo's message is above")
    found = []
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["reason"] == "compiler-artifact" and said["executable"] and said["profile"]["test"]:
            folder = Path(said["manifest_path"]).parent
            found.append((f"{folder.name}/{said['target']['name']}", said["executable"], folder))
    return sorted(found)


def run(name, command, folder, threads, is_shown_at_once, results):
    """Runs one program; what it prints is shown while it runs, or as a whole when it ends."""
    env = {**os.environ, "RUST_TEST_THREADS": threads}
    began, shown = time.monotonic(), []
    say(f"\n=== {name} begins\n")
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as program:
        for line in program.stdout:
            if is_shown_at_once:
                say(line)
            else:
                shown.append(line)
    took = time.monotonic() - began
    say("".join(shown) + f"=== {name} ended with {program.returncode} after {took:.0f} s\n")
    results.append((name, program.returncode, took))


def main():
    filters = [word for word in sys.argv[1:] if word != "--"]
    began = time.monotonic()
    built = programs()
    build_s = time.monotonic() - began
    threads = os.environ.get("RUST_TEST_THREADS", "5")
    results = []

    others = [(name, [program, *filters], folder) for name, program, folder in built if name != LONGEST]
    others.sort(key=lambda other: FIRST.index(other[0]) if other[0] in FIRST else len(FIRST))
    for name, words in [("schedules", SCHEDULES), ("documentation", ["--locked", "--workspace", "--doc"])]:
        others.append((name, [CARGO, "test", *words, "--quiet", "--", *filters], ROOT))

    def lane():
        while True:
            with printing:
                if not others:
                    return
                name, command, folder = others.pop(0)
            run(name, command, folder, LANE_THREADS, False, results)

    lanes = [threading.Thread(target=lane) for _ in range(LANES)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    for name, program, folder in built:
        if name == LONGEST:
            run(name, [program, *filters], folder, threads, True, results)
    say(f"\n{build_s:6.0f} s  build\n")
    for name, code, took in sorted(results, key=lambda result: -result[2]):
        say(f"{took:6.0f} s  {name}{'' if code == 0 else f'  FAILED ({code})'}\n")
    assert any(name == LONGEST for name, _, _ in results), f"there is no test program {LONGEST}"
    sys.exit(1 if any(code != 0 for _, code, _ in results) else 0)


main()
