set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
clock=1770000000

# Every step gets its own minute, so that the commits are the same each time.
tick() {
    clock=$((clock + 60))
    export GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000"
}
commit() {
    tick
    git add -A
    git commit -q -m "$1"
}

git init -q -b main repo
cd repo
git config user.name "Robin Weaver"
git config user.email "robin@example.org"
git config gc.auto 0

printf '# Ledger\n' > README.md
commit "Start the ledger"
printf 'date,amount\n2026-01-03,120\n' > ledger.csv
printf 'Prices are fixed in spring.\n' > pricing.md
commit "Add the first entries"
git branch maintenance

tick; git checkout -q -b feature/export
printf 'def export(rows):\n    return rows\n' > export.py
commit "Sketch the export"
printf 'def export(rows):\n    return "\\n".join(rows)\n' > export.py
commit "Export as text, not final"
printf 'def export(rows):\n    return "\\n".join(rows) + "\\n"\n' > export.py
tick; git add -A; git commit -q --amend -m "Export as text"

tick; git checkout -q main
printf '2026-01-17,80\n' >> ledger.csv
commit "Enter the middle of January"

printf 'Prices are fixed in spring.\n\n- tea: 4.20\n- coffee: 5.10\n- cake: to be agreed, not above 6.00\n' > pricing.md
tick; git stash push -q -m "pricing draft"
printf 'Prices are fixed in autumn.\n' > pricing.md
tick; git stash push -q -m "second thoughts"
git stash drop -q
git stash drop -q

printf '2026-02-02,95\n' >> ledger.csv
commit "Enter February"
printf '2026-03-01,-40\n' >> ledger.csv
commit "Enter the refund of March"
tick; git checkout -q maintenance
printf 'Kept by Robin.\n' >> README.md
commit "Say who keeps the ledger"
tick; git checkout -q main
tick; git reset -q --hard HEAD~2
git branch -q -D feature/export
