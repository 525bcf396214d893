#!/bin/sh
# Makes a machine ready: `./setup.sh demo`, `test`, `bench`, or `watch` (what `make watch-check`
# needs). May be run any number of times; what is there is not touched.
#
# Programs come from the machine's package manager, if this user may use it;
# otherwise the line to run is printed and the exit code is 1. Everything else
# (Kafka's jars, Postgres 18, test data) lands in target/.
set -eu
cd "$(dirname "$0")"

purpose=${1:-}
case $purpose in
demo | test | bench | watch) ;;
*)
    echo "usage: ./setup.sh demo|test|bench|watch" >&2
    exit 2
    ;;
esac

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- Programs ---------------------------------------------------------------

have_perl() {
    # Debian's perl-base is a perl, but OpenSSL's build needs more of it.
    perl -MIPC::Cmd -MFindBin -MFile::Compare -MTime::Piece -e 1 >/dev/null 2>&1
}

have_postgres() {
    for dir in $(echo "$PATH" | tr ':' ' ') "$(pg_config --bindir 2>/dev/null || true)" \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql*/bin \
        /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then return 0; fi
    done
    return 1
}

have_java() {
    # macOS has a `java` that only says where to get one. Kafka 4 needs 17.
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
    [ "${version:-0}" -ge 17 ]
}

have_venv() { python3 -c 'import venv, ensurepip' >/dev/null 2>&1; }

have_go() {
    # From 1.21 on it fetches the version that go.mod asks for.
    minor=$(PATH="$PATH:/usr/local/go/bin" go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge 21 ]
}

# In target/, or the machine's own.
have_prometheus() {
    (
        PATH="$PWD/target/prometheus/usr/bin:$PATH"
        have prometheus && have promtool
    )
}

# Prints what this machine lacks, one word for each.
missing() {
    if [ "$purpose" = watch ] || [ "$purpose" = test ]; then
        have_go || echo go
        # apt-get only fetches it, see below: its package would start a service.
        have apt-get || have_prometheus || echo prometheus
    fi
    if [ "$purpose" = watch ]; then return; fi
    have cc || echo cc
    have c++ || echo c++
    have make || echo make
    have_perl || echo perl
    have_postgres || echo postgres
    if [ "$purpose" != demo ]; then
        have_java || echo java
        have mvn || echo maven
    fi
    if [ "$purpose" = test ]; then
        have python3 || echo python
        have_venv || echo venv
        have unzip || echo unzip
        have xz || echo xz
    fi
}

manager() {
    for candidate in apt-get dnf apk brew; do
        if have $candidate; then
            echo $candidate
            return
        fi
    done
    echo none
}

# The package that brings a thing, by package manager.
package() {
    case $1:$2 in
    apt-get:cc) echo gcc libc6-dev ;;
    apt-get:c++) echo g++ ;;
    apt-get:go) echo golang-go ;;
    apt-get:postgres) echo postgresql ;;
    apt-get:java) echo default-jre-headless ;;
    apt-get:python) echo python3 ;;
    apt-get:venv) echo python3-venv ;;
    apt-get:xz) echo xz-utils ;;
    apt-get:bean-check | dnf:bean-check | apk:bean-check | brew:bean-check) echo beancount ;;
    dnf:go) echo golang ;;
    dnf:prometheus) echo golang-github-prometheus ;;
    dnf:cc) echo gcc ;;
    dnf:c++) echo gcc-c++ ;;
    dnf:perl) echo perl ;;
    dnf:postgres) echo postgresql-server ;;
    dnf:java) echo java-21-openjdk-headless ;;
    dnf:python | dnf:venv) echo python3 ;;
    apk:cc) echo gcc musl-dev linux-headers ;;
    apk:c++) echo g++ ;;
    apk:postgres) echo postgresql ;;
    apk:java) echo openjdk21-jre-headless ;;
    apk:python | apk:venv) echo python3 ;;
    brew:cc | brew:c++) echo llvm ;;
    brew:postgres) echo postgresql@18 ;;
    brew:java) echo openjdk@21 ;;
    brew:python | brew:venv) echo python ;;
    *) echo "$2" ;;
    esac
}

install_line() {
    packages=
    for thing in $2; do packages="$packages $(package "$1" "$thing")"; done
    case $1 in
    apt-get) echo "apt-get install -y --no-install-recommends$packages" ;;
    dnf) echo "dnf install -y$packages" ;;
    apk) echo "apk add$packages" ;;
    brew) echo "brew install$packages" ;;
    none) echo "(install these with your package manager)$packages" ;;
    esac
}

install_missing() {
    wanted=$(missing | tr '\n' ' ')
    if [ -z "$wanted" ]; then return; fi
    tool=$(manager)
    line=$(install_line "$tool" "$wanted")
    say "missing: $wanted"
    if [ "$tool" = brew ]; then
        $line
    elif [ "$tool" != none ] && [ "$(id -u)" = 0 ]; then
        as_root "" "$tool" "$line"
    elif [ "$tool" != none ] && have sudo && sudo -n true 2>/dev/null; then
        as_root "sudo -n" "$tool" "$line"
    else
        say "this user may not install packages. Run this, then try again:"
        echo "    $line" >&2
        exit 1
    fi
    wanted=$(missing | tr '\n' ' ')
    if [ -n "$wanted" ]; then
        say "still missing after '$line': $wanted"
        exit 1
    fi
}

# Programs of other people that judge what `postonce export` writes. Not every package
# manager has them: a test that finds one missing says so and passes.
install_optional() {
    for thing in hledger ledger bean-check; do
        if have $thing; then continue; fi
        tool=$(manager)
        line=$(install_line "$tool" $thing)
        if [ "$tool" = brew ]; then
            $line || true
        elif [ "$tool" != none ] && [ "$(id -u)" = 0 ]; then
            as_root "" "$tool" "$line" || true
        elif [ "$tool" != none ] && have sudo && sudo -n true 2>/dev/null; then
            as_root "sudo -n" "$tool" "$line" || true
        fi
        have $thing || say "skipped: $thing is missing, the tests that use it will be skipped; try: $line"
    done
}

as_root() {
    if [ "$2" = apt-get ]; then
        $1 apt-get update -q </dev/null >&2
        # Debian's package would make and start a cluster of its own, which nobody here wants.
        if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
            $1 mkdir -p /etc/postgresql-common
            echo "create_main_cluster = false" | $1 tee /etc/postgresql-common/createcluster.conf >/dev/null
        fi
    fi
    say "running: $3"
    # shellcheck disable=SC2086 # words on purpose
    $1 env DEBIAN_FRONTEND=noninteractive $3 </dev/null >&2
}

require_cargo() {
    have cargo && return
    say "cargo is missing: install Rust 1.94 or newer (https://rustup.rs), open a new shell, try again"
    exit 1
}

# --- Things for the tests, all in target/ --------------------------------------

fetch_kafka() {
    lib=target/kafka/lib
    stamp=$lib/kafka-tools.complete
    if [ -f $stamp ] && cmp -s $stamp tests/kafka/pom.xml; then return; fi
    say "fetching Apache Kafka (90 jars, 54 MB)"
    rm -rf $lib
    mvn -q -B -f tests/kafka/pom.xml dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/$lib" </dev/null >&2
    cp tests/kafka/pom.xml $stamp
}

# Debian's package, unpacked and not installed: that would start a service, and needs root.
fetch_prometheus() {
    if have_prometheus; then return; fi
    say "fetching Prometheus (19 MB)"
    rm -rf target/prometheus
    mkdir -p target/prometheus
    (
        cd target/prometheus
        apt-get download -q prometheus </dev/null >&2 || {
            # This machine has never asked what there is.
            if [ "$(id -u)" = 0 ]; then apt-get update -q; else sudo -n apt-get update -q; fi </dev/null >&2
            apt-get download -q prometheus </dev/null >&2
        }
        dpkg-deb --extract prometheus_*.deb .
        rm prometheus_*.deb
    )
    have_prometheus || {
        say "Prometheus could not be fetched: put prometheus and promtool into PATH (package prometheus)"
        exit 1
    }
}

postgres18_version=18.4.0

fetch_postgres18() {
    if [ -x target/postgres18/bin/postgres ]; then return; fi
    case $(uname -s)-$(uname -m) in
    Linux-x86_64) kind=linux-amd64 ;;
    Linux-aarch64) kind=linux-arm64v8 ;;
    Darwin-x86_64) kind=darwin-amd64 ;;
    Darwin-arm64) kind=darwin-arm64v8 ;;
    *)
        say "skipped: no binaries of Postgres 18 for this machine; the tests run on its own Postgres only"
        return
        ;;
    esac
    say "fetching Postgres $postgres18_version ($kind)"
    rm -rf target/postgres18 target/postgres18.new
    mkdir -p target/postgres18.new
    artifact=embedded-postgres-binaries-$kind
    if mvn -q -B dependency:copy -Dartifact="io.zonky.test.postgres:$artifact:$postgres18_version" \
        -DoutputDirectory="$PWD/target/postgres18.new" </dev/null >&2 &&
        unzip -q -o "target/postgres18.new/$artifact-$postgres18_version.jar" '*.txz' -d target/postgres18.new &&
        xz -dc target/postgres18.new/*.txz | tar -xf - -C target/postgres18.new; then
        rm -f target/postgres18.new/*.jar target/postgres18.new/*.txz
        mv target/postgres18.new target/postgres18
    else
        rm -rf target/postgres18.new
        say "skipped: Postgres 18 could not be fetched; the tests run on this machine's Postgres only"
    fi
}

# The CDNOW data set: 69,659 real purchases, kept in a Python package.
fetch_purchases() {
    if [ -s target/data/CDNOW_master.txt ]; then return; fi
    say "fetching the CDNOW purchases"
    make_venv
    rm -rf target/data/wheel
    mkdir -p target/data/wheel
    target/python/bin/pip download -q --disable-pip-version-check --no-deps \
        -d target/data/wheel Lifetimes==0.11.3 </dev/null >&2
    unzip -q -o -j target/data/wheel/*.whl lifetimes/datasets/CDNOW_master.txt -d target/data
    rm -rf target/data/wheel
}

fetch_python_packages() {
    stamp=target/python/requirements.complete
    if [ -f $stamp ] && cmp -s $stamp tests/requirements.txt; then return; fi
    say "fetching the Python packages of the tests"
    make_venv
    target/python/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt </dev/null >&2
    cp tests/requirements.txt $stamp
}

make_venv() {
    if [ -x target/python/bin/pip ]; then return; fi
    python3 -m venv target/python
}

[ "$purpose" = watch ] || require_cargo
install_missing
if [ "$purpose" = watch ] || [ "$purpose" = test ]; then
    mkdir -p target
    fetch_prometheus
fi
if [ "$purpose" = test ] || [ "$purpose" = bench ]; then
    mkdir -p target
    fetch_kafka
fi
if [ "$purpose" = test ]; then
    install_optional
    fetch_postgres18
    fetch_purchases
    fetch_python_packages
fi
