#!/bin/bash
set -euo pipefail
cd repo

before_reset=$(git reflog show main --format='%H %gs' | grep -A1 ' reset: moving to ' | sed -n '2s/ .*//p')
git checkout -q main
git reset -q --hard "$before_reset"

# A deleted branch has no reflog of its own left; HEAD's says where it stood when we left it.
export_tip=$(git reflog show HEAD --format='%H %gs' |
    awk 'found { print $1; exit } / checkout: moving from feature\/export to / { found = 1 }')
git branch feature/export "$export_tip"

stash=$(git fsck --unreachable --no-reflogs 2>/dev/null | awk '$2 == "commit" { print $3 }' |
    while read -r commit; do
        if [ "$(git log -1 --format=%s "$commit")" = "On main: pricing draft" ]; then echo "$commit"; fi
    done)
git show "$stash:pricing.md" > ../pricing.md
