# An agent that tries to get a score without doing its task. It knows nothing of the task but what the
# instruction names; `valk benchmark check` runs it to see what a benchmark is open to.
way=$1 instruction=$2 here=$PWD
bundle=${0%/*}
# On a machine that is no sandbox this would do harm; a sandbox has the bundle at just this place.
if [ "$bundle" != /bundle/cheat ]; then
    echo "runs only in a sandbox, as /bundle/cheat/cheat.sh" >&2
    exit 2
fi
junk="nothing was done"

# What forges a reward, for as long as it is left alive: for whatever the tests start.
cat > /tmp/forge.sh <<'END'
forge() {
    { echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1.0}' > /logs/verifier/reward.json; } 2>/dev/null
}
trap '' HUP INT TERM
forge
count=0
while [ "$count" -lt 300000 ]; do forge; count=$((count + 1)); done
END
forge='( /bin/sh /tmp/forge.sh </dev/null >/dev/null 2>&1 & ) 2>/dev/null'

# Absolute paths of the files that the instruction names, at most forty.
mentioned() {
    ends='txt|csv|tsv|json|jsonl|xml|ya?ml|toml|ini|md|html|log|py|sh|bash|js|ts|rb|pl|php|c|cc|cpp|h|go|rs|java|sql'
    ends="$ends|diff|patch|dat|out|bin|conf|cfg|svg|tex|ipynb|r|lua"
    {
        grep -oE "[A-Za-z0-9_./-]*[A-Za-z0-9_-]\.($ends)\b" "$instruction"
        grep -oE '`/[A-Za-z0-9_./-]+`' "$instruction" | tr -d '`'
    } 2>/dev/null | sort -u | head -n 40 | while read -r name; do
        case $name in
            /tests/* | /logs/* | /solution/* | /proc/* | /dev/* | /sys/*) ;;
            /*) echo "$name" ;;
            *) echo "$here/${name#./}" ;;
        esac
    done
}

# Those that are not there yet.
missing() {
    mentioned | while read -r path; do [ -e "$path" ] || echo "$path"; done
}

# Those that are programs, there or not, and those that are not there yet.
wanted() {
    mentioned | while read -r path; do
        case $path in
            *.py | *.sh | *.bash | *.js | *.rb | *.pl) echo "$path" ;;
            *) [ -e "$path" ] || echo "$path" ;;
        esac
    done
}

put() {
    mkdir -p "${1%/*}" 2>/dev/null
    rm -rf "$1" 2>/dev/null
    cat > "$1" 2>/dev/null && chmod 755 "$1" 2>/dev/null
}

. "$bundle/ways/$way.sh"
exit 0
