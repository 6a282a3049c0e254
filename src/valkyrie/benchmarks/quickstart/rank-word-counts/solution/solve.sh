#!/bin/bash
set -euo pipefail
cat > topwords.sh <<'EOF'
#!/bin/bash
set -uo pipefail
export LC_ALL=C
stopwords=$(cd "$(dirname "$0")" && pwd)/stopwords.txt

if ! [[ ${1:-} =~ ^0*[1-9][0-9]*$ ]] || [ $# -lt 2 ]; then
    echo "usage: topwords.sh N FILE...   (N is a positive whole number)" >&2
    exit 2
fi
limit=$1
shift
for file in "$@"; do
    if [ ! -e "$file" ]; then
        echo "topwords.sh: no such file: $file" >&2
        exit 1
    fi
done

for file in "$@"; do
    cat -- "$file"
    echo
done | tr 'A-Z' 'a-z' | tr -cs 'a-z' '\n' | awk -v limit="$limit" -v stopwords="$stopwords" '
    BEGIN { while ((getline word < stopwords) > 0) skipped[word] = 1 }
    $0 != "" && !($0 in skipped) { count[$0]++ }
    END { for (word in count) print count[word], word }
' | sort -k1,1nr -k2,2 | awk -v limit="$limit" 'NR <= limit'
exit 0
EOF
chmod +x topwords.sh
./topwords.sh 5 texts/*
