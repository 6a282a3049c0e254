"""The verbs over HTTP: one router per noun, event streams, and the program that serves them."""
