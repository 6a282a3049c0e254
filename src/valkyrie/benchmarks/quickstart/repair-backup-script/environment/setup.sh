set -e
# The script came from a Windows machine: carriage returns, and no permission to run it.
sed -i 's/$/\r/' backup.sh
chmod 644 backup.sh
