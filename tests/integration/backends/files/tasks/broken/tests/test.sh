#!/bin/bash
echo "this grader forgets its verdict"
