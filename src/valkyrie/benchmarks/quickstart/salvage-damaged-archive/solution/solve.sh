#!/bin/bash
set -uo pipefail
work=$(mktemp -d)
# Both complain and end with an error, but go on with what can be read.
gzip -dc nightly.tar.gz 2>/dev/null > "$work/nightly.tar"
mkdir "$work/files"
tar -xf "$work/nightly.tar" -C "$work/files" 2>/dev/null

mkdir -p recovered
: > "$work/lost"
while IFS= read -r line; do
    name=${line#*  }
    if (cd "$work/files" && printf '%s\n' "$line" | sha256sum --check --status 2>/dev/null); then
        mkdir -p "recovered/$(dirname "$name")"
        cp "$work/files/$name" "recovered/$name"
    else
        printf '%s\n' "$name" >> "$work/lost"
    fi
done < "$work/files/MANIFEST.sha256"
LC_ALL=C sort "$work/lost" > lost.txt
rm -rf "$work"
cat lost.txt
