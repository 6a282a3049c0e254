#!/bin/bash
echo Bern > /app/capital.txt
