# Files of the right names, with nothing in them that could be right.
missing | while read -r path; do echo "$junk" | put "$path"; done
