#!/bin/bash
echo "Bees dance to tell where nectar is. The angle shows the direction." > /app/essay.txt
