#!/bin/bash
/usr/bin/python3 -I /tests/judge.py
