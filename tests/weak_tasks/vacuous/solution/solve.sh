#!/bin/bash
echo bonjour > /app/french.txt
