set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q notes
cd notes
git config user.name Robin
git config user.email robin@example.org
printf 'under the third birch behind the old mill\n' > answer.txt
git add -A
git commit -q -m "Keep the answer"
git rm -q answer.txt
printf 'A treasure is buried somewhere.\n' > README
git add -A
git commit -q -m "Tell only that there is one"
