#!/bin/bash
echo 366 > /app/days.txt
