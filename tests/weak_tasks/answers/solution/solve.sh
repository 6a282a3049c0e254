#!/bin/bash
printf 'under the third birch behind the old mill\n' > /app/place.txt
