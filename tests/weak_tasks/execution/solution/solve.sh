#!/bin/bash
printf 'def double(number):\n    return 2 * number\n' > /app/doubling.py
