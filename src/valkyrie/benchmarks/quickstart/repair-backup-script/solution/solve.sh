#!/bin/bash
set -euo pipefail
cat > backup.sh <<'EOF'
#!/bin/bash
set -euo pipefail
umask 077

if [ $# -ne 2 ]; then
    echo "usage: backup.sh SOURCE TARGET" >&2
    exit 2
fi
if [ ! -d "$1" ]; then
    echo "backup.sh: not a folder: $1" >&2
    exit 1
fi
# cd would take - for the previous folder, and -x for an option
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$PWD" "$1" ;; esac; }
source=$(absolute "$1"; printf x)
source=${source%x}
target=$(absolute "$2"; printf x)
target=${target%x}
while [ "$source" != / ] && [ "${source%/}" != "$source" ]; do source=${source%/}; done
archive=$target/${source##*/}.tar.gz
mkdir -p -- "$target"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd -- "$source"
find . -type f -print0 > "$work/names"
tar --create --gzip --file="$work/archive" --null --no-recursion --verbatim-files-from --files-from="$work/names"

for number in 2 1; do
    if [ -e "$archive.$number" ]; then mv -f -- "$archive.$number" "$archive.$((number + 1))"; fi
done
if [ -e "$archive" ]; then mv -f -- "$archive" "$archive.1"; fi
cp -- "$work/archive" "$archive"
tr -cd '\0' < "$work/names" | wc -c | tr -d ' '
EOF
chmod +x backup.sh
