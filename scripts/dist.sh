#!/usr/bin/env bash
# Packs the built program (profile dist) for others: an archive and a Debian package, in target/dist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly CARGO_DEB=3.6.0
readonly BUILT=target/dist
readonly SHARE=$BUILT/share
readonly TOOLS=target/tools

version=$("$BUILT/imago" --version | cut -d ' ' -f 2)
name=imago-$version-$(uname -m)-linux

rm -rf "$SHARE" "${BUILT:?}/$name"
mkdir -p "$SHARE/completions" "$BUILT/$name"
"$BUILT/imago" man "$SHARE/man/man1"
"$BUILT/imago" completions bash >"$SHARE/completions/imago.bash"
"$BUILT/imago" completions zsh >"$SHARE/completions/_imago"
"$BUILT/imago" completions fish >"$SHARE/completions/imago.fish"

install -D "$BUILT/imago" "$BUILT/$name/bin/imago"
cp -r "$SHARE" "$BUILT/$name/share"
mkdir "$BUILT/$name/systemd"
cp packaging/*.service "$BUILT/$name/systemd/"
cp packaging/imago.toml README.md CHANGELOG.md LICENSE "$BUILT/$name/"
tar -C "$BUILT" --owner 0 --group 0 --numeric-owner -czf "$BUILT/$name.tar.gz" "$name"
rm -r "${BUILT:?}/$name"

if [ ! -x "$TOOLS/bin/cargo-deb" ]; then
    cargo install --quiet --locked --root "$TOOLS" --version "$CARGO_DEB" cargo-deb
fi
"$TOOLS/bin/cargo-deb" --package imago --profile dist --no-build --no-strip \
    --output "$BUILT/imago_${version}_amd64.deb" >/dev/null
ls -l "$BUILT/$name.tar.gz" "$BUILT"/imago_*.deb
