#!/bin/bash
echo 0 > /app/sum.txt
