"""Zip archives: written the same way every time, and read without trusting a word of them."""
