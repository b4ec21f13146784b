#!/usr/bin/env python3
"""Where the time of the test suite goes, as a table: building, linking, each test program (wall clock,
processors busy and idle), and what tests waited for servers.

    scripts/suite-times.py [--fresh] [--slowest N] [PROGRAM...]

--fresh builds into a new target folder first, through a linker that notes its times. PROGRAM is a test
program as PACKAGE/NAME, e.g. imago/verbs; without any, all are run, one after the other, as `make test`
does. Standard library only. Linux only: busy and idle are those of the whole machine (/proc/stat), so run
it on one that does nothing else.
"""

import argparse
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


def processors():
    """Seconds that all processors were busy and idle since the machine started."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(fields[:3]) + sum(fields[5:8])
    return busy / TICKS, sum(fields[3:5]) / TICKS


def timed(run):
    """What `run` returned, and the seconds: wall clock, busy, idle."""
    before, began = processors(), time.monotonic()
    result = run()
    wall, after = time.monotonic() - began, processors()
    return result, wall, after[0] - before[0], after[1] - before[1]


def linker(folder):
    """A linker that notes how long it took, and the environment that has cargo use it."""
    notes, script = folder / "links", folder / "cc"
    script.write_text(
        "#!/usr/bin/env bash\n"
        'began=$(date +%s.%N)\ncc "$@"\ncode=$?\n'
        f'echo "$began $(date +%s.%N)" >> "{notes}"\nexit $code\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return notes, {"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": str(script)}


def build(env):
    """The test programs: (package, name, file, folder it runs in)."""
    command = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("the tests do not build; cargo's message is above")
    programs = []
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["reason"] == "compiler-artifact" and said["executable"] and said["profile"]["test"]:
            folder = Path(said["manifest_path"]).parent
            programs.append((folder.name, said["target"]["name"], said["executable"], folder))
    return sorted(programs)


def run(program, env):
    """Each test's seconds, whether it passed, and its name; and the program's exit code."""
    # The test harness tells times only to who asks for what is not stable yet.
    env = {**env, "RUSTC_BOOTSTRAP": "1"}
    command = [program[2], "-Z", "unstable-options", "--format", "json", "--report-time"]
    done = subprocess.run(command, cwd=program[3], env=env, stdout=subprocess.PIPE, text=True, check=False)
    tests = []
    for line in done.stdout.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if said.get("type") == "test" and said["event"] in ("ok", "failed"):
            tests.append((said.get("exec_time", 0.0), said["event"], said["name"]))
    return tests, done.returncode


def servers(file):
    """What tests waited for servers, by what it was."""
    waits = defaultdict(list)
    if file.exists():
        for line in file.read_text().splitlines():
            said = json.loads(line)
            what = f"{said['what']}: {said['of']}" if said["what"] in ("start", "reuse") else said["what"]
            waits[what].append(said["s"])
    return waits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="build from nothing, and note links")
    parser.add_argument("--slowest", type=int, default=20, metavar="N", help="how many tests are listed")
    parser.add_argument("program", nargs="*", help="PACKAGE/NAME; all of them without any")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        env = {"RUST_TEST_THREADS": "6", **os.environ}
        if args.fresh:
            notes, more = linker(folder)
            env |= {**more, "CARGO_TARGET_DIR": str(folder / "target")}
        programs, wall, busy, idle = timed(lambda: build(env))
        names = [f"{package}/{name}" for package, name, _, _ in programs]
        if unknown := sorted(set(args.program) - set(names)):
            parser.error(f"no test program {', '.join(unknown)}; there are {', '.join(names)}")
        print(f"{'':42}{'wall s':>8}{'busy s':>8}{'idle s':>8}{'tests':>7}")
        print(f"{'build':42}{wall:8.1f}{busy:8.1f}{idle:8.1f}")
        if args.fresh:
            links = [line.split() for line in notes.read_text().splitlines()]
            took = sum(float(end) - float(began) for began, end in links)
            print(f"{f'  of which {len(links)} links':42}{took:8.1f}")
        env["IMAGO_TESTBED_TIMES"] = str(folder / "times")
        everything, failed, total = [], [], wall
        for program in programs:
            name = f"{program[0]}/{program[1]}"
            if args.program and name not in args.program:
                continue
            (tests, code), wall, busy, idle = timed(lambda program=program: run(program, env))
            total += wall
            print(f"{name:42}{wall:8.1f}{busy:8.1f}{idle:8.1f}{len(tests):7}", flush=True)
            everything += [(seconds, f"{name} {test}") for seconds, _, test in tests]
            failed += [f"{name} {test}" for _, event, test in tests if event == "failed"]
            if code != 0 and not any(event == "failed" for _, event, _ in tests):
                failed.append(f"{name} ended with {code}")
        print(f"{'all':42}{total:8.1f}")
        print(f"\n{'waits for servers':62}{'times':>6}{'sum s':>8}{'max s':>8}")
        for what, waits in sorted(servers(folder / "times").items(), key=lambda one: -sum(one[1])):
            print(f"{what[:60]:62}{len(waits):6}{sum(waits):8.1f}{max(waits):8.1f}")
        print("\nthe slowest tests, waiting for servers included")
        for seconds, test in sorted(everything, reverse=True)[: args.slowest]:
            print(f"{seconds:8.1f}  {test}")
        for test in failed:
            print(f"FAILED: {test}")
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
