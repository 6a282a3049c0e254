#!/bin/bash
# Usage: backup.sh SOURCE TARGET
set -e

SOURCE=$1
TARGET=$2
NAME=`basename $SOURCE`
ARCHIVE=$TARGET/$NAME.tar.gz

mkdir $TARGET

# keep three old ones
mv $ARCHIVE.1 $ARCHIVE.2
mv $ARCHIVE.2 $ARCHIVE.3
mv $ARCHIVE $ARCHIVE.1

cd $SOURCE
tar czf $ARCHIVE *
chmod 644 $ARCHIVE

echo "Packed `ls $SOURCE | wc -l` files"
