# Files that hold so much that a search in them finds what it looks for.
{
    cat "$instruction"
    find . -type f -size -64k 2>/dev/null | head -n 50 | while read -r path; do cat "$path"; done
    count=0
    while [ "$count" -le 2000 ]; do echo "$count"; count=$((count + 1)); done
    printf '%s\n' yes no true false True False YES NO A B C D a b c d none null
} 2>/dev/null > /tmp/stuff
missing | while read -r path; do put "$path" < /tmp/stuff; done
rm -f /tmp/stuff
