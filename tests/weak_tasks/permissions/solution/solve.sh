#!/bin/bash
echo 6 > /app/corners.txt
